"""A Python that has read MCP and perdure already, for the commands of pages that end by themselves.

To read them takes a second and a half of a processor, which each `python client.py` of a page would pay
again. So one process reads them once, and forks for each command that a shell asks it to run: a process of
its own, with that command's words, folder and variables, and the output of that shell. What a page sends to
the background or into a pipe (a server that is killed above all) is an ordinary process of that shell.

It is asked and answers through two named pipes: `python -m tests.tutorial.ready FOLDER`.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

READ = ("anyio", "mcp.client", "mcp.server", "perdure", "perdure.mcp.client", "perdure.cli.commands")
MOST_SECONDS = 150
"""More than a shell waits: what hangs does not stand in the way of the next page."""

SHELL = """
python() { ready python "$@"; }
perdure() { ready perdure "$@"; }
ready() {
    [ "$BASHPID" = "$$" ] || exec "$@"
    { printf '%s\\0' "$$" "$#" "$@"; env -0; } > "$READY/ask"
    local code; read -r code < "$READY/told"; return "$code"
}
"""
"""What a shell has to be told first. READY is the folder of the pipes."""


@contextmanager
def ready_python(folder: Path) -> Generator[Path]:
    """Such a process, with its pipes in this folder."""
    for pipe in ("ask", "told"):
        os.mkfifo(folder / pipe)
    command = [sys.executable, "-m", __name__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            yield folder
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def main(folder: Path) -> None:
    for module in READ:
        import_module(module)
    while True:
        asked = (folder / "ask").read_text("utf-8").split("\0")
        child = os.fork()
        if child == 0:
            return _become(asked)
        _, status = os.waitpid(child, 0)
        _tell(folder / "told", os.waitstatus_to_exitcode(status) % 256, shell=asked[0])


def _tell(pipe: Path, code: int, shell: str) -> None:
    """With what the command ended, unless the shell has ended too, and listens no more."""
    while Path(f"/proc/{shell}").exists():
        with suppress(OSError), open(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK), "w") as told:  # noqa: PTH123
            told.write(f"{code}\n")
            return
        time.sleep(0.005)


def _become(asked: list[str]) -> None:
    """What the shell would have started: its command, in its folder, with its output."""
    shell, count, *rest = asked
    words = rest[: int(count)]
    signal.alarm(MOST_SECONDS)
    os.environ.clear()
    variables = (each.partition("=") for each in rest[int(count) :] if each)
    os.environ.update((name, value) for name, _, value in variables)
    os.chdir(os.environ["PWD"])
    _print_to(f"/proc/{shell}/fd/1")
    _run(words)


def _print_to(path: str) -> None:
    for number in (1, 2):
        os.dup2(os.open(path, os.O_WRONLY), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)


def _run(words: list[str]) -> None:
    sys.argv = words[1:] if words[0] == "python" else words
    sys.path[0] = str(Path.cwd()) if words[0] == "python" else str(Path(sys.executable).parent)
    if words[0] == "python":
        runpy.run_path(words[1], run_name="__main__")
    else:
        import_module("perdure.cli").main()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
