"""Errors of commands, and their exit codes.

0   success.
1   failure: the storage or the source is unavailable, a task or an account is in the wrong state, or a check
    found a problem. The same command can succeed later.
2   wrong usage: the command, the settings or the storage must change first.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeAlias, cast

from ..feeds import errors as feeds
from ..operating.errors import AmbiguousId, IdTooShort, MaintenanceError
from ..storage.errors import PerdureError, StorageError, StorageFailed
from ..tasks.errors import CorruptRecord, InvalidCursor, InvalidValue, MalformedAnswer, NotFound
from .output import one_line, print_message


class CommandError(Exception):
    """Raised when a command cannot do what it was asked to do. The message includes the remedy."""

    retryable = False


ReportedError: TypeAlias = CommandError | PerdureError
"""Errors that a command reports in one line. All others are defects, and print a traceback."""

_USAGE_ERRORS = (
    *(CommandError, MaintenanceError, StorageError),
    *(AmbiguousId, CorruptRecord, IdTooShort, InvalidCursor, InvalidValue, MalformedAnswer, NotFound),
    *(feeds.AmbiguousHandle, feeds.CorruptFeedRecord, feeds.InvalidSettings, feeds.UnknownAccount),
    *(feeds.AuthenticationFailed, feeds.EmptyFollowList, feeds.InvalidActor),
)


def exit_code(error: ReportedError) -> int:
    # A retryable error, or one of the engine itself, is not a usage error, whatever its class.
    is_temporary = error.retryable or isinstance(error, StorageFailed)
    return 2 if isinstance(error, _USAGE_ERRORS) and not is_temporary else 1


@contextmanager
def report_errors() -> Generator[None]:
    """Print an expected error in one line, and exit with its code."""
    try:
        yield
    except (CommandError, PerdureError, ExceptionGroup) as error:
        reported = _first_reported(error)
        if reported is None:
            raise
        print_message(f"perdure: {error_message(reported)}")
        raise SystemExit(exit_code(reported)) from error


def _first_reported(error: Exception) -> ReportedError | None:
    """Return the error, or the first error of a group. Return None if any of them is a defect."""
    if isinstance(error, ExceptionGroup):
        group = cast("ExceptionGroup[Exception]", error)
        reported = [_first_reported(each) for each in group.exceptions]
        return None if None in reported else reported[0]
    return error if isinstance(error, ReportedError) else None


def error_message(error: ReportedError) -> str:
    """Return what is wrong and what to do, on one line unless it quotes a traceback."""
    if isinstance(error, CommandError):
        return str(error)
    message = one_line(str(error))
    return f"{message}; try again later" if error.retryable and "try again" not in message else message
