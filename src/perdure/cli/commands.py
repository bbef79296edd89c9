"""The command line, as typer sees it: names, options, and what is printed."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.logging import RichHandler

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
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(message)s",
        handlers=[RichHandler(console=console, show_path=False)],
    )
    try:
        anyio.run(work, load_app(app), console.print)
    except (CannotLoad, CannotOpen) as error:
        console.print(f"perdure: {error}")
        raise typer.Exit(2) from error
    _leave()


def _leave() -> None:
    """End the process, though an abandoned plain function may still be running in a thread."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
