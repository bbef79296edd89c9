"""`perdure feeds ...` as real processes, in a folder whose settings name a fake Bluesky."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import EllipsisType
from typing import Any

from perdure.feeds import Account, FeedStore, Item, Poller, PollSettings, Profile, load_settings, transitions
from perdure.feeds.bluesky import open_bluesky
from perdure.storage import Micros, open_storage
from perdure.storage.time_types import MINUTE

from ..feeds.fake_server import FakeBluesky
from ..feeds.simulation import World
from ..fork_server import PIPE, ForkedProcess, spawn
from ..storage.sqlite_helpers import url_of
from .command import CommandResult, result_of


class FeedsFolder:
    """A folder in which commands are run."""

    def __init__(self, folder: Path, fake: FakeBluesky, name: str) -> None:
        self.folder = folder
        self.fake = fake
        self.world = fake.world
        self.url = url_of(folder / name)
        self.variables: dict[str, str] = {}
        """Variables of the environment that commands find."""

    def write_settings(
        self,
        *,
        name: str = "feeds.toml",
        identifier: str | None = None,
        url: str | EllipsisType | None = ...,
        **polling: int,
    ) -> None:
        """Write settings that name this folder's storage, another one, or none."""
        url = self.url if url is ... else url
        polling = {"retry_backoff_ms": 1, "max_retries": 1, **polling}
        reader = "" if identifier is None else f'identifier = "{identifier}"\n'
        servers = f'service = "{self.fake.url}"\npds = "{self.fake.url}"\n'
        numbers = "".join(f"{each} = {value}\n" for each, value in polling.items())
        storage = "" if url is None else f'url = "{url}"\n'
        settings = f"{storage}[bluesky]\n{servers}{reader}[polling]\n{numbers}"
        self.folder.joinpath(name).write_text(settings, encoding="utf-8")

    async def feeds(self, *arguments: str, code: int = 0) -> CommandResult:
        """Run a command to its end, which must be this one, and no traceback."""
        return (await result_of(await self.start(*arguments))).expect(code)

    async def json(self, *arguments: str, code: int = 0) -> Any:  # noqa: ANN401 - any JSON
        return (await self.feeds(*arguments, "--json", code=code)).document

    async def start(self, *arguments: str) -> ForkedProcess:
        variables = {**environment(), "XDG_STATE_HOME": str(self.folder / "state"), **self.variables}
        command = ("-m", "perdure.cli", "feeds", *arguments)
        return await spawn(*command, cwd=self.folder, env=variables, stdout=PIPE, stderr=PIPE)

    def person(self, handle: str, posts: int = 0, *, every: Micros = MINUTE) -> str:
        """Create an account that has posted until now, and return its DID."""
        did = self.world.account(handle)
        for number in reversed(range(posts)):
            self.world.publish(did, f"{handle} {number}", at=now() - number * every)
        return did

    async def added(self, *people: str) -> None:
        """What `add` does, without a process."""
        async with self.store() as store:
            for did in people:
                profile = Profile(account_id=did, handle=self.world.accounts[did].handle)
                await store.add(transitions.new_account(profile, now=now(), settings=PollSettings()))

    async def polled(self) -> None:
        """What `once` does, without a process."""
        settings = load_settings(self.folder / "feeds.toml")
        async with self.store() as store, open_bluesky(settings) as source:
            await Poller(store, source, settings.polling).run_once()

    @asynccontextmanager
    async def store(self) -> AsyncGenerator[FeedStore]:
        async with await open_storage(self.url) as storage:
            yield FeedStore(storage)

    async def account(self, account_id: str) -> Account:
        async with self.store() as store:
            return (await store.get(account_id)).account

    async def accounts(self) -> list[Account]:
        async with self.store() as store:
            return [stored.account async for stored in store.accounts()]

    async def items(self, account_id: str | None = None) -> list[Item]:
        async with self.store() as store:
            return [item async for _, item in store.newest_items(account_id)]

    async def everything(self) -> tuple[list[Account], list[Item]]:
        return await self.accounts(), await self.items()


@asynccontextmanager
async def feeds_folder(folder: Path, name: str = "feeds.db") -> AsyncGenerator[FeedsFolder]:
    """A folder whose settings name a fake Bluesky, and the storage of this name."""
    async with FakeBluesky(World(clock=now)) as fake:
        place = FeedsFolder(folder, fake, name)
        place.write_settings()
        yield place


def now() -> Micros:
    return time.time_ns() // 1000


def environment() -> dict[str, str]:
    """As a plain user has it: nothing that colours, and nothing that narrows."""
    left_out = {"FORCE_COLOR", "NO_COLOR", "COLUMNS", "PERDURE_BLUESKY_PASSWORD", "PERDURE_URL"}
    return {name: value for name, value in os.environ.items() if name not in left_out}
