"""`perdure tasks ...`: everybody's tasks, for those who run the servers.

`commands` and `writes` are the commands as typer sees them; how tasks are told is in `shapes` (to programs),
`render` and `showing` (to people); `prompt` makes answers of what was typed.
"""

from . import commands, writes
from .options import tasks

__all__ = ["commands", "tasks", "writes"]
