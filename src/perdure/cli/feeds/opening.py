"""Opening what the commands work with: the settings, the storage, and Bluesky."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...feeds import Budget, FeedStore, Settings, read_settings
from ...storage import Micros, exists, open_storage
from ..backends import NAME_IT, check_exists, check_shared
from ..errors import CannotDo
from ..options import storage_url
from ..saying import say
from ..times import clock

if TYPE_CHECKING:
    from ...feeds.bluesky import Bluesky

SETTINGS_FILES = ("feeds.toml", "feeds.yaml", "feeds.yml")
ADD_ONE = f"add the first account with `perdure feeds add HANDLE`, or {NAME_IT}"


def stored_settings(file: Path | None = None) -> Settings:
    """Read the settings from a file, or from the one in this folder if there is any."""
    path = _found() if file is None else file
    return Settings() if path is None else read_settings(path)


def settings_of(file: Path | None, url: str | None) -> Settings:
    """Return the settings of a command. Their `url` is the storage that it works with."""
    settings = stored_settings(file)
    storage = storage_url(url, settings.url)
    check_shared(storage)
    return replace(settings, url=storage)


def _found() -> Path | None:
    there = [name for name in SETTINGS_FILES if Path(name).is_file()]
    if len(there) > 1:
        raise CannotDo(f"found {' and '.join(there)}; keep only one, or choose one with --settings")
    return Path(there[0]) if there else None


@asynccontextmanager
async def opened(settings: Settings) -> AsyncGenerator[FeedStore]:
    """Open a storage that exists. One that does not has no accounts, or its name is misspelt."""
    url = storage_url(settings.url)
    check_exists(url, remedy=ADD_ONE)
    async with await open_storage(url) as storage:
        yield FeedStore(storage)


@asynccontextmanager
async def created(settings: Settings, *, dry_run: bool) -> AsyncGenerator[FeedStore]:
    """Open a storage, and create it if it does not exist. A dry run uses an empty one in memory instead."""
    url = storage_url(settings.url)
    async with await open_storage("memory:" if dry_run and not exists(url) else url) as storage:
        yield FeedStore(storage)


def _say_wait(reason: str, until: Micros) -> None:
    say(f"waiting until {clock(until)}: {reason}")


@asynccontextmanager
async def bluesky(settings: Settings, budget: Budget | None = None) -> AsyncGenerator[Bluesky]:
    try:
        from ...feeds.bluesky import open_bluesky  # noqa: PLC0415 (the extra may be missing)
    except ModuleNotFoundError as error:
        raise CannotDo(f"{error.name} is not installed; pip install 'perdure[feeds]'") from error
    budget = budget or Budget(settings.polling.connections, on_wait=_say_wait)
    async with open_bluesky(settings, budget=budget) as source:
        yield source
