"""Runs a server on a leash: when the other end of standard input is let go, the server ends too.

So a test run that is killed leaves nothing behind. Started as a script, without perdure and without site
packages, because that is quick: `python -I -S leash.py USER COMMAND...`; it prints the server's process id.
USER is a number, or `-` for the same one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

PATIENCE = 30.0
"""Seconds for an orderly end before a hard one."""


def main(user: str, *command: str) -> int:
    """Returns what the server returned."""
    number = None if user == "-" else int(user)
    server = subprocess.Popen(  # noqa: S603 - the command is the launcher's own
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        user=number,
        group=number,
        start_new_session=True,
    )
    print(server.pid, flush=True)
    threading.Thread(target=_hold, args=(server,), daemon=True).start()
    return server.wait()


def _hold(server: subprocess.Popen[bytes]) -> None:
    """Wait until nobody holds the other end; then let the server go."""
    while os.read(0, 1024):
        pass
    server.send_signal(signal.SIGCONT)
    server.send_signal(signal.SIGINT)  # of a PostgreSQL: roll back and go; others simply go
    try:
        server.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
