"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from inspect import Signature, signature
from typing import Annotated, Any, get_type_hints

from typer import Context, Option, Typer

from ..operating.times import parse_time
from ..storage import Micros
from .errors import CommandError
from .output import print_json, print_result

DEFAULT_URL = "sqlite:///perdure.db"
"""The storage of every command, unless an option, a variable or a settings file names another."""

_STORAGE_HELP = "Storage URL: sqlite:///FILE, postgresql://..., redis://... or dynamodb://TABLE."

UrlOption = Annotated[
    str | None, Option(metavar="URL", envvar="PERDURE_URL", show_default=DEFAULT_URL, help=_STORAGE_HELP)
]
JsonOption = Annotated[bool, Option("--json", help="Output JSON.")]
DryRunOption = Annotated[bool, Option("--dry-run", help="Show what would be done without changing anything.")]
VerboseOption = Annotated[bool, Option("--verbose", "-v", help="Log debug messages.")]


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """The options of every command that prints a result."""

    url: UrlOption = None
    json: JsonOption = False

    def print(self, result: object, lines: Iterable[str]) -> None:
        """Print a result as JSON or as lines of text."""
        if self.json:
            print_json(result)
        elif text := "\n".join(lines):
            print_result(text)


def command(app: Typer, name: str | None = None) -> Callable[[Callable[..., None]], None]:
    """Add a function to `app` as a command. Its parameter `options` is a dataclass, and each field an option.

    Options of the group itself would have to precede the command: `feeds --json status`.
    """

    def add(function: Callable[..., None]) -> None:
        hints = get_type_hints(function, include_extras=True)
        group = hints["options"]
        hints |= get_type_hints(group, include_extras=True)
        own, shared = dict(signature(function).parameters), signature(group).parameters
        del own["options"]
        parameters = [each.replace(annotation=hints[each.name]) for each in (*own.values(), *shared.values())]

        @wraps(function)
        def run(**given: Any) -> None:  # noqa: ANN401 - what Typer parsed
            options = group(**{name: given.pop(name) for name in shared})
            function(**given, options=options)

        run.__signature__ = Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(name)(run)

    return add


def storage_url(given: str | None, configured: str | None = None) -> str:
    """Return the URL of the storage: from the option or variable, from the settings, or the default.

    An empty option does not count as missing: its URL is returned, and opening the storage fails.
    """
    if given is not None:
        return given
    return DEFAULT_URL if configured is None else configured


def refuse_options(context: Context, name: str, *options: str) -> None:
    """Refuse options that the user's own object `name` sets in its code.

    Environment variables are ignored, because they can be meant for other commands.
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
