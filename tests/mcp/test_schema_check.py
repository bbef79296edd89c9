"""The judge of what servers send notices what is not as published."""

from __future__ import annotations

import pytest

from .raw_clients import Answer, Json
from .schema_check import Published

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("tasks/get", {"resultType": "complete", "taskId": "a", "status": "working"}),
        ("tasks/cancel", {"resultType": "complete", "taskId": "a"}),
        ("tasks/update", {"resultType": "task"}),
        ("tools/call", {"resultType": "task", "taskId": "a", "status": "working"}),
    ],
)
def test_the_judge_of_these_answers_notices_a_malformed_one(method: str, result: Json) -> None:
    published = Published()
    published.answer(method, {}, Answer(200, {"result": result}))

    assert len(published.wrongs()) == 1
