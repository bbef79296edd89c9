"""How a runtime is set up: how patient it is, how much it does at once. Times are in seconds."""

from __future__ import annotations

from math import isfinite

import msgspec

from ..tasks.errors import InvalidValue


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults suit a server with work of seconds to days."""

    concurrency: int = 64
    """Runs at once in this process. A run that waits for a client's answer is not counted."""
    max_input_waits: int = 200
    """Runs of this process that wait for an answer in place. More of them pause, if they may run again."""
    max_waiting: int | None = None
    """Tasks that no worker holds, in the whole storage; None: no bound but the store's quotas."""

    heartbeat: float = 3.0
    """How often a worker says that it lives."""
    clock_skew: float = 2.0
    """How far the clocks of replicas may be apart."""

    cancel_grace: float = 5.0
    """What a cancelled run is given to clean up, before it is abandoned."""
    drain: float = 20.0
    """What running work is given to finish, when the process is told to stop."""

    report_interval: float = 0.4
    """Between two writes of a task's progress, at least."""
    poll_interval: float = 2.0
    """Between two looks where a wake-up should have come and did not, about."""
    sweep_interval: float = 60.0
    """Between two sweeps of one worker, about."""

    def __post_init__(self) -> None:
        for name in ("concurrency", "max_input_waits", "max_waiting"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidValue(name, f"must be an integer of at least 1, not {value!r}")
        for name in ("heartbeat", "report_interval", "poll_interval", "sweep_interval"):
            _check_seconds(name, getattr(self, name), above_zero=True)
        for name in ("clock_skew", "cancel_grace", "drain"):
            _check_seconds(name, getattr(self, name), above_zero=False)

    @property
    def lease(self) -> float:
        """How long a lease lasts: three heartbeats, and the skew."""
        return 3 * self.heartbeat + self.clock_skew


def _check_seconds(name: str, value: object, *, above_zero: bool) -> None:
    if type(value) not in (int, float) or not isinstance(value, (int, float)) or not isfinite(value):
        raise InvalidValue(name, f"must be a number of seconds, not {value!r}")
    if value < 0 or (above_zero and value == 0):
        raise InvalidValue(
            name, f"must be {'more than' if above_zero else 'at least'} 0 seconds, not {value}"
        )
