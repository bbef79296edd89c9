"""Makes `python -m perdure.cli` run the `perdure` command."""

from . import main

main()
