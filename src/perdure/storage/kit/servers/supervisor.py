"""Runs a server as a child process, and stops it when the standard input of this program is closed.

A killed test run therefore leaves no server behind. This file runs as a script that imports neither perdure
nor site packages, because that starts faster: `python -I -S supervisor.py USER COMMAND...`. It prints the
process id of the server. USER is a numeric user id, or `-` to keep the current user.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

STOP_TIMEOUT = 30.0
"""Seconds to wait after SIGINT before the server is killed."""


def main(user: str, *command: str) -> int:
    """Run the command as this user, and return the command's exit code."""
    number = None if user == "-" else int(user)
    server = subprocess.Popen(  # noqa: S603 - the caller's command
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        user=number,
        group=number,
        start_new_session=True,
    )
    print(server.pid, flush=True)
    threading.Thread(target=_stop_when_orphaned, args=(server,), daemon=True).start()
    return server.wait()


def _stop_when_orphaned(server: subprocess.Popen[bytes]) -> None:
    """Wait until standard input is closed, then stop the server."""
    while os.read(0, 1024):
        pass
    server.send_signal(signal.SIGCONT)
    server.send_signal(signal.SIGINT)  # PostgreSQL: fast shutdown; the others stop as well
    try:
        server.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
