"""Builds the answer to a task's question from command-line arguments, or from prompts in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import typer

from ...operating import Question, TaskDetail
from ...operating.forms import FormField, form_fields, parse_field, parse_json, unknown_fields
from ...tasks import InputKind, Json
from ..errors import CommandError
from ..output import one_line, print_message


def choose_question(detail: TaskDetail, key: str | None) -> Question:
    found = [question for question in detail.questions if key in (None, question.key)]
    if len(found) == 1:
        return found[0]
    keys = _joined(question.key for question in detail.questions)
    problem = "several questions are open" if key is None else f"no open question has the key {key!r}"
    raise CommandError(f"{problem}; choose one with --key: {keys}")


def build_answer(
    question: Question, *, value: str | None = None, fields: Sequence[str] = (), decline: bool = False
) -> Json:
    """Return the answer as an MCP result of the right type. If no answer is given, prompt for one."""
    is_given = value is not None or bool(fields)
    if decline:
        return {"action": "decline"}
    if not is_given and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError("no answer given; use NAME=VALUE, --value JSON or --decline")
    if question.kind is not InputKind.ELICITATION:
        if value is None:
            raise CommandError(f"a {question.kind} question has no form; give the answer with --value JSON")
        return _parse_value(value)
    if not is_given:
        return _prompt_answer(question)
    content = _parse_fields(question, fields) if value is None else _parse_value(value)
    unknown = unknown_fields(question.schema, content) if isinstance(content, dict) else []
    if unknown:
        known = [field.name for field in form_fields(question.schema)]
        advice = f"its fields are {_joined(known)}" if known else "it has no fields"
        raise CommandError(f"the form has no field {_joined(unknown)}; {advice}")
    return {"action": "accept", "content": content}


def _joined(names: Iterable[str]) -> str:
    return ", ".join(one_line(each) for each in names)


def _parse_value(text: str) -> Json:
    try:
        return parse_json(text)
    except ValueError as error:
        raise CommandError(f'--value {error}; example: \'{{"name": "Ana"}}\'') from error


def _parse_fields(question: Question, fields: Sequence[str]) -> dict[str, Json]:
    """Parse NAME=VALUE arguments. A multi-select field may be given several times, once for each value."""
    texts: dict[str, list[str]] = {}
    for field in fields:
        name, equals, text = field.partition("=")
        if not (name and equals):
            raise CommandError(f"invalid field {field!r}; use NAME=VALUE")
        texts.setdefault(name, []).append(text)
    known = {field.name: field for field in form_fields(question.schema)}
    return {
        name: _parse_field(known.get(name) or FormField(name, {}, is_required=False), given)
        for name, given in texts.items()
    }


def _parse_field(field: FormField, texts: Sequence[str]) -> Json:
    name = one_line(field.name)
    if len(texts) > 1 and field.control != "multiselect":
        raise CommandError(f"{name} is given {len(texts)} times; give it only once")
    if field.control in ("text", "textarea"):
        return texts[0]
    try:
        value = parse_field(field, texts)
    except ValueError as error:
        raise CommandError(f"{name} {error}") from error
    if value is None or not any(texts):  # only in a browser, no text means an unchecked box
        raise CommandError(f"{name} is required; give a value")
    return value


def _prompt_answer(question: Question) -> Json:
    """Prompt for each form field, or for consent if there is no form. Ctrl+C leaves the question open."""
    print_message(one_line(question.message))
    if question.schema is None:
        if question.external_url is not None:
            print_message(f"Complete this step at {one_line(question.external_url)}")
        return {"action": "accept" if typer.confirm("Accept?", err=True) else "decline"}
    values = {field.name: _prompt_field(field) for field in form_fields(question.schema)}
    return {"action": "accept", "content": {name: each for name, each in values.items() if each is not None}}


def _prompt_field(field: FormField) -> Json:
    """Prompt until the input is valid. Empty input selects the default, or None for an optional field."""
    while True:
        text: str = typer.prompt(_label(field), default="", show_default=False, err=True)
        if not text and (field.default is not None or not field.is_required):
            return field.default
        texts = [each.strip() for each in text.split(",")] if field.control == "multiselect" else [text]
        try:
            return _parse_field(field, texts)
        except CommandError as error:
            print_message(str(error))


def _label(field: FormField) -> str:
    label = one_line(field.label)
    if field.description:
        label += f" ({one_line(field.description)})"
    if field.choices:
        labels = (
            each.key if each.key == each.label else f"{each.key} ({each.label})" for each in field.choices
        )
        label += f" [{_joined(labels)}]"
    if field.control == "boolean":
        label += " [yes, no]"
    if field.default is not None:
        return f"{label} [default: {one_line(field.default_text)}]"
    return label if field.is_required else f"{label} (optional)"
