"""Opening what the commands work with: the settings, the storage, and Bluesky."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...feeds import Budget, FeedStore, Settings, read_settings
from ...storage import exists, is_shared, open_storage
from ..ending import CannotDo

if TYPE_CHECKING:
    from ...feeds.bluesky import Bluesky

USUAL = ("feeds.toml", "feeds.yaml", "feeds.yml")


def settings_of(file: Path | None, storage: str | None) -> Settings:
    """As a file says, or the one that is in this folder, if there is any."""
    path = _usual() if file is None else file
    settings = Settings() if path is None else read_settings(path)
    settings = settings if storage is None else replace(settings, storage=storage)
    if not is_shared(settings.storage):
        scheme = settings.storage.partition(":")[0]
        forgotten = f"the storage {scheme}: is forgotten at the end of the command"
        raise CannotDo(f"{forgotten}; name a file or a server")
    return settings


def _usual() -> Path | None:
    there = [name for name in USUAL if Path(name).is_file()]
    if len(there) > 1:
        raise CannotDo(f"here are {' and '.join(there)}; say which one counts with --settings")
    return Path(there[0]) if there else None


@asynccontextmanager
async def opened(settings: Settings, *, makes: bool = False) -> AsyncGenerator[FeedStore]:
    """The store. A file that is not there yet is made only by somebody who has something to put into it."""
    url = settings.storage if makes or exists(settings.storage) else "memory:"
    async with await open_storage(url) as storage:
        yield FeedStore(storage)


@asynccontextmanager
async def bluesky(settings: Settings, budget: Budget | None = None) -> AsyncGenerator[Bluesky]:
    try:
        from ...feeds.bluesky import open_bluesky  # noqa: PLC0415 (the extra may be missing)
    except ModuleNotFoundError as error:
        raise CannotDo(f"{error.name} is not installed; pip install 'perdure[feeds]'") from error
    async with open_bluesky(settings, budget=budget) as source:
        yield source
