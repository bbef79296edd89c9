"""Runs a server as a child process, and stops the server when this program's standard input is closed.

The input is closed when the test run ends or is killed, so no server outlives the test run. Run this file as
a script: `python -I -S supervisor.py USER COMMAND...`. USER is a numeric user id, or `-` to keep the
current user. The script prints the process id of the server. It starts fast, because it imports neither
perdure nor site packages.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

STOP_TIMEOUT = 30.0
"""Number of seconds after SIGINT before the server is killed."""


def main(user: str, *command: str) -> int:
    """Run `command` as `user`, and return the exit code of the command."""
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
    server.send_signal(signal.SIGINT)  # a fast shutdown of PostgreSQL; the other servers stop as well
    try:
        server.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
