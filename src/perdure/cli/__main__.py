"""Runs the `perdure` command, so that `python -m perdure.cli` works too."""

from . import main

main()
