"""The errors of running tasks.

    PerdureError
    ├── CredentialsNotStored   the caller's credentials were not stored, because there was no key
    └── RunError
        ├── UnknownFunction    no function with this name is registered in this process
        ├── QueueFull          too many tasks are queued (retryable)
        ├── Retry              raised by a function: this attempt failed; run the function again
        ├── TaskFailed         raised by a function: end the task with this JSON-RPC error
        ├── Pause              raised by a function: ask questions; run the function again with the answers
        ├── TooManyWaiting     too many runs of this process are waiting for answers (retryable)
        ├── ClientCannotAnswer the client did not declare that it can answer such a question
        ├── InputFailed        the client answered a question with a JSON-RPC error
        └── TaskCancelled      raised by `task.check_cancelled()` if the task was cancelled

A worker that lost its claim on a task gets ClaimLost, which is one of the errors of `perdure.tasks.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, UnsetType

from ..storage.errors import (
    PerdureError,
    StorageBusy,
    StorageClosed,
    StorageFailed,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)
from ..storage.time_types import Duration, to_seconds
from ..tasks.canonical_json import JsonLike
from ..tasks.errors import ClaimLost, InvalidValue
from ..tasks.inputs import Capability, InputError, InputKind, InputRequest
from ..tasks.task_record import Failure

OUTAGES = (StorageBusy, StorageClosed, StorageFailed, StorageFull, StorageReadOnly, StorageUnavailable)
"""The storage failures that interrupt a run. They do not count as failures of its function."""

INTERNAL_ERROR = -32603
MAX_RETRY_SECONDS = 100 * 365 * 24 * 3600.0


class RunError(PerdureError):
    """The base class of errors about running tasks."""


class CredentialsNotStored(PerdureError, RuntimeError):
    """Raised when a function uses credentials of its caller that were not stored, because there was no key.

    It is also a RuntimeError, because FastMCP expects one if it cannot read the token for its tracing spans.
    """

    def __init__(self, task_id: str) -> None:
        super().__init__(
            f"the caller's credentials were not stored with task {task_id}, because the server that received "
            "the call has no encryption key; set PERDURE_ENCRYPTION_KEY to a key from `perdure key`"
        )


class UnknownFunction(RunError):
    """Raised when no function with this name is registered in this process."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(
            f"no function is registered as {name!r}; registered functions: {', '.join(known) or 'none'}"
        )
        self.name = name


class QueueFull(RunError):
    """Raised when too many tasks are queued (`max_queued`). No task was created."""

    retryable = True

    def __init__(self, limit: int) -> None:
        super().__init__(f"the queue is full (max_queued is {limit}); try again later")
        self.limit = limit


class Retry(RunError):
    """Raised by a function whose attempt failed, and may succeed if it is repeated.

    If the function has retries left, it runs again after its backoff, or after `after`. Otherwise the task
    fails.
    """

    def __init__(self, reason: str, *, after: Duration | None = None) -> None:
        super().__init__(reason)
        seconds = None if after is None else to_seconds(after)
        if seconds is not None and not 0 <= seconds <= MAX_RETRY_SECONDS:
            limits = f"between 0 and {MAX_RETRY_SECONDS:.0f} seconds (100 years)"
            raise InvalidValue("after", f"must be {limits}, not {seconds}")
        self.reason = str(reason)
        self.after = seconds


class TaskFailed(RunError):
    """Raised by a function to fail its task with exactly this JSON-RPC error."""

    def __init__(self, code: int, message: str, data: JsonLike | UnsetType = UNSET) -> None:
        super().__init__(message)
        self.failure = Failure.of(code, message, data)


def is_signal(error: BaseException) -> bool:
    """Return whether the runtime must handle an exception that no mistake in the function has caused."""
    if not isinstance(error, PerdureError):
        return False
    return isinstance(error, (RunError, ClaimLost, *OUTAGES)) or error.retryable


class HiddenError(Exception):
    """Stands in a log for an exception whose text may be secret. It has the same traceback."""


def loggable(error: BaseException, *, is_encrypted: bool) -> BaseException:
    """Return the exception to log. If the task is encrypted, omit the text and the cause of `error`."""
    if not is_encrypted:
        return error
    hidden = HiddenError(f"{type(error).__name__}; its text is not logged, because the task is encrypted")
    return hidden.with_traceback(error.__traceback__)


def exited(error: SystemExit) -> TaskFailed:
    """Return the error that fails a task whose function called `exit`. The process continues."""
    return TaskFailed(INTERNAL_ERROR, f"the function called exit({error.code})")


class Pause(RunError):
    """Raised by a function to ask the client questions, and to end its run until all are answered.

    A question has its own deadline or, by default, the `input_deadline` of the function or the task's ttl.
    When all questions are answered, the function runs again from its start, and finds the answers. That does
    not count as another attempt. To wait for the answers without ending the run, use `task.ask`.
    """

    def __init__(
        self,
        requests: Mapping[str, InputRequest],
        *,
        variables: Mapping[str, JsonLike] = {},
        checkpoint: Mapping[str, JsonLike] = {},
    ) -> None:
        super().__init__(f"waiting for answers to {', '.join(requests)}")
        self.requests = requests
        self.variables = variables
        self.checkpoint = checkpoint


class ClientCannotAnswer(RunError):
    """Raised when a client did not declare that it can answer a question, and operators may not answer it.

    `capability` is the capability that the client would have to declare.
    """

    def __init__(self, kind: InputKind, capability: Capability) -> None:
        super().__init__(
            f"the client cannot answer {kind.value}: it did not declare the capability {capability.value}"
        )
        self.kind = kind
        self.capability = capability


class InputFailed(RunError):
    """Raised when the client answered a question with a JSON-RPC error."""

    def __init__(self, key: str, error: InputError) -> None:
        super().__init__(f"the client answered question {key!r} with error {error.code}: {error.message}")
        self.key = key
        self.error = error


class TooManyWaiting(RunError):
    """Raised when too many runs of this process wait for answers, and one more cannot be suspended.

    A run of a function that must not run twice (`restart=False`) cannot be suspended.
    """

    retryable = True

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"too many runs of this process are waiting for answers (max_waiting_runs is {limit}); "
            "try again later"
        )
        self.limit = limit


class TaskCancelled(RunError):
    """Raised by `task.check_cancelled()` if the task was cancelled."""

    def __init__(self) -> None:
        super().__init__("the task was cancelled")
