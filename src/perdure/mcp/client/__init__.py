"""Tasks for clients of the official SDK: calls that wait by themselves, and handles that can be kept.

Read `extension` (what a client's author writes), `handle` (one task), `dialects` (how each protocol asks).
"""

from .client_task import ClientTask
from .extension import ClientTasks
from .states import TaskState

__all__ = ["ClientTask", "ClientTasks", "TaskState"]
