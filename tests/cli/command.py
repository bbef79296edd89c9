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
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from perdure.runtime import App, Runtime, Task
from perdure.tasks import Json

from ..fork_server import PIPE, ForkedProcess, spawn

TIMEOUT = 60.0
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


class CommandResult(msgspec.Struct, frozen=True):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:  # noqa: ANN401 - any JSON
        """The one JSON document that it printed."""
        return msgspec.json.decode(self.out)

    @property
    def events(self) -> list[Any]:
        """The JSON documents that it printed, one for each line."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]

    def expect(self, code: int) -> CommandResult:
        """Fail unless the command ended with this exit code, and without a traceback."""
        assert self.code == code, self
        assert "Traceback" not in self.err, self.err
        return self


async def result_of(process: ForkedProcess) -> CommandResult:
    """Wait until a command has ended, and return its result."""
    out, err = await asyncio.wait_for(process.communicate(), TIMEOUT)
    return CommandResult(process.returncode or 0, out.decode(), err.decode())


async def run_command(*arguments: str, variables: Mapping[str, str] = {}) -> CommandResult:
    """Run `perdure` with these arguments and environment variables, whatever its exit code is."""
    command, env = ("-m", "perdure.cli", *arguments), {**environment(), **variables}
    return await result_of(await spawn(*command, env=env, stdout=PIPE, stderr=PIPE))


async def run(url: str, *arguments: str, code: int = 0) -> CommandResult:
    """Run `perdure tasks` with these arguments. Fail unless it ends with this exit code."""
    return (await run_command("tasks", *arguments, variables={"PERDURE_URL": url})).expect(code)


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
    """A command in a terminal of its own, and a user who types."""

    def __init__(self, process: ForkedProcess, screen: int) -> None:
        self.seen = ""
        self._process = process
        self._screen = screen
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    async def until(self, pattern: str) -> str:
        """Read until this is shown, and give what was."""
        async with asyncio.timeout(TIMEOUT):
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
        async with asyncio.timeout(TIMEOUT):
            while got := await asyncio.to_thread(self._read):
                self.seen += got
            return await self._process.wait()

    def _read(self) -> str:
        """Return nothing once the other end is closed. Closing it is an error for a terminal."""
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
async def terminal(url: str, *arguments: str, columns: int = 120) -> AsyncGenerator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = await spawn(
        *("-m", "perdure.cli", "tasks", *arguments),
        env={**environment(url), "COLUMNS": str(columns), "TERM": "xterm-256color"},
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
    """A process with two functions: one asks, one counts until it is cancelled."""
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
