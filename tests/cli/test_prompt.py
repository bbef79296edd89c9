"""Which fields an answer from the command line may have."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from perdure.cli.errors import CommandError
from perdure.cli.tasks.prompt import build_answer
from perdure.operating import Question
from perdure.tasks import InputKind, Json

NAME: dict[str, Json] = {"name": {"type": "string"}}
FIELDS = ("name=Ada", "nosuch=1")


def question(schema: Mapping[str, Json] | None) -> Question:
    return Question(
        key="k",
        kind=InputKind.ELICITATION,
        message="",
        schema=None if schema is None else dict(schema),
        params={},
        asked_at=0,
    )


@pytest.mark.parametrize(
    ("schema", "known"),
    [
        ({"type": "object", "properties": NAME}, "its fields are name"),
        (
            {"type": "object", "properties": NAME, "additionalProperties": False},
            "its fields are name",
        ),
        ({"type": "object"}, "it has no fields"),
        (None, "it has no fields"),
    ],
)
def test_a_field_that_the_form_does_not_have_is_refused(
    schema: Mapping[str, Json] | None, known: str
) -> None:
    for fields, value in ((("nosuch=1",), None), ((), '{"nosuch": 1}')):
        with pytest.raises(CommandError) as refused:
            build_answer(question(schema), fields=fields, value=value)
        assert str(refused.value) == f"the form has no field nosuch; {known}"


OPEN: list[dict[str, Json]] = [
    {"type": "object", "properties": NAME, "additionalProperties": True},
    {"type": "object", "properties": NAME, "additionalProperties": {"type": "string"}},
    {"type": "object", "properties": NAME, "patternProperties": {"^no": {}}},
    {"allOf": [{"properties": NAME}, {"properties": {"nosuch": {}}}]},
]


@pytest.mark.parametrize("schema", OPEN)
def test_a_form_that_allows_further_fields_gets_them(schema: Mapping[str, Json]) -> None:
    answer = build_answer(question(schema), fields=FIELDS)
    assert answer == {"action": "accept", "content": {"name": "Ada", "nosuch": "1"}}
