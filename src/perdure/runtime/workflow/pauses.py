"""The four reasons why a workflow pauses, and the question that it asks for each of them."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ...tasks import InputKind, InputRequest
from ...tasks.canonical_json import JsonLike


class _Reason(msgspec.Struct, frozen=True, tag_field="reason"):
    step: str
    """The step that cannot continue."""


class UnresolvableParameters(_Reason, frozen=True, tag="unresolvable_parameters"):
    """Some arguments of the step have no value. The answer must contain their values."""

    missing: tuple[str, ...]

    @property
    def message(self) -> str:
        return f"step {self.step!r} needs values for {', '.join(self.missing)}"


class SchemaMismatch(_Reason, frozen=True, tag="schema_mismatch"):
    """Some arguments do not match the signature of the step. The answer must contain other values."""

    fields: dict[str, str]
    """What is wrong, by argument."""

    @property
    def message(self) -> str:
        wrong = "; ".join(f"{name}: {reason}" for name, reason in self.fields.items())
        return f"step {self.step!r} got invalid arguments ({wrong})"


class ToolError(_Reason, frozen=True, tag="tool_error"):
    """The function of the step raised an exception. The answer must contain `retry` or a `result`."""

    error: str
    retryable: bool
    """Whether the function raised `Retry`."""

    @property
    def message(self) -> str:
        return f"step {self.step!r} failed: {self.error}"


class UnresolvedDependency(_Reason, frozen=True, tag="unresolved_dependency"):
    """The step needs the result of an optional step that failed. The answer must contain that `result`."""

    producer: str

    @property
    def message(self) -> str:
        return f"step {self.step!r} needs the result of step {self.producer!r}, which failed"


Reason: TypeAlias = UnresolvableParameters | SchemaMismatch | ToolError | UnresolvedDependency


class Paused(msgspec.Struct, frozen=True):
    """Why a workflow pauses, and the key of the question whose answer lets it continue."""

    key: str
    why: Reason


class Blocked(Exception):
    """Raised when a step cannot continue."""

    def __init__(self, why: Reason) -> None:
        super().__init__(why.message)
        self.why = why


_RESULT: JsonLike = {"description": "the result to use instead of running the step"}
_RETRY: JsonLike = {"type": "boolean", "description": "run the step again"}


def question_of(why: Reason) -> InputRequest:
    """Return the question for the client: a form for what is missing."""
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
