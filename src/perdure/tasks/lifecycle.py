"""The status changes that a task can make, in one table. No other code decides which changes are allowed.

A task alternates between `working` and `input_required` while it asks questions and gets answers. The other
statuses are final. The diagram in the documentation is generated from this table.
"""

from __future__ import annotations

from enum import StrEnum

from .errors import IllegalTransition, TerminalTask


class Status(StrEnum):
    """The status of a task. The values are defined by MCP."""

    WORKING = "working"
    """The task is queued or running. Normally a worker changes its status next."""
    INPUT_REQUIRED = "input_required"
    """The task waits for answers. The last answer, a cancellation or a deadline changes its status next."""
    COMPLETED = "completed"
    """The task finished with a result, which may itself report an error."""
    FAILED = "failed"
    """The task finished with a JSON-RPC error."""
    CANCELLED = "cancelled"
    """The task was cancelled before it could finish."""

    @property
    def is_terminal(self) -> bool:
        return not TRANSITIONS[self]


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.WORKING: frozenset({Status.INPUT_REQUIRED, Status.COMPLETED, Status.FAILED, Status.CANCELLED}),
    Status.INPUT_REQUIRED: frozenset({Status.WORKING, Status.COMPLETED, Status.FAILED, Status.CANCELLED}),
    Status.COMPLETED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELLED: frozenset(),
}

ACTIVE_STATUSES = frozenset(status for status in Status if TRANSITIONS[status])
"""The statuses that are not final. Quotas count the tasks with these statuses."""


def check_transition(source: Status, target: Status) -> None:
    """Raise IllegalTransition unless the table allows the change. A change to the same status is illegal."""
    if target in TRANSITIONS[source]:
        return
    if source.is_terminal:
        raise TerminalTask(source, target)
    raise IllegalTransition(source, target)


def check_active(status: Status) -> None:
    """Raise TerminalTask if the status is final."""
    if status.is_terminal:
        raise TerminalTask(status, Status.WORKING)


def diagram() -> str:
    """Return the table of status changes as a Mermaid diagram."""
    transitions = [
        f"    {source} --> {target}"
        for source in Status
        for target in Status
        if target in TRANSITIONS[source]
    ]
    ends = [f"    {status} --> [*]" for status in Status if status.is_terminal]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {Status.WORKING}", *transitions, *ends])
