"""Follows a page as a reader would: writes its files, types its commands, and compares what they print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from perdure.storage.kit.servers.process import free_port

from .. import servers
from ..conditions import wait_until
from ..mcp.raw_clients import is_open
from .pages import blocks_of, is_seen
from .shell import Terminal

POSTGRES = "postgresql://user@host/database"
"""The reader's database, as pages name it."""
PORT = re.compile(r"\b80\d\d\b")


class Reader:
    """Follows a page, with its own ports and database, and with other servers instead of those it names."""

    def __init__(self, page: Path, folder: Path, shell: Terminal, instead: Mapping[str, str] = {}) -> None:
        self._blocks = blocks_of(page)
        self._folder = folder
        self._shell = shell
        self._instead = {port: str(free_port()) for port in PORT.findall(page.read_text("utf-8"))}
        self._instead |= instead
        if POSTGRES in page.read_text("utf-8"):
            self._instead[POSTGRES] = servers.postgres().new_url()

    async def follow(self) -> None:
        for block in self._blocks:
            await self._do(block.language, block.title, self._own(block.text))

    def _own(self, text: str) -> str:
        for theirs, ours in self._instead.items():
            text = text.replace(theirs, ours)
        return text

    async def _do(self, language: str, title: str | None, text: str) -> None:
        match language:
            case "python" | "toml" if title is not None:
                (self._folder / title).write_text(text, "utf-8")
            case "sh":
                assert await self._shell.run(text) == 0, f"{text}{self._shell.shown}"
                await self._until_open(text)
            case "text":
                await self._see(text)
            case _:
                pass

    async def _see(self, expected: str) -> None:
        """Wait for the expected output: a server in the background may print it a moment later."""

        async def is_there() -> bool:
            await self._shell.run("true")
            return is_seen(expected, self._shell.shown)

        with suppress(TimeoutError):
            await wait_until(is_there, seconds=30)
        shown = self._shell.look()
        assert is_seen(expected, shown), shown

    async def _until_open(self, commands: str) -> None:
        """Wait until a started server listens, as a person takes a while to type the next command."""
        if commands.rstrip().endswith("&") or "&\n" in commands:
            named = re.search(r"(?:PORT=|--port )(\d+)", commands)
            port = next(iter(self._instead.values())) if named is None else named[1]
            await wait_until(lambda: is_open(int(port)), seconds=60)
