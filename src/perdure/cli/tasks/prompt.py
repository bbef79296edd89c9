"""Filling in a form: what was typed, made into the answer that a question wants."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import msgspec
import typer

from ...operating import Asked, Detail, Question, asked_in
from ...tasks import InputKind, Json
from ..errors import CommandError
from ..output import one_line, print_message

FURTHER_FIELDS = frozenset({"patternProperties", "$ref", "allOf", "anyOf", "oneOf", "if"})
"""Keywords by which a schema may have fields beside its `properties`."""
YES, NO = frozenset({"true", "yes", "y", "1"}), frozenset({"false", "no", "n", "0"})


class AnswerInput(msgspec.Struct, frozen=True, kw_only=True):
    """What stood on the command line."""

    key: str | None = None
    value: str | None = None
    fields: Sequence[str] = ()
    decline: bool = False

    @property
    def is_empty(self) -> bool:
        return self.value is None and not self.fields and not self.decline


def choose_question(seen: Detail, key: str | None) -> Question:
    """The question that is meant."""
    by_key = {question.key: question for question in seen.questions}
    if key is None and len(by_key) == 1:
        return seen.questions[0]
    if key in by_key:
        return by_key[key]
    names = ", ".join(one_line(each) for each in by_key)
    raise CommandError(f"say with --key which question is meant: {names}")


def build_answer(question: Question, given: AnswerInput) -> Json:
    """The answer in the shape of its kind."""
    if given.is_empty:
        return _prompt_answer(question)
    if given.decline:
        return {"action": "decline"}
    if question.kind is not InputKind.ELICITATION:
        if given.value is None:
            raise CommandError(
                f"this is a {question.kind}, not a form; give its whole result with --value JSON"
            )
        return _document(given.value)
    content = _parse_fields(question, given.fields) if given.value is None else _document(given.value)
    if isinstance(content, dict):
        _check_names(question, content)
    return {"action": "accept", "content": content}


def _document(text: str) -> Json:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise CommandError(f'--value is not JSON: {error}; write it as \'{{"name": "Ana"}}\'') from error


def _parse_fields(question: Question, fields: Sequence[str]) -> dict[str, Json]:
    schemas = {each.name: each.schema for each in asked_in(question.schema)}
    content: dict[str, Json] = {}
    for field in fields:
        name, equals, text = field.partition("=")
        if not (name and equals):
            raise CommandError(f"{field!r} is no field; write name=value")
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
    raise CommandError(f"the form has no field {_listed(unknown)}; {fields}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(one_line(each) for each in names)


def _read(name: str, text: str, schema: Mapping[str, Json]) -> Json:
    """What was typed, as the type that the form has there. What does not fit is judged later, by the form."""
    match schema.get("type"):
        case "integer" | "number" | "array" | "object":
            return _number_or_document(name, text, str(schema.get("type")))
        case "boolean":
            if text.lower() not in YES | NO:
                raise CommandError(f"{one_line(name)} must be yes or no")
            return text.lower() in YES
        case _:
            return text


def _number_or_document(name: str, text: str, kind: str) -> Json:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise CommandError(f"{one_line(name)} must be of type {kind}, as JSON has it") from error


# In a terminal


def _prompt_answer(question: Question) -> Json:
    """Ask whoever sits there, field by field. Ctrl-C leaves the question open."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError("say the answer as name=value, with --value JSON, or --decline")
    if question.kind is not InputKind.ELICITATION:
        raise CommandError(
            f"{question.kind} is answered by a client; give its whole result with --value JSON"
        )
    print_message(one_line(question.message))
    if question.schema is None:
        return _prompt_external(question)
    content: dict[str, Json] = {}
    for each in asked_in(question.schema):
        value = _prompt_field(each)
        if value is not None:
            content[each.name] = value
    return {"action": "accept", "content": content}


def _prompt_external(question: Question) -> Json:
    """Something is to be done at an address, which the task learns of by itself."""
    url = question.params.get("url") if isinstance(question.params, dict) else None
    if isinstance(url, str):
        print_message(f"it is answered at {one_line(url)}")
    agreed = typer.confirm("agree?", err=True)
    return {"action": "accept"} if agreed else {"action": "decline"}


def _prompt_field(asked: Asked) -> Json:
    """A value that fits, or none where nothing was typed and nothing is needed."""
    usual = asked.schema.get("default")
    while True:
        text: str = typer.prompt(_label(asked), default="", show_default=False, err=True)
        if not text and (usual is not None or not asked.is_required):
            return usual
        try:
            value = _read(asked.name, text, asked.schema)
        except CommandError as error:
            print_message(str(error))
            continue
        if _is_choice(value, asked.schema):
            return value


def _is_choice(value: Json, schema: Mapping[str, Json]) -> bool:
    choices = schema.get("enum")
    if not isinstance(choices, list) or value in choices:
        return True
    print_message("choose one of these")
    return False


def _label(asked: Asked) -> str:
    schema = asked.schema
    title, told, choices = schema.get("title"), schema.get("description"), schema.get("enum")
    label = one_line(title if isinstance(title, str) else asked.name)
    if isinstance(told, str):
        label += f" ({one_line(told)})"
    if isinstance(choices, list):
        label += f" {[one_line(str(each)) for each in choices]}".replace("'", "")
    if schema.get("type") == "boolean":
        label += " [yes, no]"
    if (usual := schema.get("default")) is not None:
        return f"{label}, else {one_line(str(usual))}"
    return label if asked.is_required else f"{label}, may be empty"
