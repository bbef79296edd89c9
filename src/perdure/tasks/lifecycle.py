"""The table of allowed status changes. No other code decides which changes are allowed.

While a task asks questions and receives answers, it alternates between `working` and `input_required`. The
other statuses are final. A test compares the diagram in the documentation with this table.
"""

from __future__ import annotations

from enum import StrEnum

from .errors import IllegalTransition, TerminalTask


class Status(StrEnum):
    """The status of a task. The values are defined by MCP."""

    WORKING = "working"
    """The task is queued or running. It normally leaves this status when it finishes or asks a question."""
    INPUT_REQUIRED = "input_required"
    """The task is waiting for answers. It normally leaves this status when the last open question is
    answered. A cancellation or a missed deadline ends it instead."""
    COMPLETED = "completed"
    """The task finished with a result, which may itself report an error."""
    FAILED = "failed"
    """The task finished with a JSON-RPC error."""
    CANCELLED = "cancelled"
    """The task was cancelled before it completed or failed."""

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
    """Raise IllegalTransition unless `TRANSITIONS` allows the change. No status may change to itself."""
    if target in TRANSITIONS[source]:
        return
    if source.is_terminal:
        raise TerminalTask(source, target)
    raise IllegalTransition(source, target)


def check_active(status: Status) -> None:
    """Raise TerminalTask if the status is final."""
    if status.is_terminal:
        raise TerminalTask(status, Status.WORKING)
