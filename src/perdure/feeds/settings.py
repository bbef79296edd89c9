"""Loads and validates the settings for polling feeds from a YAML or TOML file."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec

from ..storage import Micros
from ..storage.install_advice import install_extra
from ..storage.time_types import HOUR, MINUTE
from .errors import InvalidSettings

_BOUNDS: dict[str, tuple[float, float]] = {
    "interval_minutes": (2, 360),
    "posts_per_page": (1, 100),
    "initial_lookback_hours": (0, 24 * 3660),
    "max_retries": (0, 20),
    "retry_backoff_ms": (0, 600_000),
    "max_pages_per_user": (2, 100_000),
    "connections": (1, 1000),
    "retention_days": (1, 36_600),
}
"""The minimum and maximum value of each setting in `PollSettings`."""
MIN_FOLLOW_HOURS, MAX_FOLLOW_HOURS = 0.25, 24.0 * 31


class PollSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `polling` of the settings: how feeds are polled."""

    interval_minutes: float = 15
    """Minutes between the first two polls of a new account. After that, the interval adapts."""
    posts_per_page: int = 100
    """Number of posts to request for each page. The source may return fewer."""
    initial_lookback_hours: float = 24
    """How many hours back the first poll of an account reads its feed."""
    max_retries: int = 3
    """Maximum number of times that a failed request is repeated."""
    retry_backoff_ms: float = 1000
    """Milliseconds before a failed request is repeated for the first time. The delay doubles each time."""
    max_pages_per_user: int = 100
    """Maximum number of pages that one poll of an account reads. The next poll continues with the rest."""
    connections: int = 10
    """Maximum number of concurrent requests to a server."""
    retention_days: float | None = None
    """Number of days after which items are deleted. None to keep all items."""

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            value = cast("float | None", getattr(self, name))
            if value is not None and not (math.isfinite(value) and low <= value <= high):
                raise InvalidSettings(f"polling.{name}", f"must be between {low} and {high}, not {value}")

    @property
    def initial_interval(self) -> Micros:
        return round(self.interval_minutes * MINUTE)

    def oldest_kept(self, now: Micros) -> Micros:
        """Return the time of the oldest items to keep. Return 0 if all items are kept."""
        return 0 if self.retention_days is None else max(0, now - round(self.retention_days * 24 * HOUR))

    @property
    def lookback(self) -> Micros:
        return round(self.initial_lookback_hours * HOUR)


class BlueskySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `bluesky` of the settings: servers, login, follow lists and hints."""

    service: str = "https://public.api.bsky.app"
    """The server for requests without credentials."""
    pds: str = "https://bsky.social"
    """The server for requests with credentials, and for listing the records of an account."""
    identifier: str | None = None
    """The handle or DID to log in with. None to use Bluesky without a login."""
    password_variable: str = "PERDURE_BLUESKY_PASSWORD"  # noqa: S105 - the name of a variable
    """The name of the environment variable that contains the app password."""
    follow_lists: tuple[str, ...] = ()
    """Handles or DIDs of the accounts whose follow lists `perdure feeds run` synchronizes."""
    follow_interval_hours: float = 6
    """Hours between two synchronizations of the follow lists."""
    follow_prune: bool = False
    """Whether to suspend accounts that were added only from follow lists and are no longer on any of them."""
    hints: str | None = None
    """The feed that shows which accounts have new posts: `timeline` (the logged-in user's timeline), or the
    at:// URI of a Bluesky list."""

    def __post_init__(self) -> None:
        hours = self.follow_interval_hours
        if not MIN_FOLLOW_HOURS <= hours <= MAX_FOLLOW_HOURS:
            reason = f"must be between {MIN_FOLLOW_HOURS:g} and {MAX_FOLLOW_HOURS:g}, not {hours:g}"
            raise InvalidSettings("bluesky.follow_interval_hours", reason)


class FollowLists(msgspec.Struct, frozen=True, kw_only=True):
    """The follow lists that a poller synchronizes, and how it does so."""

    actors: tuple[str, ...]
    interval: Micros
    prune: bool
    """Whether to suspend accounts that were added only from follow lists and are no longer on any of them."""


class FeedSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str | None = None
    """The URL of the storage. `--url` and `PERDURE_URL` override it. None means the default URL."""
    polling: PollSettings = PollSettings()
    bluesky: BlueskySettings = BlueskySettings()

    @property
    def follow_lists(self) -> FollowLists:
        bluesky = self.bluesky
        return FollowLists(
            actors=bluesky.follow_lists,
            interval=round(bluesky.follow_interval_hours * HOUR),
            prune=bluesky.follow_prune,
        )


def load_settings(path: Path) -> FeedSettings:
    """Load settings from a file. Raise InvalidSettings if the file cannot be read or is invalid."""
    if path.suffix not in _PARSERS:
        raise InvalidSettings(str(path), "settings must be a .toml, .yaml or .yml file")
    try:
        values = _PARSERS[path.suffix](path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(str(path), f"cannot be read: {error}") from error
    except ValueError as error:
        raise InvalidSettings(str(path), f"invalid {path.suffix[1:].upper()}: {error}") from error
    try:
        return msgspec.convert({} if values is None else values, FeedSettings)
    except InvalidSettings as error:
        raise InvalidSettings(f"{path}: {error.setting}", error.reason) from error
    except msgspec.ValidationError as error:
        raise InvalidSettings(str(path), str(error)) from error


def _read_yaml(text: str) -> object:
    try:
        import yaml  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError as error:
        raise InvalidSettings(
            "settings", f"cannot read YAML without the package PyYAML; use TOML, or {install_extra('feeds')}"
        ) from error
    try:
        return cast("object", yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


_PARSERS: dict[str, Callable[[str], object]] = {
    ".toml": tomllib.loads,
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
}
