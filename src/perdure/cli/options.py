"""The options that several families of commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from .errors import CannotDo

DEFAULT_URL = "sqlite:///perdure.db"
"""The storage of every command, unless an option, a variable or a settings file names another."""

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="PERDURE_URL",
        show_default=DEFAULT_URL,
        help="The storage: sqlite:///..., postgresql://..., redis://... or dynamodb://...",
    ),
]
RefusedUrl = Annotated[str | None, typer.Option("--url", metavar="URL", hidden=True)]
"""For commands that run the user's own object, which names its storage itself. See `refuse_options`."""
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")]


def storage_url(given: str | None, configured: str | None = None) -> str:
    """Return the URL of the storage: the option or variable, else the one in the settings, else the default.

    An empty option is not the same as none: it is refused when it is opened.
    """
    if given is not None:
        return given
    return DEFAULT_URL if configured is None else configured


def refuse_options(context: typer.Context, name: str, *options: str) -> None:
    """Refuse options that an object of the user's own, called `name`, decides in its code.

    A variable of the environment may be meant for other commands, and is ignored.
    """
    for option in options:
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            written = option.replace("_", "-")
            raise CannotDo(f"--{written} does not apply to {name}; configure it in its code")
