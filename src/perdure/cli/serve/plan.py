"""What was asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to serve, whichever server it is."""

    host: str
    port: int | None
    names: tuple[str, ...] | None
    """What requests may call the server; None: anything."""
    token: str | None
    """What callers must know."""
    dashboard_token: str | None
    """What opens the dashboard alone, where it is not the same as for callers."""
    read_only: bool
    dashboard: bool
    feeds: bool
    """Whether a poller runs beside the server."""

    @property
    def visitors_token(self) -> str | None:
        """What visitors of the dashboard must know."""
        return self.token if self.dashboard_token is None else self.dashboard_token
