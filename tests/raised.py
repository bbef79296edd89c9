"""Records which errors of perdure the tests raised, for row 100 of the parity list.

An exception that was raised keeps its traceback until it is deleted. So a hook on deletion sees every error
that was raised, and by which code, without a reference to any of them.
"""

from __future__ import annotations

import json
import pkgutil
from importlib import import_module
from pathlib import Path
from types import TracebackType

import perdure
from perdure.storage.errors import PerdureError

SOURCES = str(Path(perdure.__file__).parent)
BASES = {
    "PerdureError",
    "StorageError",
    "NotReadableHere",
    "TaskError",
    "RunError",
    "ClientTaskError",
    "FeedError",
    "SourceError",
}
"""Base classes that are never raised themselves."""

KEY = "perdure/raised"
"""The key of the last whole run's errors in pytest's cache."""
RECORD = Path(__file__).parents[1] / ".pytest_cache" / "v" / KEY

RAISED_BY_USERS = {"Retry"}
"""Errors that functions of users raise, to be retried. Here the tests are the users."""

raised: set[str] = set()


def record() -> None:
    """Start to record the errors that perdure's code raises in this process."""
    PerdureError.__del__ = _note  # pyright: ignore[reportAttributeAccessIssue]


def _note(error: PerdureError) -> None:
    if error.__traceback__ is None:
        return
    is_for_users = type(error).__name__ in RAISED_BY_USERS
    if is_for_users or _origin(error.__traceback__).startswith(SOURCES):
        raised.add(_name(type(error)))


def _origin(trace: TracebackType) -> str:
    """Return the file that raised the error."""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename


def every_error() -> list[type[PerdureError]]:
    """Return every error class of perdure, except base classes."""
    for module in pkgutil.walk_packages(perdure.__path__, "perdure."):
        if module.name.rpartition(".")[2] == "errors":
            import_module(module.name)
    found, left = list[type[PerdureError]](), [PerdureError]
    while left:
        error = left.pop()
        left += error.__subclasses__()
        if error.__module__.startswith("perdure.") and error.__name__ not in BASES:
            found.append(error)
    return sorted(found, key=_name)


def _name(error: type[PerdureError]) -> str:
    return f"{error.__module__}.{error.__qualname__}"


def missing(seen: set[str]) -> list[str]:
    """Return the errors that were never raised."""
    return [name for name in map(_name, every_error()) if name not in seen]


def recorded() -> set[str] | None:
    """Return the errors that the last whole run raised, or None if there was none."""
    return set(json.loads(RECORD.read_text("utf-8"))) if RECORD.exists() else None
