"""What commands work with: storages, tasks, feeds and their source, opened and checked."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..feeds import FeedSettings, FeedStore, RateLimiter
from ..feeds import load_settings as load_settings_file
from ..operating import Operator
from ..operating.times import format_clock
from ..storage import Micros, is_shared_storage, open_storage, storage_exists
from .errors import CommandError
from .options import storage_url
from .output import print_message

if TYPE_CHECKING:
    from ..feeds.bluesky import BlueskySource

_URL = re.compile(r"(?P<scheme>[^:/?@]+:)//(?:[^/?@]*@)?(?P<place>[^?@]*)(?:\?[^@]*)?")
SET_URL = "set --url or PERDURE_URL"
ADD_ACCOUNT = f"add the first account with `perdure feeds add HANDLE`, or {SET_URL}"
DEFAULT_SETTINGS_FILES = ("feeds.toml", "feeds.yaml", "feeds.yml")


def redact_url(url: str) -> str:
    """Return a URL without user, password and options, or only its scheme if these cannot be told apart."""
    found = _URL.fullmatch(url)
    return f"{url.partition(':')[0]}:..." if found is None else f"{found['scheme']}//{found['place']}"


def require_shared(url: str) -> None:
    """Refuse a storage that ends with the process."""
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
    """Read a settings file, or the one of the current directory if there is one."""
    path = _default_settings_file() if file is None else file
    return FeedSettings() if path is None else load_settings_file(path)


def _default_settings_file() -> Path | None:
    found = [name for name in DEFAULT_SETTINGS_FILES if Path(name).is_file()]
    if len(found) > 1:
        raise CommandError(f"found {' and '.join(found)}; keep only one, or choose one with --settings")
    return Path(found[0]) if found else None


@asynccontextmanager
async def open_feeds(settings: FeedSettings) -> AsyncGenerator[FeedStore]:
    """Open an existing storage for feeds."""
    url = storage_url(settings.url)
    require_existing(url, hint=ADD_ACCOUNT)
    async with await open_storage(url) as storage:
        yield FeedStore(storage)


@asynccontextmanager
async def create_feeds(settings: FeedSettings, *, dry_run: bool) -> AsyncGenerator[FeedStore]:
    """Open a storage for feeds, or create it. A dry run creates nothing, and uses an empty one in memory."""
    url = storage_url(settings.url)
    async with await open_storage("memory:" if dry_run and not storage_exists(url) else url) as storage:
        yield FeedStore(storage)


@asynccontextmanager
async def open_source(
    settings: FeedSettings, budget: RateLimiter | None = None
) -> AsyncGenerator[BlueskySource]:
    try:
        from ..feeds.bluesky import open_bluesky  # noqa: PLC0415 (the extra may be missing)
    except ModuleNotFoundError as error:
        raise CommandError(
            f"{error.name} is not installed; install the feeds extra: pip install 'perdure[feeds]'"
        ) from error
    budget = budget or RateLimiter(settings.polling.connections, on_wait=_print_wait)
    async with open_bluesky(settings, limiter=budget) as source:
        yield source


def _print_wait(reason: str, until: Micros) -> None:
    print_message(f"waiting until {format_clock(until)}: {reason}")
