"""`python -m perdure.cli`: the same as `perdure`."""

from . import main

main()
