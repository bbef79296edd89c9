"""Tasks for clients of the official SDK: calls that wait by themselves, and tasks that can be saved.

Read `extension` (what a client's author writes), `client_task`, `dialects` (how each protocol asks).
"""

from .client_task import ClientTask
from .extension import ClientTasks
from .states import TaskState

__all__ = ["ClientTask", "ClientTasks", "TaskState"]
