"""The four reasons for which a workflow pauses, what it asks then, and what an answer does."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ...tasks import InputKind, InputRequest
from ...tasks.canonical_json import JsonLike


class _Reason(msgspec.Struct, frozen=True, tag_field="reason"):
    step: str
    """The step that cannot go on."""


class UnresolvableParameters(_Reason, frozen=True, tag="unresolvable_parameters"):
    """Nothing says what these arguments of the step are. Answered with their values."""

    missing: tuple[str, ...]

    @property
    def message(self) -> str:
        return f"step {self.step!r} needs {', '.join(self.missing)}"


class SchemaMismatch(_Reason, frozen=True, tag="schema_mismatch"):
    """These arguments are not what the step takes. Answered with better values."""

    fields: dict[str, str]
    """What is wrong, by argument."""

    @property
    def message(self) -> str:
        wrong = "; ".join(f"{name}: {reason}" for name, reason in self.fields.items())
        return f"step {self.step!r} cannot take its arguments ({wrong})"


class ToolError(_Reason, frozen=True, tag="tool_error"):
    """The step's function raised. Answered with `retry`, or with the `result` got in another way."""

    error: str
    retryable: bool
    """Whether the function itself said that another attempt may succeed."""

    @property
    def message(self) -> str:
        return f"step {self.step!r} failed: {self.error}"


class UnresolvedDependency(_Reason, frozen=True, tag="unresolved_dependency"):
    """It needs the result of an optional step that failed. Answered with that `result`."""

    producer: str

    @property
    def message(self) -> str:
        return f"step {self.step!r} needs the result of step {self.producer!r}, which has none"


Reason: TypeAlias = UnresolvableParameters | SchemaMismatch | ToolError | UnresolvedDependency


class Paused(msgspec.Struct, frozen=True):
    """Why a workflow pauses, and the key of the question whose answer lets it continue."""

    key: str
    why: Reason


class Blocked(Exception):
    """A step cannot go on."""

    def __init__(self, why: Reason) -> None:
        super().__init__(why.message)
        self.why = why


_RESULT: JsonLike = {"description": "the result of the step, got in another way"}
_RETRY: JsonLike = {"type": "boolean", "description": "run the step again"}


def question_of(why: Reason) -> InputRequest:
    """What is asked of the client: a form for what lacks."""
    match why:
        case UnresolvableParameters(missing=names):
            properties: dict[str, JsonLike] = {name: {} for name in names}
            required = list(names)
        case SchemaMismatch(fields=fields):
            properties = {name: {"description": reason} for name, reason in fields.items()}
            required = list(fields)
        case ToolError():
            properties, required = {"retry": _RETRY, "result": _RESULT}, []
        case UnresolvedDependency():
            properties, required = {"result": _RESULT}, ["result"]
    schema: JsonLike = {"type": "object", "properties": properties, "required": required}
    return InputRequest(
        kind=InputKind.ELICITATION,
        params={"mode": "form", "message": why.message, "requestedSchema": schema},
    )
