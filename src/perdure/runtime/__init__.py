"""Running tasks: leases, claims, recovery, cancelling, waiting, input rounds, and the workers that do it.

Read `app` (what a program writes), `task` (what a function sees), `lease` and `run` (how a run is kept and
fenced), `recovery` (what happens when its worker dies), then `worker`.
"""

from ..tasks.errors import ClaimLost
from .app import App
from .cancellation import Cancellation
from .config import RuntimeConfig
from .endings import Stop
from .errors import (
    Again,
    ClientCannotAnswer,
    Failed,
    InputFailed,
    Pause,
    QueueFull,
    TaskCancelled,
    TooManyWaiting,
    UnknownFunction,
)
from .executor import Executor, InProcessExecutor, Job
from .function import Function, Functions
from .hold import Claim
from .run import Run
from .runtime import Runtime
from .task import Task, current_task

__all__ = [
    "Again",
    "App",
    "Cancellation",
    "Claim",
    "ClaimLost",
    "ClientCannotAnswer",
    "Executor",
    "Failed",
    "Function",
    "Functions",
    "InProcessExecutor",
    "InputFailed",
    "Job",
    "Pause",
    "QueueFull",
    "Run",
    "Runtime",
    "RuntimeConfig",
    "Stop",
    "Task",
    "TaskCancelled",
    "TooManyWaiting",
    "UnknownFunction",
    "current_task",
]
