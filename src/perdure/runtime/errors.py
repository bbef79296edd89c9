"""What can go wrong in running tasks, as one tree.

    PerdureError
    ├── CredentialsNotStored   raised by `get_access_token` and others: the server had no key to store them
    └── RunError
        ├── UnknownFunction    no function of this name is registered here
        ├── QueueFull          too many tasks wait for a worker (retryable)
        ├── Again              raised by a function: this attempt failed, run me once more
        ├── Failed             raised by a function: end the task with this JSON-RPC error
        ├── Pause              raised by a function: ask this, let go, run me again when it is answered
        ├── TooManyWaiting     raised by `task.ask`: too many runs of this process wait for answers already
        ├── ClientCannotAnswer raised by `task.elicit` and others: the client did not declare this
        ├── InputFailed        raised by `task.elicit` and others: the client answered with a JSON-RPC error
        └── TaskCancelled      raised in a plain function that asks whether it was cancelled, and was

ClaimLost is an error of tasks: it is what a store answers to a worker that no longer holds the task.
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
from ..tasks.canonical_json import JsonLike
from ..tasks.errors import ClaimLost, InvalidValue
from ..tasks.inputs import Capability, InputError, InputKind, InputRequest
from ..tasks.task_record import Failure

OUTAGES = (StorageBusy, StorageClosed, StorageFailed, StorageFull, StorageReadOnly, StorageUnavailable)
"""Storage failures that interrupt a run: the work itself has not failed."""

INTERNAL_ERROR = -32603
MOST_SECONDS = 100 * 365 * 24 * 3600.0


class RunError(PerdureError):
    """Something about running a task."""


class CredentialsNotStored(PerdureError, RuntimeError):
    """Raised when a function uses credentials of its caller that could not be stored, without a key.

    FastMCP reads the token for its own spans too, and expects a RuntimeError if that is not possible.
    """

    def __init__(self, task_id: str) -> None:
        super().__init__(
            f"the caller's credentials were not stored with task {task_id}, because the server that received "
            "the call has no encryption key; make one with: perdure key, and set PERDURE_ENCRYPTION_KEY"
        )


class UnknownFunction(RunError):
    """No function of this name is registered here."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"there is no function {name!r}; registered are {', '.join(known) or 'none'}")
        self.name = name


class QueueFull(RunError):
    """Too many tasks wait for a worker already. Nothing was created."""

    retryable = True

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} tasks wait for a worker, which is the maximum; try again later")
        self.limit = limit


class Again(RunError):
    """Raised by a function: this attempt failed, and another may succeed.

    It is run again, after its backoff or `after` seconds, while it has retries left; then the task fails.
    """

    def __init__(self, reason: str, *, after: float | None = None) -> None:
        super().__init__(reason)
        if after is not None and not 0 <= after <= MOST_SECONDS:
            raise InvalidValue("after", f"must be from 0 to {MOST_SECONDS:g} seconds, not {after}")
        self.reason = str(reason)
        self.after = after


class Failed(RunError):
    """Raised by a function: end the task as failed, with this JSON-RPC error to the letter."""

    def __init__(self, code: int, message: str, data: JsonLike | UnsetType = UNSET) -> None:
        super().__init__(message)
        self.failure = Failure.of(code, message, data)


def is_signal(error: BaseException) -> bool:
    """Return whether an exception says how the run of its function ends, and is not a mistake."""
    if not isinstance(error, PerdureError):
        return False
    return isinstance(error, (RunError, ClaimLost, *OUTAGES)) or error.retryable


class HiddenError(Exception):
    """Stands in a log for an exception whose text may be secret. It has the same traceback."""


def loggable(error: BaseException, *, is_encrypted: bool) -> BaseException:
    """Return the exception to log: without its text, and what caused it, if the task is encrypted."""
    if not is_encrypted:
        return error
    hidden = HiddenError(f"{type(error).__name__}; its text is not logged, because the task is encrypted")
    return hidden.with_traceback(error.__traceback__)


def exited(error: SystemExit) -> Failed:
    """A function that calls `exit` ends its task, not the event loop and all other work with it."""
    return Failed(INTERNAL_ERROR, f"the function called exit({error.code})")


class Pause(RunError):
    """Raised by a function: ask the client and let go of the worker, for a minute or a month.

    When all is answered the function is run again, from the start, and finds the answers. That does not
    count as another attempt. Use `task.ask` instead to wait in place.
    """

    def __init__(
        self,
        requests: Mapping[str, InputRequest],
        *,
        variables: Mapping[str, JsonLike] = {},
        checkpoint: Mapping[str, JsonLike] = {},
    ) -> None:
        super().__init__(f"waiting for {', '.join(requests)}")
        self.requests = requests
        self.variables = variables
        self.checkpoint = checkpoint


class ClientCannotAnswer(RunError):
    """The client did not declare that it can be asked this, and nobody else may answer.

    `capability` is what it would have to declare.
    """

    def __init__(self, kind: InputKind, capability: Capability) -> None:
        super().__init__(f"the client cannot answer {kind.value}: it did not declare {capability.value}")
        self.kind = kind
        self.capability = capability


class InputFailed(RunError):
    """The client answered a question with a JSON-RPC error."""

    def __init__(self, key: str, error: InputError) -> None:
        super().__init__(f"the client answered {key!r} with error {error.code}: {error.message}")
        self.key = key
        self.error = error


class TooManyWaiting(RunError):
    """Too many runs of this process wait for answers, and this one cannot pause: it must not run twice."""

    retryable = True

    def __init__(self, limit: int) -> None:
        super().__init__(f"max_input_waits is reached: {limit} run(s) of this process wait for answers")
        self.limit = limit


class TaskCancelled(RunError):
    """Raised by `task.check_cancelled()`: somebody wants the task to end."""

    def __init__(self) -> None:
        super().__init__("the task was cancelled")
