"""`perdure tasks ...`: everybody's tasks, for those who run the servers.

`views` and `writes` are the commands as typer sees them; how tasks are told is in `shapes` (to programs),
`lines` and `showing` (to people); `filling` makes answers of what was typed.
"""

from . import views, writes
from .options import tasks

__all__ = ["tasks", "views", "writes"]
