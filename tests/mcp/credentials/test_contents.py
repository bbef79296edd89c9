"""What a task contains is not in the text of its parts, which may be in logs and tracebacks."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from msgspec import Raw

from perdure.mcp.context import Credentials
from perdure.mcp.wire import StoredCall
from perdure.tasks import Failure, InputKind, InputRequest, LogEntry, NewTask, Success
from perdure.tasks.inputs import Input, InputError
from perdure.tasks.secret_contents import SecretContents
from perdure.tasks.task_log import Report

from ...markers import row

HIDDEN = "hidden"
QUOTED = Raw(f'"{HIDDEN}"'.encode())
MADE: list[Callable[[], SecretContents]] = [
    lambda: Credentials(token={"token": HIDDEN}, headers={"authorization": f"Bearer {HIDDEN}"}),
    lambda: Failure.of(-32000, HIDDEN, {"why": HIDDEN}),
    lambda: Input(
        kind=InputKind.ELICITATION,
        params_json=QUOTED,
        asked_at=1,
        answer_json=QUOTED,
        error=InputError(code=-1, message=HIDDEN),
    ),
    lambda: InputError(code=-1, message=HIDDEN),
    lambda: InputRequest(kind=InputKind.ELICITATION, params={"message": HIDDEN}),
    lambda: LogEntry(at=1, level="info", message=HIDDEN, logger=HIDDEN),
    lambda: NewTask(
        method="tools/call",
        params={"arguments": {"password": HIDDEN}},
        meta={"secret": HIDDEN},
        variables={"mine": HIDDEN},
        credentials={"token": HIDDEN},
    ),
    lambda: Report(done=1, message=HIDDEN),
    lambda: StoredCall("report", {"password": HIDDEN}, {"name": HIDDEN}, HIDDEN),
    lambda: Success.of({"text": HIDDEN}, error=HIDDEN, cause=HIDDEN),
]


@row(122, 123)
@pytest.mark.parametrize("make", MADE, ids=lambda make: type(make()).__name__)
def test_a_part_of_a_task_does_not_show_its_contents(make: Callable[[], SecretContents]) -> None:
    part = make()
    assert HIDDEN in msgspec.json.encode(part).decode()
    assert HIDDEN not in f"{part} {part!r}"
    assert f"{part}".startswith(f"{type(part).__name__}(")


def test_a_part_of_a_task_shows_what_identifies_it() -> None:
    assert repr(NewTask(method="tools/call", function="report")) == (
        "NewTask(method='tools/call', function='report', ...)"
    )
    assert repr(Success.of(1)) == "Success(...)"


def test_every_part_of_a_task_is_tested() -> None:
    assert {type(make()) for make in MADE} == set(SecretContents.__subclasses__())
