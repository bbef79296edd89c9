"""`perdure feeds ...`: polling feeds, and looking at what was found.

`polls`, `accounts` and `views` are the commands as typer sees them. What they do is in `running`, `changing`
and `looking`; how it is said is in `telling` and `showing`.
"""

from . import accounts, polls, views
from .options import feeds

__all__ = ["accounts", "feeds", "polls", "views"]
