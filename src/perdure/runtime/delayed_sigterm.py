"""Delays the SIGTERM that uvicorn raises after it has served, until a lifespan around it has ended.

At SIGTERM, `uvicorn.Server.serve()` stops serving, restores the signal handlers that it found, and raises the
signal again. With the default handler, this ends the process. A framework that calls `serve()` within its
lifespan, as `FastMCP.run("http")` does, would never leave the lifespan.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def delayed_sigterm() -> Generator[None]:
    """If uvicorn raises SIGTERM in this block, end the process after the block instead of at once.

    Any other SIGTERM ends the process at once. Do nothing if the program handles SIGTERM itself, and outside
    of the main thread, where Python does not allow signal handlers.
    """
    is_raised = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal is_raised
        if not is_raised and frame is not None and frame.f_globals.get("__name__") == "uvicorn.server":
            is_raised = True
            return
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if is_raised:
            signal.raise_signal(signal.SIGTERM)
