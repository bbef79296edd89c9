"""With what a command ends, and what it says then, whatever went wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from perdure.cli.errors import CommandError, exit_code, report_errors
from perdure.cli.output import configure_logging, print_message
from perdure.feeds.errors import (
    AccountUnavailable,
    AmbiguousHandle,
    AuthenticationFailed,
    InvalidActor,
    PollInProgress,
    RateLimited,
    SourceUnavailable,
    UnknownAccount,
)
from perdure.operating import AmbiguousId, IdTooShort, NoOpenQuestion
from perdure.runtime import QueueFull
from perdure.storage.errors import (
    CannotOpen,
    NewerFormat,
    OutcomeUnknown,
    PerdureError,
    StorageBusy,
    StorageCorrupt,
    StorageFailed,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)
from perdure.tasks.errors import (
    ConcurrentModification,
    CorruptRecord,
    InvalidCursor,
    KeyMissing,
    LimitExceeded,
    MalformedAnswer,
    NotFound,
    TerminalTask,
)

from .command import HOSTILE

ASKED_WRONGLY = [
    CommandError("use the form module:app"),
    CannotOpen("there", "it is not ours", "name another"),
    StorageReadOnly("read-only"),
    StorageFull("full"),
    StorageCorrupt("damaged"),
    NotFound(),
    IdTooShort(6),
    AmbiguousId("abcdef", ["abcdef0", "abcdef1"]),
    InvalidCursor(),
    MalformedAnswer("name", "green is no colour"),
    LimitExceeded("answer", 1, 2),
    CorruptRecord("id", "no JSON"),
    UnknownAccount("who.test"),
    AmbiguousHandle("who.test", ["did:a", "did:b"]),
    InvalidActor("impossible"),
    AuthenticationFailed("wrong password"),
]
NOT_NOW = [
    StorageFailed("the disk"),
    OutcomeUnknown("the line broke"),
    TerminalTask("completed", "cancelled"),
    NoOpenQuestion("name", []),
    AccountUnavailable("deactivated"),
    NewerFormat("id", "the format is 9"),
    KeyMissing("id", "abcd"),
]
TRY_AGAIN = [
    StorageBusy("others write"),
    StorageUnavailable("no server"),
    ConcurrentModification(1, 2),
    QueueFull(9),
    PollInProgress("who.test", "another"),
    SourceUnavailable("no answer"),
    RateLimited(None),
]


def output_of(error: Exception, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The code, and what stands on standard error; nothing on standard output."""
    with pytest.raises(SystemExit) as ended, report_errors():
        raise error
    heard = capsys.readouterr()
    assert heard.out == ""
    assert isinstance(ended.value.code, int)
    return ended.value.code, heard.err


def name_of(error: Exception) -> str:
    return type(error).__name__


@pytest.mark.parametrize("error", ASKED_WRONGLY, ids=name_of)
def test_what_cannot_be_done_as_it_was_asked_for_ends_with_2(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    code, message = output_of(error, capsys)
    assert code == 2
    assert message.startswith(f"perdure: {error}")
    assert "try again" not in message


@pytest.mark.parametrize("error", NOT_NOW, ids=name_of)
def test_what_did_not_succeed_ends_with_1(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert output_of(error, capsys) == (1, f"perdure: {error}\n")


@pytest.mark.parametrize("error", TRY_AGAIN, ids=name_of)
def test_what_may_succeed_later_ends_with_1_and_says_so(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    code, message = output_of(error, capsys)
    assert (code, message.count("try again later\n")) == (1, 1)
    advice = ("; check the host and port of the storage, or try again later\n", "; try again later\n")
    suffix = advice[0] if isinstance(error, StorageUnavailable) else advice[1]
    assert message.removesuffix(suffix) == f"perdure: {error}".removesuffix("; try again later")


def below(kind: type[PerdureError]) -> Iterator[type[PerdureError]]:
    for each in kind.__subclasses__():
        yield each
        yield from below(each)


KINDS = {str(kind): kind for kind in below(PerdureError) if kind.__module__.startswith("perdure.")}


@pytest.mark.parametrize("kind", [KINDS[name] for name in sorted(KINDS)])
def test_every_error_of_perdure_is_one_sentence_and_no_trace(
    kind: type[PerdureError], capsys: pytest.CaptureFixture[str]
) -> None:
    error = kind.__new__(kind)
    error.args = ("the reason\nin two lines",)
    code, message = output_of(error, capsys)
    assert code == exit_code(error) == (1 if kind.retryable else code)
    assert message.startswith("perdure: the reason in two lines")
    assert message.count("\n") == 1


def test_an_error_in_a_group_of_tasks_is_reported_like_any_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("one", [StorageBusy("others write")]), NotFound()])
    assert output_of(group, capsys) == (1, "perdure: others write; try again later\n")


@pytest.mark.parametrize("error", [ValueError("ours"), ExceptionGroup("two", [NotFound(), ValueError()])])
def test_a_mistake_of_our_own_is_shown_in_full(error: Exception) -> None:
    with pytest.raises(type(error)), report_errors():
        raise error


@pytest.mark.parametrize(
    "error", [StorageFailed(f"x{HOSTILE}"), SourceUnavailable(f"x{HOSTILE}"), CommandError(f"x{HOSTILE}")]
)
def test_a_terminal_obeys_nothing_that_others_wrote_into_an_error(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    _, message = output_of(error, capsys)
    assert message.rstrip("\n").isprintable()


def test_a_terminal_obeys_nothing_that_others_wrote_and_lines_stay_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_message(f"first{HOSTILE}\n    second\r\x1b[2J")
    assert capsys.readouterr().err == "first]0;owned31m\n    second[2J\n"


def test_a_terminal_obeys_nothing_that_others_wrote_into_a_line_of_the_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], logging.getLogger("perdure").level
    root.handlers = []
    try:
        configure_logging(verbose=False)
        logging.getLogger("perdure").warning("it says %s", HOSTILE)
    finally:
        root.handlers = before
        logging.getLogger("perdure").setLevel(level)
    heard = capsys.readouterr().err
    assert heard.endswith("WARNING it says ]0;owned31m\n")
