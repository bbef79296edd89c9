"""Tasks for clients of the official SDK: calls that wait, and tasks that can be saved and resumed.

Read `extension` (what the author of a client writes), `client_task`, `connection` (how a server is reached
again), `protocols` (the requests of each protocol version).
"""

from .client_task import ClientTask
from .extension import ClientTasks
from .protocols import TaskState

__all__ = ["ClientTask", "ClientTasks", "TaskState"]
