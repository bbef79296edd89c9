"""Fields of a form come from its schema, and what is filled in has the types of the schema."""

from __future__ import annotations

import pytest

from perdure.operating.forms import FormField, InvalidAnswer, form_fields, parse_form
from perdure.tasks import Json
from perdure.web.forms import input_attributes


def only(schema: dict[str, Json], *, required: bool = False) -> FormField:
    (field,) = form_fields({"properties": {"x": schema}, "required": ["x"] if required else []})
    return field


def filled(field: FormField, *texts: str) -> dict[str, Json]:
    return parse_form((field,), {field.name: texts})


def test_the_default_choices_of_a_list_are_selected() -> None:
    field = only({"type": "array", "items": {"enum": ["a", "b", "c"]}, "default": ["a", "c"]})
    assert (field.control, field.default_keys) == ("multiselect", ("a", "c"))


@pytest.mark.parametrize("required", [None, "x", [["x"], {"x": 1}, 1, None], [[]]])
def test_an_invalid_list_of_required_fields_requires_nothing(required: Json) -> None:
    (field,) = form_fields({"properties": {"x": {"type": "string"}}, "required": required})
    assert not field.is_required


def test_json_that_is_nested_too_deeply_is_refused_in_words() -> None:
    with pytest.raises(InvalidAnswer, match="nested too deeply"):
        filled(only({"type": "object"}), "[" * 200_000)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "Ana", "Ana"),
        ({}, "Ana", "Ana"),
        ({"type": "integer"}, "12", 12),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "number"}, "2", 2),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, "no", False),
        ({"type": "string", "enum": ["a", "b"]}, "b", "b"),
        ({"enum": [1, 2]}, "2", 2),
        ({"oneOf": [{"const": "r", "title": "Red"}]}, "r", "r"),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
    ],
)
def test_each_control_gives_a_value_of_its_type(schema: dict[str, Json], text: str, value: Json) -> None:
    content = filled(only(schema), text)
    assert content == {"x": value}
    assert type(content["x"]) is type(value)


def test_several_may_be_chosen_of_a_list_of_choices() -> None:
    field = only({"type": "array", "items": {"enum": ["a", "b", "c"]}})
    assert filled(field, "a", "c") == {"x": ["a", "c"]}


def test_what_is_optional_and_empty_is_left_out() -> None:
    assert filled(only({"type": "string"}), "") == {}
    assert filled(only({"type": "integer"})) == {}


def test_a_checkbox_that_is_not_ticked_is_false() -> None:
    assert filled(only({"type": "boolean"})) == {"x": False}


@pytest.mark.parametrize(
    ("schema", "text", "problem"),
    [
        ({"type": "string"}, " ", "is required"),
        ({"type": "integer"}, "1.5", "must be an integer"),
        ({"type": "number"}, "nan", "must be a finite number"),
        ({"type": "number"}, "many", "must be a number"),
        ({"type": "boolean"}, "maybe", "must be yes or no"),
        ({"enum": ["a"]}, "b", "is not one of the choices"),
    ],
)
def test_an_invalid_value_is_reported_by_its_field(schema: dict[str, Json], text: str, problem: str) -> None:
    with pytest.raises(InvalidAnswer) as caught:
        filled(only(schema, required=True), text)
    assert caught.value.problems == {"x": problem}


def test_required_fields_come_first_in_the_order_of_their_list() -> None:
    schema: Json = {"properties": {"a": {}, "b": {}, "c": {}}, "required": ["c", "b"]}
    assert [(field.name, field.is_required) for field in form_fields(schema)] == [
        ("c", True),
        ("b", True),
        ("a", False),
    ]


def test_a_field_has_the_texts_and_bounds_of_its_schema() -> None:
    field = only(
        {"type": "integer", "title": "Copies", "description": "How many", "default": 3, "minimum": 1}
    )
    assert (field.label, field.description, field.default_text) == ("Copies", "How many", "3")
    assert input_attributes(field) == {"step": "1", "min": "1"}


@pytest.mark.parametrize("schema", [None, [], "x", {"properties": []}, {"properties": {"x": None}}])
def test_an_invalid_schema_makes_a_form_all_the_same(schema: Json) -> None:
    form_fields(schema)
