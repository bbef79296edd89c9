"""The operator API, which reads and changes the tasks of all owners. The commands and the dashboard use it.

Start with `operator` (all operations), then read `views` (how tasks are presented to operators).
"""

from .applications import ApplicationCounts, ApplicationSummary
from .errors import AmbiguousId, IdTooShort, NoOpenQuestion
from .listing import TaskSummaryPage
from .operator import Operator
from .purge import PurgeReport
from .stats import Bucket, Stats, Throughput, WorkerSummary
from .views import ClaimSummary, Event, NewerTask, Question, TaskDetail, TaskSummary, outcome_json
from .watch import TaskChanges, WatchConfig

__all__ = [
    "AmbiguousId",
    "ApplicationCounts",
    "ApplicationSummary",
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
