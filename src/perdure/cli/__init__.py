"""The `perdure` command. It requires the `cli` extra."""

from __future__ import annotations

import sys

from ..storage.install_advice import install_command


def main() -> None:
    """Run the `perdure` command. Exit with a hint if the `cli` extra is not installed."""
    try:
        from .commands import commands  # noqa: PLC0415 (the extra may be missing)
        from .errors import report_errors  # noqa: PLC0415
    except ModuleNotFoundError as error:
        reason = f"the perdure command needs the cli extra (no module named {error.name!r})"
        sys.exit(f"{reason}; install it with: {install_command('cli')}")
    with report_errors():
        commands()
