"""Options that several commands share, and functions that check their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Context, Exit, Option, Typer

from ..feeds import FeedSettings, load_settings
from ..operating.times import parse_time
from ..storage import Micros, is_shared_storage, storage_exists
from ..storage.registry import redact_url
from .errors import CommandError
from .output import print_json, print_result

DEFAULT_URL = "sqlite:///perdure.db"
"""The storage URL to use if --url, PERDURE_URL and the settings file do not set one."""
DEFAULT_SETTINGS_FILES = ("feeds.toml", "feeds.yaml", "feeds.yml")

_URL_HELP = "Storage URL: sqlite:///FILE, postgresql://..., redis://... or dynamodb://TABLE."

UrlOption = Annotated[
    str | None, Option(metavar="URL", envvar="PERDURE_URL", show_default=DEFAULT_URL, help=_URL_HELP)
]
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

    def print(self, result: object, lines: Iterable[str], *, ok: bool = True) -> None:
        """Print `result` as JSON if the user gave --json, otherwise print `lines`.

        If `ok` is false, exit with status 1.
        """
        if self.json:
            print_json(result)
        elif text := "\n".join(lines):
            print_result(text)
        if not ok:
            raise Exit(1)


def command(app: Typer, name: str | None = None) -> Callable[[Callable[..., None]], None]:
    """Return a decorator that adds a function to `app` as a command.

    Each field of the function's parameter `options` becomes an option of the command. If `app` itself had
    these options, users would need to put them before the command's name, as in `feeds --json status`.
    """

    def add(function: Callable[..., None]) -> None:
        hints = get_type_hints(function, include_extras=True)
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
        app.command(name)(run)

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
        raise CommandError(f"a {scheme}: storage is private to one process; use a file or a database server")


def read_settings_file(file: Path | None = None) -> FeedSettings:
    """Read settings from `file` or the current directory. If there is no file, return default settings."""
    if file is not None:
        return load_settings(file)
    found = [name for name in DEFAULT_SETTINGS_FILES if Path(name).is_file()]
    if len(found) > 1:
        raise CommandError(f"several settings files: {', '.join(found)}; keep one, or choose with --settings")
    return load_settings(Path(found[0])) if found else FeedSettings()


def refuse_options(context: Context, name: str, *options: str) -> None:
    """Raise CommandError if the command line contains one of `options`.

    These options must be set in the code of `name`, which is the user's app or server. Environment variables
    that set the options are ignored, because they may be meant for other commands.
    """
    for option in options:
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            flag = option.replace("_", "-")
            raise CommandError(f"--{flag} cannot be used with {name}; set it in the code of {name}")


def past_time(text: str, now: Micros) -> Micros:
    """Parse the value of a time option: an age such as `24h` or `7d`, or a date in the past."""
    try:
        return parse_time(text, now)
    except ValueError as error:
        raise CommandError(str(error)) from error
