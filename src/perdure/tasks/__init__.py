"""Durable tasks: the stored record of a task, the rules for changing it, and `TaskStore`.

Start with `lifecycle` and `task_record`, which define the data of a task. Then read `edits` and `store`.
"""

from .attempt_history import Attempt
from .canonical_json import Json
from .config import StoreConfig
from .edits import NewTask
from .inputs import InputKind, InputRequest
from .lifecycle import Status
from .listing import TaskFilter, TaskPage
from .owner import Owner
from .store import PurgeResult, TaskStore
from .task_log import LogEntry, LogLevel
from .task_record import Failure, Outcome, Progress, Success, TaskId, TaskRecord
from .task_snapshot import Snapshot
from .variables_and_checkpoint import Variables

__all__ = [
    "Attempt",
    "Failure",
    "InputKind",
    "InputRequest",
    "Json",
    "LogEntry",
    "LogLevel",
    "NewTask",
    "Outcome",
    "Owner",
    "Progress",
    "PurgeResult",
    "Snapshot",
    "Status",
    "StoreConfig",
    "Success",
    "TaskFilter",
    "TaskId",
    "TaskPage",
    "TaskRecord",
    "TaskStore",
    "Variables",
]
