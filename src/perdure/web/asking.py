"""A form made from the JSON schema of a question, and the answer made from the form. Pure.

The schemas are those of the protocol's elicitation: an object whose properties are text, numbers, truth
values, choices, or lists of choices. Whatever else a schema holds is asked for as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, TypeAlias, cast

import msgspec
from starlette.datastructures import ImmutableMultiDict

from ..operating import Asked, asked_in
from ..tasks.codec import Json

Control: TypeAlias = Literal["text", "long", "number", "integer", "boolean", "choice", "choices", "json"]
Schema: TypeAlias = "Mapping[str, Json]"

PREFIX = "field."
LONG = 200
"""Letters from which on a text is asked for in a box of several lines."""
INPUT_TYPES = {"email": "email", "uri": "url", "date": "date"}


class Option(msgspec.Struct, frozen=True):
    posted: str
    label: str
    value: Json


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One control of a form."""

    name: str
    label: str
    description: str = ""
    control: Control
    required: bool = False
    default: str = ""
    chosen: tuple[str, ...] = ()
    """The choices that are ticked at first, as they are posted."""
    options: tuple[Option, ...] = ()
    input_type: str = "text"
    bounds: dict[str, str] = {}
    """Attributes of the control that hold what is typed within the schema's bounds."""

    @property
    def posted_as(self) -> str:
        return PREFIX + self.name


class NotAnAnswer(Exception):
    """What was filled in is none, by field."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {problem}" for name, problem in problems.items()))
        self.problems = dict(problems)


def fields_of(schema: Json) -> tuple[Field, ...]:
    """The controls of a schema."""
    return tuple(_field(each) for each in asked_in(schema))


def content_of(fields: tuple[Field, ...], form: ImmutableMultiDict[str, str]) -> dict[str, Json]:
    """What was filled in, each value of its type. What is optional and empty is left out."""
    content: dict[str, Json] = {}
    problems: dict[str, str] = {}
    for field in fields:
        try:
            value = _value(field, form.getlist(field.posted_as))
        except ValueError as error:
            problems[field.name] = str(error)
            continue
        if value is not None:
            content[field.name] = value
        elif field.required:
            problems[field.name] = "is needed"
    if problems:
        raise NotAnAnswer(problems)
    return content


def json_of(text: str) -> Json:
    try:
        return cast("Json", json.loads(text))
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def _field(asked: Asked) -> Field:
    schema = asked.schema
    options = _options(schema)
    control = _control(schema, options)
    return Field(
        name=asked.name,
        label=_text(schema.get("title")) or asked.name,
        description=_text(schema.get("description")),
        control=control,
        required=asked.is_required,
        default=_default(schema.get("default"), control),
        chosen=_chosen_at_first(schema.get("default"), control),
        options=options,
        input_type=INPUT_TYPES.get(_text(schema.get("format")), "text"),
        bounds=_bounds(schema, control),
    )


def _control(schema: Schema, options: tuple[Option, ...]) -> Control:
    match schema.get("type", "string"):
        case "array" if options:
            return "choices"
        case _ if options:
            return "choice"
        case "string":
            return "long" if _number(schema.get("maxLength"), 0) > LONG else "text"
        case "number" | "integer" | "boolean" as kind:
            return kind
        case _:
            return "json"


def _options(schema: Schema) -> tuple[Option, ...]:
    """Of `enum` (with or without names), of titled constants, or of the items of a list of either."""
    items = schema.get("items")
    if schema.get("type") == "array" and isinstance(items, dict):
        return _options(items)
    values, names = schema.get("enum"), schema.get("enumNames")
    if isinstance(values, list):
        labels = names if isinstance(names, list) and len(names) == len(values) else values
        return tuple(
            Option(_text(value), _text(name), value) for value, name in zip(values, labels, strict=True)
        )
    titled = schema.get("oneOf") or schema.get("anyOf")
    consts = [each for each in titled if isinstance(each, dict)] if isinstance(titled, list) else []
    return tuple(
        Option(_text(each["const"]), _text(each.get("title", each["const"])), each["const"])
        for each in consts
        if "const" in each
    )


def _bounds(schema: Schema, control: Control) -> dict[str, str]:
    names = {"minimum": "min", "maximum": "max"} if control in ("number", "integer") else {}
    if control in ("text", "long"):
        names = {"minLength": "minlength", "maxLength": "maxlength"}
    step = {"number": {"step": "any"}, "integer": {"step": "1"}}.get(control, {})
    return step | {html: _text(schema[key]) for key, html in names.items() if _is_number(schema.get(key))}


def _default(value: Json, control: Control) -> str:
    if value is None:
        return ""
    return json.dumps(value) if control == "json" else _text(value)


def _chosen_at_first(value: Json, control: Control) -> tuple[str, ...]:
    return tuple(map(_text, value)) if control == "choices" and isinstance(value, list) else ()


def _value(field: Field, given: list[str]) -> Json:
    """The value of a control; None where nothing was filled in."""
    if field.control == "choices":
        return [_chosen(field, each) for each in given] or ([] if field.required else None)
    text = given[0] if given else ""
    if field.control == "boolean":
        return text == "true"
    if not text.strip():
        return None
    match field.control:
        case "choice":
            return _chosen(field, text)
        case "integer" | "number":
            return _numeric(text, field.control)
        case "json":
            return json_of(text)
        case _:
            return text.replace("\r\n", "\n")  # as forms end their lines


def _chosen(field: Field, text: str) -> Json:
    for option in field.options:
        if option.posted == text:
            return option.value
    raise ValueError("is not one of the choices")


def _numeric(text: str, control: str) -> int | float:
    try:
        if control == "integer":
            return int(text)
        number = float(text)
    except ValueError as error:
        article = "an" if control == "integer" else "a"
        raise ValueError(f"must be {article} {control}") from error
    if number != number or abs(number) == float("inf"):
        raise ValueError("must be a number")
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _text(value: Json) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _is_number(value: Json) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Json, otherwise: float) -> float:
    return value if isinstance(value, (int, float)) else otherwise
