"""A task as a client sees it, whichever protocol it came in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolResult, InputRequest
from pydantic import TypeAdapter, ValidationError

from ...tasks import Status
from ..protocol import PROGRESS, VARIABLES
from .errors import MalformedTask, WasCancelled

_questions: TypeAdapter[dict[str, InputRequest]] = TypeAdapter(dict[str, InputRequest])


class TaskState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the server said of a task when it was last asked."""

    task_id: str
    status: Status
    status_message: str | None = None
    created_at: str
    last_updated_at: str
    ttl_ms: int | None = None
    poll_interval_ms: int | None = None
    input_requests: dict[str, Any] = {}
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    meta: dict[str, Any] = msgspec.field(default={}, name="_meta")

    @classmethod
    def read(cls, wire: Mapping[str, Any]) -> TaskState:
        """From what a server answers; MalformedTask where that is no task."""
        core = {"ttlMs": wire.get("ttl"), "pollIntervalMs": wire.get("pollInterval")} if "ttl" in wire else {}
        try:
            return msgspec.convert({**core, **wire}, cls)
        except msgspec.ValidationError as error:
            raise MalformedTask(str(error)) from error

    @property
    def questions(self) -> dict[str, InputRequest]:
        """What the task asks of the client, by key."""
        try:
            return _questions.validate_python(self.input_requests)
        except ValidationError as error:
            raise MalformedTask("it asks what no client can be asked") from error

    @property
    def variables(self) -> Mapping[str, Any]:
        """The state that a server of perdure shares with its client."""
        return self.meta.get(VARIABLES, {})

    @property
    def progress(self) -> Mapping[str, Any] | None:
        """How far the task says it is, from a server of perdure."""
        return self.meta.get(PROGRESS)

    @property
    def outcome(self) -> CallToolResult:
        """The result of a task that has ended; what ended it otherwise is raised."""
        if self.status is Status.CANCELLED:
            raise WasCancelled(self.task_id)
        if self.error is not None:
            code, message = self.error.get("code", INTERNAL_ERROR), self.error.get("message", "")
            raise MCPError(code, message, self.error.get("data"))
        if self.result is None:
            raise MalformedTask(f"it is {self.status} and has no result")
        return CallToolResult.model_validate(self.result, by_name=False)
