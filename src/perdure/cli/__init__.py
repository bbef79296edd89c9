"""The commands. They need the extra `cli`; what they do is done by the packages below."""

from __future__ import annotations

import sys


def main() -> None:
    """`perdure`, as installed."""
    try:
        from .commands import commands  # noqa: PLC0415 (the extra may be missing)
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is not installed; install the commands with: pip install 'perdure[cli]'")
    commands()
