"""What the tests of several protocols need for calls of tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.types import CallToolResult, TextContent

from perdure.runtime import RuntimeConfig

FAST_CONFIG = RuntimeConfig(drain_timeout=0.2, cancel_grace=0.2, report_interval=0.05)
NAME_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}


def text_of(result: CallToolResult | Mapping[str, Any]) -> str:
    """Return the text of a result that is one block of text."""
    if isinstance(result, CallToolResult):
        (block,) = result.content
        assert isinstance(block, TextContent)
        return block.text
    (content,) = result["content"]
    return str(content["text"])
