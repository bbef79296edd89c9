"""The options that the commands share, and how each of them is run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import anyio
import typer

from ...feeds import FeedSettings
from ..backends import load_settings
from ..errors import report_errors
from ..output import replace_unencodable

T = TypeVar("T")

feeds = typer.Typer(name="feeds", no_args_is_help=True)

SettingsOption = Annotated[
    Path | None,
    typer.Option("--settings", metavar="FILE", help="TOML or YAML; else feeds.toml or feeds.yaml, if here"),
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="log every step")]
AccountArgument = Annotated[str, typer.Argument(metavar="ACCOUNT", help="a handle or a DID")]
AccountsArgument = Annotated[list[str], typer.Argument(metavar="ACCOUNT", help="handles or DIDs")]
OptionalAccount = Annotated[str | None, typer.Argument(metavar="ACCOUNT", help="a handle or a DID")]
SinceOption = Annotated[
    str, typer.Option("--since", metavar="TIME", help="24h, 7d, 2026-11-01, 2026-11-01T08:30")
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="how many at most")]


@feeds.callback()
def feeds_callback() -> None:
    """Poll feeds without missing or repeating a post, and look at what was found."""
    replace_unencodable()


def done(file: Path | None, url: str | None, work: Callable[[FeedSettings], Awaitable[T]]) -> T:
    """Do it with the settings that were named. What cannot be done is told in one line."""
    with report_errors():
        return anyio.run(partial(work, load_settings(file, url)))
