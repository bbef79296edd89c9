"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ..operating.times import parse_time
from ..storage import Micros
from .errors import CommandError
from .output import print_json, print_result

DEFAULT_URL = "sqlite:///perdure.db"
"""The storage of every command, unless an option, a variable or a settings file names another."""

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="PERDURE_URL",
        show_default=DEFAULT_URL,
        help="Storage URL: sqlite:///FILE, postgresql://..., redis://... or dynamodb://TABLE.",
    ),
]
RefusedUrlOption = Annotated[str | None, typer.Option("--url", metavar="URL", hidden=True)]
"""The URL option of commands that run the user's own object: see `refuse_options`."""
JsonOption = Annotated[bool, typer.Option("--json", help="Output JSON.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done without changing anything.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Log debug messages.")]
SettingsOption = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        metavar="FILE",
        help="Settings file, TOML or YAML. Default: feeds.toml or feeds.yaml in the current directory.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Options that a command takes as one parameter. See `common_options`."""


@dataclass(frozen=True, kw_only=True)
class CommonOptions(OptionGroup):
    """The options of every command that prints a result."""

    url: UrlOption = None
    json: JsonOption = False

    def print(self, result: object, lines: Iterable[str]) -> None:
        """Print a result as JSON or as lines of text."""
        if self.json:
            print_json(result)
        elif text := "\n".join(lines):
            print_result(text)


def common_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter of a command that is an `OptionGroup` by one option for each field.

    On the group of commands, Typer would want such options before the command: `feeds --json status`.
    """
    own: list[Parameter] = []
    groups: dict[str, type[OptionGroup]] = {}
    hints = get_type_hints(command, include_extras=True)
    for parameter in signature(command).parameters.values():
        declared = hints[parameter.name]
        if isinstance(declared, type) and issubclass(declared, OptionGroup):
            groups[parameter.name] = declared
        else:
            own.append(parameter.replace(annotation=declared))
    ((name, group),) = groups.items()
    hints = get_type_hints(group, include_extras=True)
    parameters = [
        *own,
        *(
            Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
            for each in fields(group)
        ),
    ]

    @wraps(command)
    def run(**given: Any) -> None:  # noqa: ANN401 - what Typer parsed
        options = group(**{each.name: given.pop(each.name) for each in fields(group)})
        command(**given, **{name: options})

    run.__signature__ = Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def storage_url(given: str | None, configured: str | None = None) -> str:
    """Return the URL of the storage: from the option or variable, from the settings, or the default.

    An empty option does not count as missing: its URL is returned, and opening the storage fails.
    """
    if given is not None:
        return given
    return DEFAULT_URL if configured is None else configured


def refuse_options(context: typer.Context, name: str, *options: str) -> None:
    """Refuse options that the user's own object `name` decides in its code.

    Variables of the environment can be meant for other commands, and are ignored.
    """
    for option in options:
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            flag = option.replace("_", "-")
            raise CommandError(f"--{flag} does not apply to {name}; configure it in its code")


def past_time(text: str, now: Micros) -> Micros:
    """Return the time that an option gives: `24h` or `7d` ago, or a date."""
    try:
        return parse_time(text, now)
    except ValueError as error:
        raise CommandError(str(error)) from error
