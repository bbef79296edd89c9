"""How far a workflow is, as it is stored in the checkpoint of its task.

workflow.step.<name>         what came of a step: status, result, error
workflow.arguments.<name>    arguments for a step that came from outside
workflow.paused              why it pauses, and the key of the question that it asked
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ...tasks import Json, Variables
from .pausing import Paused

STEP = "workflow.step."
ARGUMENTS = "workflow.arguments."
PAUSED = "workflow.paused"


class StepState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a step."""

    status: Literal["completed", "failed", "given"]
    """`given`: its result came from outside."""
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
    """All of it."""

    steps: dict[str, StepState]
    """Those that have ended, by name."""
    arguments: dict[str, dict[str, Json]]
    paused: Paused | None


def state_of(checkpoint: Variables) -> WorkflowState:
    """The state of a workflow, from the checkpoint of its task."""
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
