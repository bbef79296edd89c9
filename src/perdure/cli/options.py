"""Options that several commands share, and functions that check their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import wraps
from inspect import Signature, cleandoc, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import BadParameter, Context, Exit, Option, Typer

from ..feeds import FeedSettings, load_settings
from ..operating.times import parse_time
from ..storage import Micros, Storage, is_shared_storage, storage_exists
from ..storage.registry import redact_url
from .errors import CommandError
from .output import print_json, print_message, print_result

DEFAULT_URL = "sqlite:///perdure.db"
"""The storage URL to use if none of --url, PERDURE_URL and the settings file sets one."""
DEFAULT_SETTINGS_FILES = ("feeds.toml", "feeds.yaml", "feeds.yml")

USE_SHARED = "use a file or a database server"
STORAGE_HELP = "Storage URL: sqlite:///FILE, postgresql://..., redis://... or dynamodb://TABLE."


def url_option(text: str) -> Any:  # noqa: ANN401 - Typer declares no type for its options
    """Return the --url option with this help text."""
    return Option(metavar="URL", envvar="PERDURE_URL", show_default=DEFAULT_URL, help=text)


UrlOption = Annotated[str | None, url_option(STORAGE_HELP)]
DryRunOption = Annotated[bool, Option("--dry-run", help="Show what would be done without changing anything.")]
VerboseOption = Annotated[bool, Option("--verbose", "-v", help="Log debug messages.")]


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """The options shared by all commands that print a result."""

    url: UrlOption = None
    json: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False

    def storage(self, configured: str | None = None) -> str:
        """Return the storage URL. Raise CommandError if the storage would be lost when the process ends."""
        url = storage_url(self.url, configured)
        require_shared(url)
        return url

    def existing_storage(self, configured: str | None = None, *, hint: str = "") -> str:
        """Return the storage URL. Raise CommandError if no storage exists at this URL."""
        url = self.storage(configured)
        if not storage_exists(url):
            raise CommandError(f"storage not found: {redact_url(url)}; {hint}set --url or PERDURE_URL")
        return url

    def print(self, result: object, lines: Iterable[str], *, ok: bool = True, empty: str = "") -> None:
        """Print `result` as JSON if the user gave --json, otherwise print `lines`.

        If there are no lines, print the message `empty`. If `ok` is false, exit with status 1.
        """
        if self.json:
            print_json(result)
        elif text := "\n".join(lines):
            print_result(text)
        elif empty:
            print_message(empty)
        if not ok:
            raise Exit(1)


def command(app: Typer, name: str | None = None) -> Callable[[Callable[..., None]], None]:
    """Return a decorator that adds a function to `app` as a command.

    If the function has a parameter `options`, each field of its class becomes an option of the command. If
    `app` itself had these options, users would need to put them before the command's name, as in
    `feeds --json status`. The list of commands shows the first sentence of the function's docstring.
    """

    def add(function: Callable[..., None]) -> None:
        # Typer would shorten the sentence to one line.
        summary = re.split(r"(?<=\.)\s", cleandoc(function.__doc__ or ""))[0]
        hints = get_type_hints(function, include_extras=True)
        if "options" not in hints:
            app.command(name, short_help=summary)(function)
            return
        group = hints["options"]
        hints |= get_type_hints(group, include_extras=True)
        own, shared = dict(signature(function).parameters), signature(group).parameters
        del own["options"]
        parameters = [each.replace(annotation=hints[each.name]) for each in (*own.values(), *shared.values())]

        @wraps(function)
        def run(**given: Any) -> None:  # noqa: ANN401 - values that Typer parsed
            options = group(**{name: given.pop(name) for name in shared})
            function(**given, options=options)

        run.__signature__ = Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(name, short_help=summary)(run)

    return add


def storage_url(given: str | None, configured: str | None = None) -> str:
    """Return `given` (--url or PERDURE_URL), else `configured` (from the settings), else the default URL.

    An empty string counts as a URL, so that it causes an error instead of selecting the default.
    """
    return next(url for url in (given, configured, DEFAULT_URL) if url is not None)


def require_shared(url: str) -> None:
    """Raise CommandError if the storage at `url` would be lost when the process ends."""
    if not is_shared_storage(url):
        scheme = url.partition(":")[0]
        raise CommandError(f"storage with a {scheme}: URL is private to one process; {USE_SHARED}")


async def require_shared_storage(storage: Storage, problem: str) -> None:
    """Raise CommandError with the message `problem` and advice if other processes cannot open `storage`."""
    if not (await storage.info()).is_shared:
        raise CommandError(f"{problem}; {USE_SHARED}")


def read_settings_file(file: Path | None = None) -> FeedSettings:
    """Read settings from `file`, or from the settings file in the current directory if `file` is None.

    If that directory has no settings file, return the default settings.
    """
    if file is not None:
        return load_settings(file)
    found = [name for name in DEFAULT_SETTINGS_FILES if Path(name).is_file()]
    if len(found) > 1:
        advice = "keep only one, or choose one with --settings (`perdure feeds` commands only)"
        raise CommandError(f"several settings files exist: {', '.join(found)}; {advice}")
    return load_settings(Path(found[0])) if found else FeedSettings()


def refuse_options(context: Context, name: str, *options: str) -> None:
    """Raise CommandError if the command line contains one of `options`.

    These options cannot be used together with `name`, which is the user's own app or server. The storage URL
    of an app or server is set in its code, and the other options apply only to the sample server. Environment
    variables that set the options are ignored, because they may be meant for other commands.
    """
    for option in options:
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            flag = option.replace("_", "-")
            in_code = option == "url"
            advice = f"set it in the code of {name}" if in_code else "it applies only to the sample server"
            raise CommandError(f"--{flag} cannot be used with {name}; {advice}")


def choice_option(
    choices: Collection[str], metavar: str, text: str, *, normalize: Callable[[str], str] = str
) -> Any:  # noqa: ANN401 - Typer declares no type for its options
    """Return an option with the help `text` that accepts only `choices`, after `normalize` was applied.

    Typer handles enumerations too, but its error messages for them differ between its versions.
    """

    def parse(given: str) -> str:
        name = normalize(given)
        for choice in choices:
            if choice == name:
                return choice
        raise BadParameter(f"{given!r} is not one of {', '.join(choices)}")

    def complete(incomplete: str) -> list[str]:
        return [each for each in choices if each.startswith(incomplete)]

    return Option(metavar=metavar, help=text, parser=parse, autocompletion=complete)


def past_time(text: str, now: Micros) -> Micros:
    """Parse the value of a time option: an age such as `24h` or `7d`, or a date in the past."""
    try:
        return parse_time(text, now)
    except ValueError as error:
        raise CommandError(str(error)) from error
