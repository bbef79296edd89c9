"""`python -m tools.crash_recording`: records the crash of the README in a terminal, as docs/images/crash.svg.

A shell in a pseudo-terminal runs the files of the README: the server is killed with `kill -9` while a client
waits, and started again. The picture is an animation of what the terminal showed. It starts while the report
is being written, and long waits are shortened.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "images" / "crash.svg"
COLUMNS, CHARACTER, LINE, MARGIN = 132, 8.43, 20, 16
"""The width of the terminal in characters; the size of a character, and the margin, in pixels."""
MAX_PAUSE = 2.0
"""Seconds to which longer waits are shortened in the picture."""
PROMPT = "$ "
SHELL = ["bash", "--noprofile", "--norc", "-i"]
SETTINGS = {"PS1": PROMPT, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"}
LOG = "server.log"


class Step(NamedTuple):
    command: str
    seconds: float
    """How long to wait after it at most."""
    until: str | None = None
    """What ends the wait earlier, if the terminal shows it."""
    after: str | None = None
    """What the log of the server must contain before the command is typed."""


KILL = "kill -9 %1"
STEPS = (
    Step(f"perdure serve reports:server > {LOG} 2>&1 &", 6),
    Step("python call.py 2> client.log &", 5),
    Step("perdure tasks list", 4),
    Step(KILL, 2),
    Step(f"perdure serve reports:server > {LOG} 2>&1 &", 5),
    Step("perdure tasks list  # after 20 seconds: the report continues", 4, after="was lost in attempt"),
    Step("wait %2  # the client is still waiting", 90, "12 pages"),
)
MAX_WAIT = 60.0
"""Seconds to wait for the log of the server at most."""


class Shown(NamedTuple):
    at: float
    text: str


def record(folder: Path) -> list[Shown]:
    """Run the steps in a terminal, and return what it showed, with times."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        os.execvpe(SHELL[0], SHELL, {**os.environ, **SETTINGS})  # noqa: S606 - the shell is the subject
    shown: list[Shown] = []
    try:
        _read(terminal, shown, 3, PROMPT)
        shown.clear()
        shown.append(Shown(time.monotonic(), PROMPT))
        for step in STEPS:
            if step.after is not None:
                _wait_for_log(folder / LOG, step.after, terminal, shown)
            os.write(terminal, f"{step.command}\n".encode())
            _read(terminal, shown, step.seconds, step.until)
    finally:
        os.write(terminal, b"kill -9 %+ 2>/dev/null; exit\n")
        time.sleep(1)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)
    return shown


def _wait_for_log(log: Path, text: str, terminal: int, shown: list[Shown]) -> None:
    """Read the terminal until the log contains this text, and then until the report has another page."""
    end = time.monotonic() + MAX_WAIT
    while text not in log.read_text():
        if time.monotonic() > end:
            raise TimeoutError(f"the server did not log {text!r}")
        _read(terminal, shown, 0.2, None)
    _read(terminal, shown, 2, None)


def _read(terminal: int, shown: list[Shown], seconds: float, until: str | None) -> None:
    end = time.monotonic() + seconds
    while (rest := end - time.monotonic()) > 0:
        if not select.select([terminal], [], [], rest)[0]:
            return
        text = os.read(terminal, 65536).decode(errors="replace")
        shown.append(Shown(time.monotonic(), text))
        if until is not None and until in "".join(each.text for each in shown[-3:]):
            end = min(end, time.monotonic() + 1)


def lines(shown: list[Shown]) -> list[Shown]:
    """Return the lines of the terminal, each with the time at which it began, without long pauses."""
    found: list[Shown] = []
    at, before = 0.0, shown[0].at
    line: Shown | None = None
    for each in shown:
        at += min(each.at - before, MAX_PAUSE)
        before = each.at
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\][^\x07]*\x07|\r", "", each.text)
        for number, part in enumerate(text.split("\n")):
            if number or line is None:
                if line is not None:
                    found.append(line)
                line = Shown(at, "")
            if part:
                line = Shown(line.at if line.text.strip() not in ("", "$") else at, line.text + part)
    found += [line] if line is not None and line.text.strip(" $") else []
    killed = next(number for number, line in enumerate(found) if line.text.endswith(KILL))
    started = found[killed - 1].at
    return [Shown(max(0.0, line.at - started), line.text.rstrip()) for line in found]


def svg(terminal: list[Shown]) -> str:
    """Return an animation in which the lines appear one after the other, and stay."""
    width, height = round(COLUMNS * CHARACTER) + 2 * MARGIN, len(terminal) * LINE + 2 * MARGIN
    return "\n".join([*_head(width, height), *_rows(terminal), "</svg>", ""])


def _head(width: int, height: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="A server is killed and started again, and its client gets '
        'the report">'
    )
    yield "<style>"
    yield "text { font: 14px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #d7dae0;"
    yield "  white-space: pre; animation: appear 1ms both; }"
    yield ".typed { fill: #8fd3ff; }"
    yield "@keyframes appear { from { visibility: hidden } to { visibility: visible } }"
    yield "@media (prefers-reduced-motion: reduce) { text { animation: none } }"
    yield "</style>"
    yield f'<rect width="{width}" height="{height}" rx="8" fill="#1d2027"/>'


def _rows(terminal: list[Shown]) -> Iterator[str]:
    for number, line in enumerate(terminal):
        y = MARGIN + (number + 0.75) * LINE
        kind = ' class="typed"' if line.text.startswith(PROMPT) else ""
        text = escape(line.text[:COLUMNS].replace(" ", "\N{NO-BREAK SPACE}"))
        yield f'<text{kind} x="{MARGIN}" y="{y:g}" style="animation-delay: {line.at:.1f}s">{text}</text>'


def main() -> None:
    blocks = re.findall(
        r'^```python title="(\S+)"\n(.*?)^```$', (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as name:
        for title, text in blocks:
            (Path(name) / title).write_text(text)
        shown = lines(record(Path(name)))
    PICTURE.write_text(svg(shown))
    print("\n".join(f"{line.at:5.1f}  {line.text}" for line in shown))


if __name__ == "__main__":
    main()
