"""The words of the two task protocols, and ours beside them. Nothing here does anything."""

from __future__ import annotations

from typing import Any, TypeAlias

from mcp.server.context import ServerRequestContext
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY

EXTENSION = "io.modelcontextprotocol/tasks"
"""Tasks in 2026-07-28: an extension, which clients declare with every request."""

MODERN = "2026-07-28"
CORE = "2025-11-25"
"""The one version that has tasks in its core."""

RELATED_TASK = "io.modelcontextprotocol/related-task"

IDEMPOTENCY_KEY = "perdure/idempotencyKey"
"""In `_meta` of a call: a repeated call with the same key is the same task."""
VARIABLES = "perdure/variables"
"""In `_meta` of a task: its variables, under one key, so that none can shadow another's metadata."""
PROGRESS = "perdure/progress"
"""In `_meta` of a task: how far it says it is."""

ENVELOPE = frozenset({CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY, "progressToken"})
"""What in `_meta` is about one request, and not about the task that it becomes."""

Wire: TypeAlias = dict[str, Any]
"""A JSON object on its way in or out."""

Request: TypeAlias = ServerRequestContext[Any, Any]
"""A request as the SDK hands it to us."""
