"""Operating: what those who run the servers do to everybody's tasks. The commands and the dashboard use it.

Read `operator` (all that can be done), then `rows` and `details` (what is shown of a task, and what is not).
"""

from .details import Asked, Detail, Event, Held, Question, asked_in, outcome_of
from .errors import AmbiguousId, NotAsked, TooShort
from .figures import Bucket, Stats, Throughput, Worker
from .listing import Rows
from .operator import Operator
from .purging import Purge
from .rows import NewerTask, Row
from .watching import Changes, Pace

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
