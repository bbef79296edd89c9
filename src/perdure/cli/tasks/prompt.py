"""Filling in a form: what was typed, made into the answer that a question wants."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import msgspec
import typer

from ...operating import Asked, Detail, Question, asked_in
from ...tasks import InputKind, Json
from ..errors import CannotDo
from ..output import harmless
from ..saying import say

FURTHER_FIELDS = frozenset({"patternProperties", "$ref", "allOf", "anyOf", "oneOf", "if"})
"""Keywords by which a schema may have fields beside its `properties`."""
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
    if question.kind is not InputKind.ELICITATION:
        if given.value is None:
            raise CannotDo(f"this is a {question.kind}, not a form; give its whole result with --value JSON")
        return _document(given.value)
    content = _pairs(question, given.fields) if given.value is None else _document(given.value)
    if isinstance(content, dict):
        _check_names(question, content)
    return {"action": "accept", "content": content}


def _document(text: str) -> Json:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise CannotDo(f'--value is not JSON: {error}; write it as \'{{"name": "Ana"}}\'') from error


def _pairs(question: Question, fields: Sequence[str]) -> dict[str, Json]:
    schemas = {each.name: each.schema for each in asked_in(question.schema)}
    content: dict[str, Json] = {}
    for field in fields:
        name, equals, text = field.partition("=")
        if not (name and equals):
            raise CannotDo(f"{field!r} is no field; write name=value")
        content[name] = _read(name, text, schemas.get(name, {}))
    return content


def _check_names(question: Question, content: Mapping[str, Json]) -> None:
    """Refuse fields that the form does not have: one may be misspelt.

    JSON Schema allows further properties unless a schema forbids them, which forms rarely do; so here a
    schema has to allow them explicitly. The fields of a composed schema are not all listed in one place.
    """
    schema = question.schema or {}
    if schema.get("additionalProperties") or not schema.keys().isdisjoint(FURTHER_FIELDS):
        return  # whether they fit is checked with the whole answer
    known = [each.name for each in asked_in(schema)]
    unknown = [name for name in content if name not in known]
    if not unknown:
        return
    fields = f"its fields are {_listed(known)}" if known else "it has no fields"
    raise CannotDo(f"the form has no field {_listed(unknown)}; {fields}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(harmless(each) for each in names)


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
    for each in asked_in(question.schema):
        value = _prompted(each)
        if value is not None:
            content[each.name] = value
    return {"action": "accept", "content": content}


def _elsewhere(question: Question) -> Json:
    """Something is to be done at an address, which the task learns of by itself."""
    url = question.params.get("url") if isinstance(question.params, dict) else None
    if isinstance(url, str):
        say(f"it is answered at {harmless(url)}")
    agreed = typer.confirm("agree?", err=True)
    return {"action": "accept"} if agreed else {"action": "decline"}


def _prompted(asked: Asked) -> Json:
    """A value that fits, or none where nothing was typed and nothing is needed."""
    usual = asked.schema.get("default")
    while True:
        text: str = typer.prompt(_label(asked), default="", show_default=False, err=True)
        if not text and (usual is not None or not asked.is_required):
            return usual
        try:
            value = _read(asked.name, text, asked.schema)
        except CannotDo as error:
            say(str(error))
            continue
        if _is_choice(value, asked.schema):
            return value


def _is_choice(value: Json, schema: Mapping[str, Json]) -> bool:
    choices = schema.get("enum")
    if not isinstance(choices, list) or value in choices:
        return True
    say("choose one of these")
    return False


def _label(asked: Asked) -> str:
    schema = asked.schema
    title, told, choices = schema.get("title"), schema.get("description"), schema.get("enum")
    label = harmless(title if isinstance(title, str) else asked.name)
    if isinstance(told, str):
        label += f" ({harmless(told)})"
    if isinstance(choices, list):
        label += f" {[harmless(str(each)) for each in choices]}".replace("'", "")
    if schema.get("type") == "boolean":
        label += " [yes, no]"
    if (usual := schema.get("default")) is not None:
        return f"{label}, else {harmless(str(usual))}"
    return label if asked.is_required else f"{label}, may be empty"
