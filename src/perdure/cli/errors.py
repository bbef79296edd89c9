"""The errors that commands report, and the exit codes of the `perdure` command.

0   success.
1   failure: the storage or the feed source is unavailable, a task or an account is in the wrong state, a
    watched task did not complete, or a check found a problem. The same command may succeed later.
2   usage error: the command fails until you change its arguments, the settings or the storage.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeAlias, cast

from ..feeds import errors as feeds
from ..operating.errors import AmbiguousId, IdTooShort, MaintenanceError
from ..runtime.startup_error import with_advice
from ..storage.errors import PerdureError, StorageError, StorageFailed
from ..tasks.errors import CorruptRecord, InvalidCursor, InvalidValue, MalformedAnswer, NotFound
from .output import one_line, print_message


class CommandError(Exception):
    """Raised when a command cannot do its work. The message is shown to the user unchanged."""

    retryable = False


ReportedError: TypeAlias = CommandError | PerdureError
"""Exceptions that are reported without a traceback. All other exceptions are printed with a traceback."""

_USAGE_ERRORS = (
    *(CommandError, MaintenanceError, StorageError),
    *(AmbiguousId, CorruptRecord, IdTooShort, InvalidCursor, InvalidValue, MalformedAnswer, NotFound),
    *(feeds.AmbiguousHandle, feeds.CorruptFeedRecord, feeds.InvalidSettings, feeds.UnknownAccount),
    *(feeds.AuthenticationFailed, feeds.EmptyFollowList, feeds.InvalidActor),
)


def exit_code(error: ReportedError) -> int:
    # A failure that may go away by itself is not a usage error, even if its class is listed above.
    is_temporary = error.retryable or isinstance(error, StorageFailed)
    return 2 if isinstance(error, _USAGE_ERRORS) and not is_temporary else 1


@contextmanager
def report_errors() -> Generator[None]:
    """Print a `ReportedError` that the `with` block raises, and exit. Let other exceptions propagate."""
    try:
        yield
    except (CommandError, PerdureError, ExceptionGroup) as error:
        reported = _first_reported(error)
        if reported is None:
            raise
        print_message(f"perdure: {error_message(reported)}")
        raise SystemExit(exit_code(reported)) from error


def _first_reported(error: Exception) -> ReportedError | None:
    """Return the first `ReportedError` in `error`, or None if `error` is or contains any other exception."""
    if isinstance(error, ExceptionGroup):
        group = cast("ExceptionGroup[Exception]", error)
        reported = [_first_reported(each) for each in group.exceptions]
        return None if None in reported else reported[0]
    return error if isinstance(error, ReportedError) else None


def error_message(error: ReportedError) -> str:
    """Return the message to print. It is a single line unless `error` is a `CommandError`."""
    if isinstance(error, CommandError):
        return str(error)
    return one_line(with_advice(error))
