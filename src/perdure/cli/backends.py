"""What commands work with: storages, tasks, feeds and their source, opened and checked."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from ..feeds import Feeds, FeedSettings
from ..feeds import load_settings as load_settings_file
from ..operating import Operator
from ..operating.times import format_clock
from ..storage import Micros, is_shared_storage, open_storage, storage_exists
from .errors import CommandError
from .options import storage_url
from .output import one_line, print_message

_URL = re.compile(r"(?P<scheme>[^:/?@]+:)//(?:[^/?@]*@)?(?P<place>[^?@]*)(?:\?[^@]*)?")
SET_URL = "set --url or PERDURE_URL"
ADD_ACCOUNT = f"add the first account with `perdure feeds add HANDLE`, or {SET_URL}"
DEFAULT_SETTINGS_FILES = ("feeds.toml", "feeds.yaml", "feeds.yml")


def redact_url(url: str) -> str:
    """Return a URL without user, password and options, or only its scheme if they cannot be located."""
    found = _URL.fullmatch(url)
    return f"{url.partition(':')[0]}:..." if found is None else f"{found['scheme']}//{found['place']}"


def require_shared(url: str) -> None:
    """Refuse a storage whose records are lost when the process ends."""
    if not is_shared_storage(url):
        scheme = url.partition(":")[0]
        raise CommandError(f"{scheme}: storage is private to one process; use a file or a server")


def require_existing(url: str, *, hint: str = SET_URL) -> None:
    """Refuse a storage that opening would create: its name can be misspelled."""
    require_shared(url)
    if not storage_exists(url):
        raise CommandError(f"storage not found: {redact_url(url)}; {hint}")


@asynccontextmanager
async def open_operator(url: str | None) -> AsyncGenerator[Operator]:
    """Open an existing storage for operating its tasks."""
    url = storage_url(url)
    require_existing(url)
    async with await open_storage(url) as storage:
        yield Operator(storage)


# Feeds


def load_settings(file: Path | None, url: str | None) -> FeedSettings:
    """Return the settings of a command, with the URL of its storage."""
    settings = read_settings_file(file)
    storage = storage_url(url, settings.url)
    require_shared(storage)
    return replace(settings, url=storage)


def read_settings_file(file: Path | None = None) -> FeedSettings:
    """Read a settings file, or the one in the current directory if there is one."""
    if file is not None:
        return load_settings_file(file)
    found = [name for name in DEFAULT_SETTINGS_FILES if Path(name).is_file()]
    if len(found) > 1:
        raise CommandError(f"found {' and '.join(found)}; keep only one, or choose one with --settings")
    return load_settings_file(Path(found[0])) if found else FeedSettings()


@asynccontextmanager
async def open_feeds(settings: FeedSettings, *, create: bool = False) -> AsyncGenerator[Feeds]:
    """Open the feeds of an existing storage, or of one that is created if necessary."""
    url = storage_url(settings.url)
    if not create:
        require_existing(url, hint=ADD_ACCOUNT)
    async with Feeds.open(url, settings) as feeds:
        feeds.rate_limiter.on_wait = _print_wait
        yield feeds


def _print_wait(reason: str, until: Micros) -> None:
    print_message(f"waiting until {format_clock(until)}: {one_line(reason)}")
