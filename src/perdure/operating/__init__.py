"""Operating: reading and changing the tasks of all owners, for the commands and the dashboard.

Read `operator` first (all operations), then `views` (what operators see of a task).
"""

from .errors import AmbiguousId, IdTooShort, NoOpenQuestion
from .listing import TaskSummaryPage
from .operator import Operator
from .purge import PurgeReport
from .stats import Bucket, Stats, Throughput, WorkerSummary
from .views import ClaimSummary, Event, NewerTask, Question, TaskDetail, TaskSummary, outcome_json
from .watch import TaskChanges, WatchConfig

__all__ = [
    "AmbiguousId",
    "Bucket",
    "ClaimSummary",
    "Event",
    "IdTooShort",
    "NewerTask",
    "NoOpenQuestion",
    "Operator",
    "PurgeReport",
    "Question",
    "Stats",
    "TaskChanges",
    "TaskDetail",
    "TaskSummary",
    "TaskSummaryPage",
    "Throughput",
    "WatchConfig",
    "WorkerSummary",
    "outcome_json",
]
