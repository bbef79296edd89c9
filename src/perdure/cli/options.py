"""Options that several commands share, and the checks of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Context, Option, Typer

from ..feeds import FeedSettings, load_settings
from ..operating.times import parse_time
from ..storage import Micros, is_shared_storage, storage_exists
from .errors import CommandError
from .output import print_json, print_result

DEFAULT_URL = "sqlite:///perdure.db"
"""The storage of a command, unless an option, an environment variable or a settings file names another."""
DEFAULT_SETTINGS_FILES = ("feeds.toml", "feeds.yaml", "feeds.yml")
_STORAGE_URL = re.compile(r"(?P<scheme>[^:/?@]+:)//(?:[^/?@]*@)?(?P<place>[^?@]*)(?:\?[^@]*)?")
_URL_HELP = "Storage URL: sqlite:///FILE, postgresql://..., redis://... or dynamodb://TABLE."

UrlOption = Annotated[
    str | None, Option(metavar="URL", envvar="PERDURE_URL", show_default=DEFAULT_URL, help=_URL_HELP)
]
DryRunOption = Annotated[bool, Option("--dry-run", help="Show what would be done without changing anything.")]
VerboseOption = Annotated[bool, Option("--verbose", "-v", help="Log debug messages.")]


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """The options of every command that prints a result."""

    url: UrlOption = None
    json: Annotated[bool, Option("--json", help="Output JSON.")] = False

    def storage(self, configured: str | None = None) -> str:
        """Return the URL of the storage. Refuse one whose records are lost when the process ends."""
        url = storage_url(self.url, configured)
        require_shared(url)
        return url

    def existing_storage(self, configured: str | None = None, *, hint: str = "") -> str:
        """Return the URL of the storage. Refuse one that does not exist: the URL may be misspelled."""
        url = self.storage(configured)
        if not storage_exists(url):
            raise CommandError(f"storage not found: {redact_url(url)}; {hint}set --url or PERDURE_URL")
        return url

    def print(self, result: object, lines: Iterable[str]) -> None:
        """Print a result as JSON or as lines of text."""
        if self.json:
            print_json(result)
        elif text := "\n".join(lines):
            print_result(text)


def command(app: Typer, name: str | None = None) -> Callable[[Callable[..., None]], None]:
    """Add a function to `app` as a command, with one option for each field of its parameter `options`.

    Options of `app` itself would have to precede the command: `feeds --json status`.
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
    """Return the URL that an option or its environment variable gives, that of the settings, or the default.

    An empty option counts as given, so opening the storage fails.
    """
    return next(url for url in (given, configured, DEFAULT_URL) if url is not None)


def redact_url(url: str) -> str:
    """Return a URL without user, password and options, or only its scheme if these cannot be located."""
    found = _STORAGE_URL.fullmatch(url)
    return f"{url.partition(':')[0]}:..." if found is None else f"{found['scheme']}//{found['place']}"


def require_shared(url: str) -> None:
    """Refuse a storage whose records are lost when the process ends."""
    if not is_shared_storage(url):
        scheme = url.partition(":")[0]
        raise CommandError(f"{scheme}: storage is private to one process; use a file or a server")


def read_settings_file(file: Path | None = None) -> FeedSettings:
    """Read a settings file, or the one in the current directory if there is one."""
    if file is not None:
        return load_settings(file)
    found = [name for name in DEFAULT_SETTINGS_FILES if Path(name).is_file()]
    if len(found) > 1:
        raise CommandError(f"found {' and '.join(found)}; keep only one, or choose one with --settings")
    return load_settings(Path(found[0])) if found else FeedSettings()


def refuse_options(context: Context, name: str, *options: str) -> None:
    """Refuse options on the command line that the user's object `name` sets in its own code.

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
