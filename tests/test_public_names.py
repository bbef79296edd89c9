"""The names that `import perdure` offers: the same for Python, for completion and for type checkers."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

import perdure
from perdure import ClientTask, ClientTasks, RuntimeConfig, Tasks
from perdure.mcp import TasksOptions, ToolOptions

from .markers import server

STUB = Path(perdure.__file__).with_suffix(".pyi")


def test_type_checkers_see_the_names_that_completion_offers() -> None:
    imports = [each for each in ast.parse(STUB.read_text()).body if isinstance(each, ast.ImportFrom)]
    assert {name.name for each in imports for name in each.names} == {*dir(perdure)} - {"__version__"}


def test_every_public_name_can_be_imported() -> None:
    assert all(getattr(perdure, name) is not None for name in dir(perdure))
    assert perdure.__version__ == metadata.version("perdure")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Taskz'"):
        getattr(perdure, "Taskz")  # noqa: B009 - type checkers refuse it otherwise


@server
def test_a_worker_does_not_load_the_server_of_the_sdk() -> None:
    program = "import sys, perdure; perdure.App, perdure.Status; sys.exit('mcp.server' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# What programs rely on. To change it is to change the API: programs break when a name or an option goes.

NAMES = """
Accepted AnswersNotSupported App AuthenticationRequired CannotOpen ClaimLost ClientCannotAnswer ClientTask
ClientTaskError ClientTasks ConnectionLost CopyMismatch CredentialsNotStored Elicited ExtensionNotInstalled
IdempotencyKeyReused IllegalTransition Input InputFailed InputKind InputRequest InvalidCursor
InvalidTaskResponse InvalidValue KeyMissing LimitExceeded MalformedAnswer NewerFormat NotDurable NotFound
NotReadableHere OutcomeUnknown Output Owner Param Pause PerdureError Progress QuestionChanged QueueFull
QuotaExceeded Refused Retry Root RunError Runtime RuntimeConfig Snapshot Status Step StorageBusy StorageClosed
StorageCorrupt StorageError StorageFailed StorageFull StorageReadOnly StorageUnavailable StoreConfig
TargetNotEmpty Task TaskCancelled TaskError TaskFailed TaskState TaskWasCancelled Tasks TasksNotSupported
TerminalTask TooManyWaiting UnknownFunction Variables WaitTimeout Workflow WrongVariableType __version__
current_task
"""
PARAMETERS: dict[Callable[..., object], str] = {
    Tasks: "url, **options",
    Tasks.durable: "self, function=None, /, **options",
    Tasks.attach: "self, *, middleware=(), extensions=(), lifespan=None",
    Tasks.install: "self, server, *, authenticated=False",
    ClientTasks: "*, push=False, reconnect=None",
    ClientTasks.call: (
        "self, client, tool, arguments={}, *, timeout=None, progress_callback=None, idempotency_key=None"
    ),
    ClientTasks.start: "self, client, tool, arguments={}, *, ttl=None, idempotency_key=None",
    ClientTasks.resume: "self, client, saved",
    ClientTask.wait: "self, timeout=None, *, on_state=None",
    RuntimeConfig: (
        "*, concurrency=64, max_waiting_runs=200, max_queued=None, heartbeat_interval=3.0, clock_skew=2.0, "
        "cancel_grace=5.0, drain_timeout=20.0, report_interval=0.4, queue_poll_interval=2.0, "
        "purge_interval=60.0"
    ),
}
TASKS_OPTIONS = """
anonymous application concurrency encrypt encryption_keys hand_over_after identify keep_alive
max_tasks_per_owner max_ttl retention runtime store stored_headers ttl
"""
TOOL_OPTIONS = """
backoff concurrency input_deadline mode name operators_answer poll_interval restart retries retry_on timeout
ttl
"""


def test_the_public_names_are_these() -> None:
    assert sorted(dir(perdure)) == sorted(NAMES.split())


@pytest.mark.parametrize("function", PARAMETERS, ids=lambda function: function.__qualname__)
def test_the_parameters_are_these(function: Callable[..., object]) -> None:
    signature = inspect.signature(function)
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    assert str(signature.replace(parameters=bare, return_annotation=signature.empty)) == (
        f"({PARAMETERS[function]})"
    )


def test_the_options_are_these() -> None:
    assert sorted(TasksOptions.__annotations__) == TASKS_OPTIONS.split()
    assert sorted(ToolOptions.__annotations__) == TOOL_OPTIONS.split()
