"""The settings of a runtime. Each has a default, and is checked when the settings are created."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ..storage.time_types import Duration, to_seconds
from ..tasks.config import StoreConfig, check_seconds
from ..tasks.errors import InvalidValue

C = TypeVar("C", bound=msgspec.Struct)


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a runtime. The defaults suit servers whose tasks take from seconds to days.

    Durations are seconds, or a `timedelta`.
    """

    concurrency: int = 64
    """Maximum number of concurrent runs in this process. Runs that wait for an answer are not counted."""
    max_waiting_runs: int = 200
    """Maximum number of runs in this process that wait for an answer. When it is reached, further runs that
    may be restarted are suspended instead of waiting."""
    max_queued: int | None = None
    """Maximum number of queued tasks in the whole storage. None means that there are only the quotas."""

    heartbeat_interval: Duration = 3.0
    """How often a worker renews its leases."""
    clock_skew: Duration = 2.0
    """The maximum expected difference between the clocks of two processes."""

    cancel_grace: Duration = 5.0
    """How long a cancelled run may clean up before it is abandoned."""
    drain_timeout: Duration = 20.0
    """How long runs may continue after the process was asked to stop."""

    report_interval: Duration = 0.4
    """The minimum time between two writes of a task's progress."""
    queue_poll_interval: Duration = 2.0
    """The time after which a worker reads the queue even if no notification arrived, with jitter."""
    purge_interval: Duration = 60.0
    """The time between two purges by one worker, with jitter."""

    def __post_init__(self) -> None:
        for name in ("concurrency", "max_waiting_runs", "max_queued"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidValue(name, f"must be an integer, at least 1, not {value!r}")
        for name in ("heartbeat_interval", "report_interval", "queue_poll_interval", "purge_interval"):
            _check_duration(name, getattr(self, name), above_zero=True)
        for name in ("clock_skew", "cancel_grace", "drain_timeout"):
            _check_duration(name, getattr(self, name), above_zero=False)

    @property
    def lease(self) -> float:
        """How long a lease lasts, in seconds: three heartbeats and the clock skew."""
        return 3 * to_seconds(self.heartbeat_interval) + to_seconds(self.clock_skew)


def _check_duration(name: str, value: object, *, above_zero: bool) -> None:
    seconds = check_seconds(name, value)
    if seconds < 0 or (above_zero and seconds == 0):
        least = "more than" if above_zero else "at least"
        raise InvalidValue(name, f"must be {least} 0 seconds, not {seconds:g}")


def check_options(called: str, given: Iterable[str], known: Container[str]) -> None:
    """Raise TypeError for an unknown option. If it is a setting of a config class, the message says so.

    `called` is the name of the class or function that takes the options.
    """
    for name in given:
        if name in known:
            continue
        advice = "".join(
            f"; pass {option}={config.__name__}({name}=...)"
            for option, config in (("runtime", RuntimeConfig), ("store", StoreConfig))
            if name in config.__struct_fields__ and name != "allow_anonymous"  # set by the option anonymous
        )
        raise TypeError(f"{called}() got an unexpected keyword argument {name!r}{advice}")


def with_options(config: C, options: Mapping[str, Any]) -> C:
    """Return `config` with the values of those `options` that are its settings.

    Raise InvalidValue if a setting has a value in both.
    """
    given = {name: options[name] for name in config.__struct_fields__ if name in options}
    for name in given:
        if getattr(config, name) != getattr(type(config)(), name):
            kind = type(config).__name__
            raise InvalidValue(name, f"is set twice: as an option and in its {kind}; set it once")
    return replace(config, **given)
