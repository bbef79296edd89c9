"""Every change of status that a task can make, in one table. Nothing else in perdure decides this.

A task alternates between `working` and `input_required` while it asks questions and gets answers. The other
statuses are final. The diagram in the documentation is generated from this table.
"""

from __future__ import annotations

from enum import StrEnum

from .errors import IllegalTransition, TerminalTask


class Status(StrEnum):
    """The status of a task, spelled as in the protocol."""

    WORKING = "working"
    """Queued or running. The worker changes it next."""
    INPUT_REQUIRED = "input_required"
    """Waiting for answers. The client's answers, or a cancellation, change it next."""
    COMPLETED = "completed"
    """Finished with a result, which may itself report an error."""
    FAILED = "failed"
    """Finished with a JSON-RPC error."""
    CANCELLED = "cancelled"
    """Finished by a cancellation."""

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
"""The statuses that are not final. Quotas count tasks with one of these."""


def check_transition(source: Status, target: Status) -> None:
    """Raise IllegalTransition unless the table allows this change. No status changes to itself."""
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
    """Return the table as a Mermaid diagram."""
    transitions = [
        f"    {source} --> {target}"
        for source in Status
        for target in Status
        if target in TRANSITIONS[source]
    ]
    ends = [f"    {status} --> [*]" for status in Status if status.is_terminal]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {Status.WORKING}", *transitions, *ends])
