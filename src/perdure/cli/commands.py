"""The command line, as typer sees it: names, options, and what is printed."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.logging import RichHandler

from ..runtime import App
from ..storage.errors import CannotOpen
from .loading import CannotLoad, load_app
from .worker import work

commands = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)
console = Console(stderr=True, highlight=False)


@commands.callback()
def perdure() -> None:
    """Long-running work of MCP servers that survives."""


@commands.command()
def worker(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="where the functions are registered")],
    *,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="log every step")] = False,
) -> None:
    """Run the tasks of an app, beside its server or alone, until SIGTERM."""
    _log_to_stderr(verbose=verbose)
    try:
        anyio.run(work, _useful(load_app(app)), _say)
    except (CannotLoad, CannotOpen) as error:
        _say(f"perdure: {error}")
        raise typer.Exit(2) from error
    _leave()


def _useful(app: App) -> App:
    """The app, if a worker can do anything for it."""
    if not app.functions:
        raise CannotLoad("the app has no functions; register them with @app.function in the module it is in")
    if app.url == "memory:":
        raise CannotLoad("the storage memory: is within one process, and nobody could give this one work")
    return app


def _log_to_stderr(*, verbose: bool) -> None:
    """In colour for people, a line each for files."""
    logging.basicConfig(
        format="%(message)s" if console.is_terminal else "%(asctime)s %(levelname)s %(message)s",
        handlers=[RichHandler(console=console, show_path=False)] if console.is_terminal else None,
    )
    logging.getLogger("perdure").setLevel(logging.DEBUG if verbose else logging.INFO)


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)


def _leave() -> None:
    """End the process, though an abandoned plain function may still be running in a thread."""
    if all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
