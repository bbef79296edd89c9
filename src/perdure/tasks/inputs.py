"""The questions that a task asks its client, and the answers.

Each answer is checked against the kind of its question. If one answer in a call is malformed, no answer of
the call is stored. An answer is ignored if its key is unknown or its question has already been answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ..storage.records_and_changes import Micros
from ..storage.time_types import Duration, to_seconds
from . import canonical_json
from .canonical_json import Json, JsonLike, check_name
from .config import MAX_TTL_MS, StoreConfig
from .errors import InvalidValue, LimitExceeded, MalformedAnswer, QuestionChanged
from .secret_contents import SecretContents

MAX_DEADLINE_SECONDS = MAX_TTL_MS // 1000


class InputKind(StrEnum):
    """The kinds of questions. Each value is the MCP method that asks the question."""

    ELICITATION = "elicitation/create"
    SAMPLING = "sampling/createMessage"
    ROOTS = "roots/list"


class Capability(StrEnum):
    """The capabilities that a client can declare. Each one is the ability to answer one kind of question."""

    FORM = "elicitation.form"
    URL = "elicitation.url"
    SAMPLING = "sampling"
    SAMPLING_TOOLS = "sampling.tools"
    ROOTS = "roots"


def capability_of(kind: InputKind, params: JsonLike) -> Capability:
    """Return the capability that a client needs to answer this question."""
    fields: Mapping[str, JsonLike] = params if isinstance(params, Mapping) else {}
    match kind:
        case InputKind.ELICITATION:
            return Capability.URL if fields.get("mode") == "url" else Capability.FORM
        case InputKind.SAMPLING:
            has_tools = bool(fields.get("tools") or fields.get("toolChoice"))
            return Capability.SAMPLING_TOOLS if has_tools else Capability.SAMPLING
        case InputKind.ROOTS:
            return Capability.ROOTS


class ElicitationAnswer(msgspec.Struct, frozen=True):
    """The answer to an elicitation: a submitted form, or a refusal."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None
    """The submitted values by field name, or None if the client sent none."""

    @property
    def values(self) -> dict[str, Any]:
        """The submitted values by field name. Empty if the client sent none."""
        return self.content or {}


class SamplingAnswer(msgspec.Struct, frozen=True):
    """The answer to a sampling request: a message from the client's language model."""

    role: Literal["user", "assistant"]
    content: Any
    """An MCP content block, or a list of content blocks, as plain Python values."""
    model: str


class Root(msgspec.Struct, frozen=True):
    uri: str
    name: str | None = None


class RootsAnswer(msgspec.Struct, frozen=True):
    """The answer to a roots request: the directories and files of the client that the server may use."""

    roots: list[Root]


InputAnswer: TypeAlias = ElicitationAnswer | SamplingAnswer | RootsAnswer

_ANSWER_TYPES: dict[InputKind, type[InputAnswer]] = {
    InputKind.ELICITATION: ElicitationAnswer,
    InputKind.SAMPLING: SamplingAnswer,
    InputKind.ROOTS: RootsAnswer,
}


class InputRequest(SecretContents, frozen=True, kw_only=True):
    """A question to ask the client."""

    shown_in_repr = ("kind", "deadline")

    kind: InputKind
    params: JsonLike = None
    deadline: Duration | None = None
    """The time within which the question must be answered. If None, the ttl of the task is used."""


class InputError(SecretContents, frozen=True, kw_only=True):
    """A JSON-RPC error that a client sent instead of an answer."""

    shown_in_repr = ("code",)

    code: int
    message: str


class Input(SecretContents, frozen=True, kw_only=True, omit_defaults=True):
    """A stored question of a task, with its answer if it has been answered."""

    shown_in_repr = ("kind", "asked_at", "answered_at")

    kind: InputKind
    params_json: Raw | UnsetType = msgspec.field(default=UNSET, name="params")
    asked_at: Micros
    deadline_at: Micros | None = None
    """The time at which the task fails if the question is still unanswered. None means never."""
    answer_json: Raw | UnsetType = msgspec.field(default=UNSET, name="answer")
    answered_at: Micros | None = None
    error: InputError | None = None
    """The JSON-RPC error that the client sent instead of an answer, if any."""

    @property
    def is_answered(self) -> bool:
        return self.answered_at is not None

    @property
    def capability(self) -> Capability:
        """The capability that a client needs to answer this question."""
        return capability_of(self.kind, self.params)

    @property
    def params(self) -> Json:
        return canonical_json.decode(self.params_json)

    @property
    def answer(self) -> InputAnswer | None:
        """The decoded answer. None if there is no answer yet, or if the client sent an error instead."""
        if isinstance(self.answer_json, UnsetType):
            return None
        return msgspec.convert(canonical_json.decode(self.answer_json), _ANSWER_TYPES[self.kind])

    @property
    def raw_answer(self) -> Json:
        """The answer as plain Python values.

        None if there is no answer yet, or if the client sent an error.
        """
        return canonical_json.decode(self.answer_json)

    def is_question(self, request: InputRequest) -> bool:
        """Return whether a request has the same kind and parameters as this question."""
        return self.kind is request.kind and self.params == canonical_json.decode(
            canonical_json.encode_checked("inputs", request.params)
        )


def ask(
    inputs: Mapping[str, Input],
    requests: Mapping[str, InputRequest],
    *,
    ttl_ms: int | None,
    now: Micros,
    config: StoreConfig,
) -> dict[str, Input]:
    """Return all questions, including the new ones. Raise QuestionChanged if a key was already used."""
    _check_entry_count(requests, config)
    for key in requests:
        check_name("inputs", key, config.max_name_length)
        if requests[key].kind not in _ANSWER_TYPES:
            reason = (
                f"question {key!r} has the unknown kind {requests[key].kind!r}; use a member of InputKind"
            )
            raise InvalidValue("inputs", reason)
        if key in inputs:
            raise QuestionChanged(key)
    params = {key: request.params for key, request in requests.items()}
    raws = _encode_all(params, config)
    asked = {
        key: Input(
            kind=request.kind,
            params_json=raws[key],
            asked_at=now,
            deadline_at=_deadline(request, ttl_ms, now),
        )
        for key, request in requests.items()
    }
    return {**inputs, **asked}


def _deadline(request: InputRequest, ttl_ms: int | None, now: Micros) -> Micros | None:
    if request.deadline is None:
        return None if ttl_ms is None else now + ttl_ms * 1000
    seconds = to_seconds(request.deadline)
    if not 0 < seconds <= MAX_DEADLINE_SECONDS:
        raise InvalidValue(
            "deadline",
            f"must be more than 0 and at most {MAX_DEADLINE_SECONDS} seconds, not {seconds}",
        )
    return now + round(seconds * 1_000_000)


def check_repeated(inputs: Mapping[str, Input], requests: Mapping[str, InputRequest]) -> None:
    """Raise QuestionChanged if a key has already been used for a different question."""
    for key, request in requests.items():
        if key in inputs and not inputs[key].is_question(request):
            raise QuestionChanged(key)


def answer(
    inputs: Mapping[str, Input], answers: Mapping[str, JsonLike], *, now: Micros, config: StoreConfig
) -> dict[str, Input]:
    """Match `answers` to the open questions. Return the answered questions by key, each with its answer.

    Ignore answers that match no open question.
    """
    _check_entry_count(answers, config)
    outstanding = {
        key: value for key, value in answers.items() if key in inputs and not inputs[key].is_answered
    }
    raws = _encode_all(outstanding, config)  # checks the sizes first, so that nothing too large is decoded
    for key, raw in raws.items():
        _check_answer(key, inputs[key].kind, raw)
    return {
        key: msgspec.structs.replace(inputs[key], answer_json=raw, answered_at=now)
        for key, raw in raws.items()
    }


def fail(inputs: Mapping[str, Input], key: str, error: InputError, *, now: Micros) -> dict[str, Input]:
    """Return a dict that maps the key to its question, answered with an error.

    The dict is empty if the task has no open question with this key.
    """
    if key not in inputs or inputs[key].is_answered:
        return {}
    return {key: msgspec.structs.replace(inputs[key], error=error, answered_at=now)}


def _check_entry_count(entries: Mapping[str, object], config: StoreConfig) -> None:
    if len(entries) > config.max_inputs:
        raise LimitExceeded("inputs", config.max_inputs, len(entries), "entries")
    if not entries:
        raise InvalidValue("inputs", "must not be empty")


def _encode_all(values: Mapping[str, JsonLike], config: StoreConfig) -> dict[str, Raw]:
    raws = {
        key: canonical_json.encode_checked(
            f"inputs.{key}",
            value,
            max_bytes=config.max_input_size_bytes,
            max_depth=config.max_input_depth,
        )
        for key, value in values.items()
    }
    total = sum(len(memoryview(raw)) for raw in raws.values())
    if total > config.max_inputs_size_bytes:
        raise LimitExceeded("inputs", config.max_inputs_size_bytes, total)
    return raws


def _check_answer(key: str, kind: InputKind, raw: Raw) -> None:
    try:
        msgspec.json.decode(raw, type=_ANSWER_TYPES[kind])
    except msgspec.ValidationError as error:
        raise MalformedAnswer(key, str(error)) from error
