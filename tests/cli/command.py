"""`perdure tasks ...` as real processes, with pipes or in a terminal of their own."""

from __future__ import annotations

import asyncio
import codecs
import fcntl
import os
import pty
import re
import signal
import struct
import termios
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from perdure.runtime import App, Runtime, Task
from perdure.tasks import Json

from ..fork_server import PIPE, ForkedProcess, spawn

PATIENCE = 60.0
HOSTILE = "\x1b]0;owned\x07\x9b31m\u202e"
"""What a terminal would obey: a title, a colour and a change of direction."""
FORM: dict[str, Json] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": f"of whom{HOSTILE}"},
        "pages": {"type": "integer"},
        "colour": {"type": "string", "enum": ["red", "blue"]},
        "signed": {"type": "boolean", "default": True},
        "note": {"type": "string"},
    },
    "required": ["name", "pages", "colour"],
}


class Ended(msgspec.Struct, frozen=True):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:  # noqa: ANN401 - any JSON
        return msgspec.json.decode(self.out)


async def run(url: str, *arguments: str, code: int = 0) -> Ended:
    """A command run to its end, which must be this one, and no traceback."""
    command = ("-m", "perdure.cli", "tasks", *arguments)
    process = await spawn(*command, env=environment(url), stdout=PIPE, stderr=PIPE)
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    ended = Ended(process.returncode or 0, out.decode(), err.decode())
    assert ended.code == code, ended
    assert "Traceback" not in ended.err, ended.err
    return ended


async def refused(url: str, *arguments: str, code: int) -> str:
    """What a command says that cannot do what was asked: one line, on standard error."""
    ended = await run(url, *arguments, code=code)
    assert ended.out == ""
    assert ended.err.startswith("perdure: ")
    assert ended.err.count("\n") == 1, ended.err
    return ended.err


def environment(url: str | None = None) -> dict[str, str]:
    left_out = {"FORCE_COLOR", "NO_COLOR", "PERDURE_URL"}
    plain = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**plain, "COLUMNS": "120"} | ({} if url is None else {"PERDURE_URL": url})


class Terminal:
    """A command in a terminal of its own, 120 letters wide, and somebody who types."""

    def __init__(self, process: ForkedProcess, screen: int) -> None:
        self.seen = ""
        self._process = process
        self._screen = screen
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    async def until(self, pattern: str) -> str:
        """Read until this is shown, and give what was."""
        async with asyncio.timeout(PATIENCE):
            while re.search(pattern, self.text) is None:
                got = await asyncio.to_thread(self._read)
                assert got, f"it ended without {pattern!r}: {self.text}"
                self.seen += got
        return self.text

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    async def ended(self) -> int:
        """The code with which it ends, after all that it still had to show."""
        async with asyncio.timeout(PATIENCE):
            while got := await asyncio.to_thread(self._read):
                self.seen += got
            return await self._process.wait()

    def _read(self) -> str:
        """Nothing once nobody writes any more, which is an error where terminals are."""
        text = ""
        try:
            while not text and (got := os.read(self._screen, 65536)):
                text = self._decoder.decode(got)  # of a letter that is not all there yet, nothing
        except OSError:
            pass
        return text

    @property
    def text(self) -> str:
        """Without what colours it, and moves the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen)


@asynccontextmanager
async def terminal(url: str, *arguments: str) -> AsyncGenerator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    process = await spawn(
        *("-m", "perdure.cli", "tasks", *arguments),
        env={**environment(url), "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)


@asynccontextmanager
async def a_server(url: str) -> AsyncGenerator[Runtime]:
    """A process with two functions: one asks, one goes on for as long as nobody stops it."""
    app = App(url, application="tests")

    @app.function
    async def sign(task: Task) -> Json:
        return (await task.elicit(f"Whose name{HOSTILE}?", FORM)).data

    @app.function
    async def count(task: Task) -> None:
        for number in range(1000):
            await task.report_progress(number, 1000, f"at {number}{HOSTILE}")
            await asyncio.sleep(0.2)

    async with app.open() as runtime:
        yield runtime


def folder_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'tasks.db'}"
