"""Finds the form fields in a JSON schema, and parses the values that users enter.

The dashboard and the terminal each render the fields in their own way. The schemas are those of MCP
elicitation: an object whose properties are strings, numbers, booleans, choices or lists of choices. Any other
property is entered as JSON. `tasks.form_validation` checks the complete answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Literal, TypeAlias, TypeGuard, cast

import msgspec

from ..tasks import Json

Control: TypeAlias = Literal[
    "text", "textarea", "number", "integer", "boolean", "select", "multiselect", "json"
]
Schema: TypeAlias = "Mapping[str, Json]"

MULTILINE_LENGTH = 200
"""A string field gets a multi-line input if its `maxLength` is greater than this."""
MAX_EXACT_INTEGER = 2**53
"""Below this number, a float can represent every integer exactly."""
COMPOSING_KEYWORDS = frozenset({"patternProperties", "$ref", "allOf", "anyOf", "oneOf", "if"})
"""Keywords with which a schema can define fields that are not listed in its `properties`."""
TRUE_WORDS = frozenset({"true", "yes", "y", "1"})
FALSE_WORDS = frozenset({"false", "no", "n", "0", ""})


class Choice(msgspec.Struct, frozen=True):
    """One of the values that the user can choose for a field."""

    key: str
    """The string that represents the value in a submitted form."""
    label: str
    value: Json


class FormField(msgspec.Struct, frozen=True):
    """A field of a form, with the JSON schema of its value."""

    name: str
    schema: dict[str, Json]
    is_required: bool

    @property
    def label(self) -> str:
        return _text(self.schema.get("title")) or self.name

    @property
    def description(self) -> str:
        return _text(self.schema.get("description"))

    @property
    def control(self) -> Control:
        """The kind of input control that the field needs."""
        match self.schema.get("type", "string"):
            case "array" if self.choices:
                return "multiselect"
            case _ if self.choices:
                return "select"
            case "string":
                length = self.schema.get("maxLength")
                return "textarea" if is_number(length) and length > MULTILINE_LENGTH else "text"
            case "number" | "integer" | "boolean" as kind:
                return kind
            case _:
                return "json"

    @property
    def choices(self) -> tuple[Choice, ...]:
        return _choices(self.schema)

    @property
    def default(self) -> Json:
        return self.schema.get("default")

    @property
    def default_text(self) -> str:
        if self.control == "json" and self.default is not None:
            return json.dumps(self.default)
        return _text(self.default)

    @property
    def default_keys(self) -> tuple[str, ...]:
        """The keys of the choices that are selected by default."""
        values = self.default
        return tuple(map(_text, values)) if self.control == "multiselect" and isinstance(values, list) else ()


class InvalidAnswer(Exception):
    """Raised when a form has invalid values. `problems` maps the name of each invalid field to a reason."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {problem}" for name, problem in problems.items()))
        self.problems = dict(problems)


def form_fields(schema: Json) -> tuple[FormField, ...]:
    """Return the fields of a form: first the required ones in the order of `required`, then the others."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(schema, dict) or not isinstance(properties, dict):
        return ()
    listed = schema.get("required")
    required = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    names = dict.fromkeys([*(name for name in required if name in properties), *properties])
    return tuple(
        FormField(name, each if isinstance(each := properties[name], dict) else {}, name in required)
        for name in names
    )


def unknown_fields(schema: Schema | None, names: Iterable[str]) -> list[str]:
    """Return the names that are not fields of the form, and are therefore probably misspelled.

    JSON Schema allows additional properties by default. Here, any name that is not in `properties` is
    unknown, unless the schema explicitly allows additional properties or has keywords that can add fields.
    """
    schema = schema or {}
    if schema.get("additionalProperties") or not schema.keys().isdisjoint(COMPOSING_KEYWORDS):
        return []
    known = {field.name for field in form_fields(dict(schema))}
    return [name for name in names if name not in known]


def parse_form(fields: Iterable[FormField], texts: Mapping[str, Sequence[str]]) -> dict[str, Json]:
    """Return the values of a submitted form. `texts` maps each field name to the strings that were entered.

    Optional fields without a value are omitted. Raise InvalidAnswer if a value is invalid or missing.
    """
    content: dict[str, Json] = {}
    problems: dict[str, str] = {}
    for field in fields:
        try:
            value = parse_field(field, texts.get(field.name, ()))
        except ValueError as error:
            problems[field.name] = str(error)
            continue
        if value is not None:
            content[field.name] = value
        elif field.is_required:
            problems[field.name] = "is required"
    if problems:
        raise InvalidAnswer(problems)
    return content


def parse_field(field: FormField, texts: Sequence[str]) -> Json:
    """Return the value entered in a field, or None if it is empty. Only a multi-select has several `texts`.

    An empty boolean is False, and an empty required multi-select is `[]`. Raise ValueError if the value is
    invalid.
    """
    if field.control == "multiselect":
        return [_parse_choice(field, each) for each in texts] or ([] if field.is_required else None)
    text = texts[0] if texts else ""
    if field.control == "boolean":
        return _parse_boolean(text)
    if not text.strip():
        return None
    match field.control:
        case "select":
            return _parse_choice(field, text)
        case "integer" | "number":
            return _parse_number(text, field.control)
        case "json":
            return parse_json(text)
        case _:
            return text.replace("\r\n", "\n")  # browsers send \r\n at the end of a line


def parse_json(text: str) -> Json:
    """Parse a JSON document. Raise ValueError if it is invalid or nested too deeply."""
    try:
        return cast("Json", json.loads(text))
    except ValueError as error:
        raise ValueError(f"is not valid JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def is_number(value: Json) -> TypeGuard[int | float]:
    """Return whether a JSON value is a number. A boolean is not, although it is an `int` in Python."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _choices(schema: Schema) -> tuple[Choice, ...]:
    """Return the choices in a schema: the values in its `enum`, or the constants in its `oneOf` or `anyOf`.

    The labels are the `enumNames`, or the titles of the constants. For a list, return the choices of its
    items.
    """
    items = schema.get("items")
    if schema.get("type") == "array" and isinstance(items, dict):
        return _choices(items)
    values, names = schema.get("enum"), schema.get("enumNames")
    if isinstance(values, list):
        labels = names if isinstance(names, list) and len(names) == len(values) else values
        return tuple(
            Choice(_text(value), _text(name), value) for value, name in zip(values, labels, strict=True)
        )
    titled = schema.get("oneOf") or schema.get("anyOf")
    constants = [each for each in titled if isinstance(each, dict)] if isinstance(titled, list) else []
    return tuple(
        Choice(_text(each["const"]), _text(each.get("title", each["const"])), each["const"])
        for each in constants
        if "const" in each
    )


def _parse_choice(field: FormField, text: str) -> Json:
    for choice in field.choices:
        if choice.key == text:
            return choice.value
    raise ValueError("is not one of the choices")


def _parse_boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in TRUE_WORDS | FALSE_WORDS:
        raise ValueError("must be yes or no")
    return word in TRUE_WORDS


def _parse_number(text: str, control: str) -> int | float:
    try:
        if control == "integer":
            return int(text)
        number = float(text)
    except ValueError as error:
        article = "an" if control == "integer" else "a"
        raise ValueError(f"must be {article} {control}") from error
    if not isfinite(number):
        raise ValueError("must be a finite number")
    return int(number) if number.is_integer() and abs(number) < MAX_EXACT_INTEGER else number


def _text(value: Json) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
