"""The state of a workflow, which is stored in the checkpoint of its task.

workflow.step.<name>         the outcome of a step: status, result, error
workflow.arguments.<name>    arguments of a step that the client has provided
workflow.paused              why the workflow pauses, and the key of the question that it asked
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ...tasks import Json, Variables
from .pauses import Paused

STEP = "workflow.step."
ARGUMENTS = "workflow.arguments."
PAUSED = "workflow.paused"


class StepState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a step."""

    status: Literal["completed", "failed", "given"]
    """`given`: the client has provided the result."""
    result: Json = None
    error: str | None = None

    @property
    def has_result(self) -> bool:
        return self.status != "failed"

    def as_json(self) -> dict[str, Json]:
        if self.has_result:
            return {"status": self.status, "result": self.result}
        return {"status": self.status, "error": self.error}


class WorkflowState(msgspec.Struct, frozen=True):
    """The complete state of a workflow."""

    steps: dict[str, StepState]
    """The outcomes of the steps that have ended, by name."""
    arguments: dict[str, dict[str, Json]]
    paused: Paused | None


def state_of(checkpoint: Variables) -> WorkflowState:
    """Return the state of a workflow from the checkpoint of its task."""
    paused = checkpoint.get(PAUSED)
    return WorkflowState(
        steps={
            name.removeprefix(STEP): _step(value)
            for name, value in checkpoint.items()
            if name.startswith(STEP) and isinstance(value, dict)
        },
        arguments={
            name.removeprefix(ARGUMENTS): value
            for name, value in checkpoint.items()
            if name.startswith(ARGUMENTS) and isinstance(value, dict)
        },
        paused=None if paused is None else msgspec.convert(paused, Paused),
    )


def _step(value: dict[str, Json]) -> StepState:
    error = value.get("error")
    match value.get("status"):
        case "failed":
            return StepState("failed", error=error if isinstance(error, str) else None)
        case "given":
            return StepState("given", value.get("result"))
        case _:
            return StepState("completed", value.get("result"))
