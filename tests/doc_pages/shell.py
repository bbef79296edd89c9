"""A shell that runs the commands of a page, one block after the other."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

from .. import fork_server

SHELL = f"""
python() {{ if [ "$BASHPID" = "$$" ]; then in_fork "$@"; else exec python "$@"; fi; }}
perdure() {{ if [ "$BASHPID" = "$$" ]; then in_fork -m perdure.cli "$@"; else exec perdure "$@"; fi; }}
in_fork() {{ command python {fork_server.__file__} --ask "$FORK_SERVER" "$@"; }}
"""
"""Commands in the foreground are forked. A server in the background is a child of the shell, to be killed."""


class Terminal:
    """One bash for a whole page, so that `$!` and variables work as for a reader."""

    def __init__(self, shell: asyncio.subprocess.Process) -> None:
        self._shell = shell
        self.shown = ""
        """The output since it was last read."""

    async def run(self, commands: str, seconds: float = 120) -> int:
        """Run commands; return the exit code of the last."""
        assert self._shell.stdin is not None
        mark = uuid4().hex
        self._shell.stdin.write(f"{commands}\necho {mark} $?\n".encode())
        await self._shell.stdin.drain()
        async with asyncio.timeout(seconds):
            return await self._until(mark)

    async def _until(self, mark: str) -> int:
        assert self._shell.stdout is not None
        while line := (await self._shell.stdout.readline()).decode():
            before, found, after = line.partition(mark)
            self.shown += before
            if found:
                return int(after)
        raise AssertionError(f"the shell ended: {self.shown}")

    def look(self) -> str:
        shown, self.shown = self.shown, ""
        return shown


@asynccontextmanager
async def terminal(folder: Path, variables: Mapping[str, str] | None = None) -> AsyncGenerator[Terminal]:
    """Open a shell in a folder; its children end with it.

    Without variables it has the `python` and `perdure` of the tests, which are forked.
    """
    env = {**(variables or _own_variables()), "COLUMNS": "200", "PYTHONUNBUFFERED": ""}  # a line is one write
    shell = await asyncio.create_subprocess_exec(
        "bash", "--noprofile", "--norc", cwd=folder, env=env, start_new_session=True,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        opened = Terminal(shell)
        if variables is None:
            await opened.run(SHELL)
        yield opened
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        await shell.wait()


def _own_variables() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "FORK_SERVER": str(fork_server.socket_path())}
