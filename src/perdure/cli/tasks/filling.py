"""Filling in a form: what was typed, made into the answer that a question wants."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import msgspec
import typer

from ...operating import Detail, Question
from ...tasks import InputKind, Json
from ..ending import CannotDo
from ..saying import say
from ..telling import harmless

YES, NO = frozenset({"true", "yes", "y", "1"}), frozenset({"false", "no", "n", "0"})


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What stood on the command line."""

    key: str | None = None
    value: str | None = None
    fields: Sequence[str] = ()
    declines: bool = False

    @property
    def is_empty(self) -> bool:
        return self.value is None and not self.fields and not self.declines


def chosen(seen: Detail, key: str | None) -> Question:
    """The question that is meant."""
    by_key = {question.key: question for question in seen.questions}
    if key is None and len(by_key) == 1:
        return seen.questions[0]
    if key in by_key:
        return by_key[key]
    names = ", ".join(harmless(each) for each in by_key)
    raise CannotDo(f"say with --key which question is meant: {names}")


def answer_to(question: Question, given: Given) -> Json:
    """The answer in the shape of its kind."""
    if given.is_empty:
        return _asked(question)
    if given.declines:
        return {"action": "decline"}
    if given.value is not None:
        value = _document(given.value)
        return {"action": "accept", "content": value} if question.kind is InputKind.ELICITATION else value
    if question.kind is not InputKind.ELICITATION:
        raise CannotDo(f"this is no form, but {question.kind}; give its whole result with --value JSON")
    return {"action": "accept", "content": _pairs(question, given.fields)}


def _document(text: str) -> Json:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise CannotDo(f'--value is not JSON: {error}; write it as \'{{"name": "Ana"}}\'') from error


def _pairs(question: Question, fields: Sequence[str]) -> dict[str, Json]:
    content: dict[str, Json] = {}
    for field in fields:
        name, equals, text = field.partition("=")
        if not (name and equals):
            raise CannotDo(f"{field!r} is no field; write name=value")
        content[name] = _read(name, text, _property(question, name))
    return content


def _properties(question: Question) -> Mapping[str, Json]:
    properties = (question.schema or {}).get("properties")
    return properties if isinstance(properties, dict) else {}


def _property(question: Question, name: str) -> Mapping[str, Json]:
    told = _properties(question).get(name)
    return told if isinstance(told, dict) else {}


def _read(name: str, text: str, schema: Mapping[str, Json]) -> Json:
    """What was typed, as the type that the form has there. What does not fit is judged later, by the form."""
    match schema.get("type"):
        case "integer" | "number" | "array" | "object":
            return _number_or_document(name, text, str(schema.get("type")))
        case "boolean":
            if text.lower() not in YES | NO:
                raise CannotDo(f"{harmless(name)} must be yes or no")
            return text.lower() in YES
        case _:
            return text


def _number_or_document(name: str, text: str, kind: str) -> Json:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise CannotDo(f"{harmless(name)} must be of type {kind}, as JSON has it") from error


# In a terminal


def _asked(question: Question) -> Json:
    """Ask whoever sits there, field by field. Ctrl-C leaves the question open."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CannotDo("say the answer as name=value, with --value JSON, or --decline")
    if question.kind is not InputKind.ELICITATION:
        raise CannotDo(f"{question.kind} is answered by a client; give its whole result with --value JSON")
    say(harmless(question.message))
    if question.schema is None:
        return _elsewhere(question)
    content: dict[str, Json] = {}
    for name, is_needed in _in_order(question.schema, _properties(question)):
        value = _prompted(name, _property(question, name), is_needed=is_needed)
        if value is not None:
            content[name] = value
    return {"action": "accept", "content": content}


def _in_order(schema: Mapping[str, Json], properties: Mapping[str, Json]) -> list[tuple[str, bool]]:
    """What is required first, in the order of that list: of the fields themselves none is stored."""
    required = schema.get("required")
    needed = [name for name in properties if isinstance(required, list) and name in required]
    if isinstance(required, list):
        needed.sort(key=required.index)
    return [(name, True) for name in needed] + [(name, False) for name in properties if name not in needed]


def _elsewhere(question: Question) -> Json:
    """Something is to be done at an address, which the task learns of by itself."""
    url = question.params.get("url") if isinstance(question.params, dict) else None
    if isinstance(url, str):
        say(f"it is answered at {harmless(url)}")
    agreed = typer.confirm("agree?", err=True)
    return {"action": "accept"} if agreed else {"action": "decline"}


def _prompted(name: str, schema: Mapping[str, Json], *, is_needed: bool) -> Json:
    """A value that fits, or none where nothing was typed and nothing is needed."""
    usual = schema.get("default")
    while True:
        text: str = typer.prompt(
            _label(name, schema, is_needed=is_needed), default="", show_default=False, err=True
        )
        if not text and (usual is not None or not is_needed):
            return usual
        try:
            value = _read(name, text, schema)
        except CannotDo as error:
            say(str(error))
            continue
        if _is_choice(value, schema):
            return value


def _is_choice(value: Json, schema: Mapping[str, Json]) -> bool:
    choices = schema.get("enum")
    if not isinstance(choices, list) or value in choices:
        return True
    say("choose one of these")
    return False


def _label(name: str, schema: Mapping[str, Json], *, is_needed: bool) -> str:
    title, told, choices = schema.get("title"), schema.get("description"), schema.get("enum")
    label = harmless(title if isinstance(title, str) else name)
    if isinstance(told, str):
        label += f" ({harmless(told)})"
    if isinstance(choices, list):
        label += f" {[harmless(str(each)) for each in choices]}".replace("'", "")
    if schema.get("type") == "boolean":
        label += " [yes, no]"
    if (usual := schema.get("default")) is not None:
        return f"{label}, else {harmless(str(usual))}"
    return label if is_needed else f"{label}, may be empty"
