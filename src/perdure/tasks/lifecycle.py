"""Every move that a task can make, in one table. Nothing else in perdure decides about a status.

`input_required` and `working` alternate while the work asks and is answered; the three others are final.
The diagram in the docs is drawn from this table by `diagram`.
"""

from __future__ import annotations

from enum import StrEnum

from .errors import IllegalTransition, TerminalTask


class Status(StrEnum):
    """The five statuses, spelled as on the wire."""

    WORKING = "working"
    """Waiting for a worker, or being worked on. The worker moves it next."""
    INPUT_REQUIRED = "input_required"
    """The work has asked something. The client's answers, or a cancel, move it next."""
    COMPLETED = "completed"
    """Ended with a result, which may itself speak of an error."""
    FAILED = "failed"
    """Ended with a JSON-RPC error."""
    CANCELLED = "cancelled"
    """Ended because somebody asked for it."""

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
"""The statuses that quotas count."""


def check_transition(source: Status, target: Status) -> None:
    """Raise unless the table has this move. No status moves to itself."""
    if target in TRANSITIONS[source]:
        return
    if source.is_terminal:
        raise TerminalTask(source, target)
    raise IllegalTransition(source, target)


def check_active(status: Status) -> None:
    """Raise where the task has ended: terminal freezes everything."""
    if status.is_terminal:
        raise TerminalTask(status, Status.WORKING)


def diagram() -> str:
    """The table as a Mermaid diagram."""
    moves = [
        f"    {source} --> {target}"
        for source in Status
        for target in Status
        if target in TRANSITIONS[source]
    ]
    ends = [f"    {status} --> [*]" for status in Status if status.is_terminal]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {Status.WORKING}", *moves, *ends])
