"""Run `python -m perdure.cli` like the command `perdure`."""

from . import main

main()
