"""What every command says to people: on standard error, in plain sentences, and never as a stack trace."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.logging import RichHandler

from ..feeds.errors import CorruptFeed, FeedError, InvalidSettings, NotAuthorized, UnknownAccount
from ..storage.errors import StorageError

console = Console(stderr=True, highlight=False, emoji=False)


class CannotDo(Exception):
    """Something that cannot be done as it was asked for. The message says what to do."""


def say(text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)


_ASKED_WRONG = (CannotDo, StorageError, InvalidSettings, UnknownAccount, CorruptFeed)
"""Until somebody changes the command, the settings or the storage, it stays so."""


@contextmanager
def told() -> Generator[None]:
    """What could not be done, in one line."""
    try:
        yield
    except NotAuthorized as error:
        say(f"perdure: {error}; check bluesky.identifier in the settings, and its app password")
        raise typer.Exit(2) from error
    except _ASKED_WRONG as error:
        say(f"perdure: {error}")
        raise typer.Exit(2) from error
    except FeedError as error:
        say(f"perdure: {error}{'; try again in a while' if error.retryable else ''}")
        raise typer.Exit(1) from error


def log_to_stderr(*, verbose: bool) -> None:
    """In colour for people, a line each for files."""
    logging.basicConfig(
        format="%(message)s" if console.is_terminal else "%(asctime)s %(levelname)s %(message)s",
        handlers=[RichHandler(console=console, show_path=False)] if console.is_terminal else None,
    )
    logging.getLogger("perdure").setLevel(logging.DEBUG if verbose else logging.INFO)
