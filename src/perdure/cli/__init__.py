"""The `perdure` command. It requires the `cli` extra."""

from __future__ import annotations

import sys

from ..storage.install_advice import install_extra


def main() -> None:
    """Run the `perdure` command. Exit with a hint if the `cli` extra is not installed."""
    try:
        from .commands import commands  # noqa: PLC0415 (the extra may be missing)
        from .errors import report_errors  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is not installed; {install_extra('cli')}")
    with report_errors():
        commands()
