"""Makes `python -m perdure` run the `perdure` command."""

from .cli import main

main()
