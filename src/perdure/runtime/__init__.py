"""Runs tasks: claims and leases, recovery, cancellation, questions to clients, and workers.

Read `app` (what a program declares), `task` (what a function can do), `lease` and `run` (how a run keeps its
claim), `recovery` (what happens if its worker is lost), then `worker`.
"""

from ..tasks.errors import ClaimLost
from .app import App
from .cancellation import Cancellation
from .config import RuntimeConfig
from .endings import Stop
from .errors import (
    ClientCannotAnswer,
    InputFailed,
    Pause,
    QueueFull,
    Retry,
    TaskCancelled,
    TaskFailed,
    TooManyWaiting,
    UnknownFunction,
)
from .executor import Executor, InProcessExecutor, Job
from .function import Function, FunctionOptions, Functions, RunOptions
from .hold import Claim
from .run import Run
from .runtime import Runtime
from .task import Task, current_task

__all__ = [
    "App",
    "Cancellation",
    "Claim",
    "ClaimLost",
    "ClientCannotAnswer",
    "Executor",
    "Function",
    "FunctionOptions",
    "Functions",
    "InProcessExecutor",
    "InputFailed",
    "Job",
    "Pause",
    "QueueFull",
    "Retry",
    "Run",
    "RunOptions",
    "Runtime",
    "RuntimeConfig",
    "Stop",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "TooManyWaiting",
    "UnknownFunction",
    "current_task",
]
