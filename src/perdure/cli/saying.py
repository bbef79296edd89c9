"""Diagnostics: progress, warnings, hints and errors, on standard error and in plain sentences.

Results go to standard output: see `telling.tell`.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import typer
from rich.console import Console
from rich.logging import RichHandler

from ..storage.errors import PerdureError
from .errors import CannotDo, Expected, code_of
from .output import harmless, obeyed_by_none

console = Console(stderr=True, highlight=False, emoji=False)


def say(text: str) -> None:
    """Print a diagnostic. Control characters in it do nothing to a terminal."""
    console.print(obeyed_by_none(text), soft_wrap=True, markup=False)


@contextmanager
def told() -> Generator[None]:
    """What could not be done, in one line, and the code that says whose turn it is: see `ending`."""
    try:
        yield
    except (CannotDo, PerdureError, ExceptionGroup) as error:
        reason = _reason_of(error)
        if reason is None:
            raise
        say(f"perdure: {sentence_of(reason)}")
        raise typer.Exit(code_of(reason)) from error


def _reason_of(error: Exception) -> Expected | None:
    """The error that is to be told. Of several that came together, from a group of tasks, the first."""
    if not isinstance(error, ExceptionGroup):
        return error if isinstance(error, Expected) else None
    group = cast("ExceptionGroup[Exception]", error)
    reasons = [_reason_of(each) for each in group.exceptions]
    return None if None in reasons else reasons[0]


def sentence_of(error: Expected) -> str:
    """What is wrong, and what to do about it."""
    if isinstance(error, CannotDo):  # our own words, which may go on with the lines where a module failed
        return str(error)
    return f"{harmless(str(error))}{'; try again in a while' if error.retryable else ''}"


class _Plain(logging.Formatter):
    """Lines of the log, in which what others wrote does nothing to a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return obeyed_by_none(super().format(record))


def log_to_stderr(*, verbose: bool) -> None:
    """In colour for people, a line each for files."""
    people = console.is_terminal
    handler = RichHandler(console=console, show_path=False) if people else logging.StreamHandler()
    handler.setFormatter(_Plain("%(message)s" if people else "%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("perdure").setLevel(logging.DEBUG if verbose else logging.INFO)
