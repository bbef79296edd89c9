"""Checks a submitted form against the JSON schema of its question."""

from __future__ import annotations

from collections.abc import Mapping

from jsonschema import Draft202012Validator, validate
from jsonschema.exceptions import SchemaError, ValidationError
from referencing.exceptions import Unresolvable

from .canonical_json import JsonLike
from .errors import MalformedAnswer
from .inputs import Input, InputKind

MAX_REASON_CHARACTERS = 200
"""Longer reasons are cut to this length, because a reason can quote long input from the client."""


def check_form(key: str, asked: Input, answer: JsonLike) -> None:
    """Raise MalformedAnswer if `answer` is a submitted form that does not match the schema of the question.

    `key` is the key of the question, which the error names.
    """
    if asked.kind is not InputKind.ELICITATION or not isinstance(answer, Mapping):
        return
    params = asked.params
    schema = params.get("requestedSchema") if isinstance(params, dict) else None
    if answer.get("action") != "accept" or not isinstance(schema, dict):
        return
    try:
        validate(answer.get("content") or {}, schema, Draft202012Validator)
    except ValidationError as error:
        where = "/".join(str(each) for each in error.absolute_path)
        reason = f"{where}: {error.message}" if where else error.message
        raise MalformedAnswer(key, reason[:MAX_REASON_CHARACTERS]) from error
    except (SchemaError, Unresolvable, RecursionError):
        return  # the schema, which comes from the tool, cannot be used, so every answer is accepted
