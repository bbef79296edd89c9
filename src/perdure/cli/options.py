"""The options that several families of commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="tell it as JSON, on standard output")]
DEFAULT_URL = "sqlite:///perdure.db"
"""Where tasks are, if nobody says otherwise: `serve` puts them there, and `tasks` looks there."""
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would be done, and change nothing")]
