"""The SIGTERM that uvicorn raises after it has served ends the process only after the lifespan."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from perdure.runtime.delayed_sigterm import delayed_sigterm

from ..markers import server

PROGRAM = """
import asyncio, signal, sys, threading, uvicorn
from perdure.runtime.delayed_sigterm import delayed_sigterm

def say(*words): print(*words, flush=True)

async def app(scope, receive, send): ...

async def serve():
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="critical"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    signal.raise_signal(signal.SIGTERM)
    await serving
    say("served")

def stop(): signal.raise_signal(signal.SIGTERM)

how = sys.argv[1]
if how == "own":
    signal.signal(signal.SIGTERM, lambda *_: say("own handler"))
with delayed_sigterm():
    if how != "plain":
        asyncio.run(serve())
    if how in ("plain", "twice"):
        stop()
    say("left")
say("after")
"""


@server
@pytest.mark.parametrize(
    ("how", "code", "shown"),
    [
        ("uvicorn", -signal.SIGTERM, ["served", "left"]),
        ("plain", -signal.SIGTERM, []),
        ("twice", -signal.SIGTERM, ["served"]),
        ("own", 0, ["own handler", "served", "left", "after"]),
    ],
)
def test_only_the_sigterm_of_uvicorn_is_delayed(how: str, code: int, shown: list[str]) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.split("\n")[:-1]) == (code, shown), ended.stderr


def test_the_default_handler_is_restored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with delayed_sigterm():
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            with delayed_sigterm():
                pass
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_of_the_main_thread_nothing_changes() -> None:
    found: list[object] = []

    def enter() -> None:
        with delayed_sigterm():
            found.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [before]
