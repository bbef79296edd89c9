"""Operating: what those who run the servers do to everybody's tasks. The commands and the dashboard use it.

Read `operator` (all that can be done), then `rows` and `details` (what is shown of a task, and what is not).
"""

from .errors import AmbiguousId, NotAsked, TooShort
from .listing import Rows
from .operator import Operator
from .purge import Purge
from .stats import Bucket, Stats, Throughput, Worker
from .views import Asked, Detail, Event, Held, NewerTask, Question, Row, asked_in, outcome_of
from .watch import Changes, Pace

__all__ = [
    "AmbiguousId",
    "Asked",
    "Bucket",
    "Changes",
    "Detail",
    "Event",
    "Held",
    "NewerTask",
    "NotAsked",
    "Operator",
    "Pace",
    "Purge",
    "Question",
    "Row",
    "Rows",
    "Stats",
    "Throughput",
    "TooShort",
    "Worker",
    "asked_in",
    "outcome_of",
]
