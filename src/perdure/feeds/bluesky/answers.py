"""What Bluesky's answers mean when they are not what was asked for. Pure; this is the whole table.

The status alone says little: an expired token, an unknown account and a malformed cursor are all 400. Each is
told by its status and its `error`, and by the whole message where two share these.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import msgspec

from ...storage import Micros
from ..errors import (
    AccountBlocked,
    AccountUnavailable,
    CursorRefused,
    InvalidActor,
    NotAuthorized,
    RateLimited,
    RequestRefused,
    SourceError,
    SourceFailed,
    SourceUnavailable,
)
from .shapes import Refusal

SECOND: Micros = 1_000_000


class TokenRefused(NotAuthorized):
    """The token is no longer good. A fresh one may be; `session` sees to that."""


_BY_ERROR: dict[tuple[int, str], type[SourceError]] = {
    (400, "BlockedActor"): AccountBlocked,
    (400, "BlockedByActor"): AccountBlocked,
    (400, "ExpiredToken"): TokenRefused,
    (400, "InvalidToken"): TokenRefused,
    (401, "ExpiredToken"): TokenRefused,
    (401, "InvalidToken"): TokenRefused,
    (400, "AccountDeactivated"): AccountUnavailable,
    (400, "AccountTakedown"): AccountUnavailable,
    (400, "RepoNotFound"): AccountUnavailable,
    (400, "RepoDeactivated"): AccountUnavailable,
    (400, "RepoSuspended"): AccountUnavailable,
    (400, "RepoTakendown"): AccountUnavailable,
}

_BY_MESSAGE: dict[str, type[SourceError]] = {
    "Profile not found": AccountUnavailable,
    "Actor not found: {actor}": AccountUnavailable,
    "Could not find repo: {actor}": AccountUnavailable,
    "Invalid AT identifier": InvalidActor,
    "Malformed cursor": CursorRefused,
}
"""What 400 InvalidRequest means."""


def refusal(status: int, headers: Mapping[str, str], body: bytes, *, actor: str, now: Micros) -> SourceError:
    """The error that an answer other than 2xx and 304 stands for. `actor` is who was asked about."""
    told = _told(body)
    if status == 429:
        return RateLimited(retry_at(headers, now))
    if told is None or status >= 500 or status == 408:
        kind = SourceFailed if status == 500 else SourceUnavailable
        reason = f"status {status}{f': {told.error} {told.message}' if told else ''}"
        return kind(reason, until=retry_at(headers, now) if "retry-after" in headers else None)
    return _meaning(status, told, actor)(f"{told.message or told.error} ({status} {told.error})")


def _meaning(status: int, told: Refusal, actor: str) -> type[SourceError]:
    if (known := _BY_ERROR.get((status, told.error))) is not None:
        return known
    if status == 401:
        return NotAuthorized
    if (status, told.error) != (400, "InvalidRequest"):
        return RequestRefused
    messages = {message.format(actor=actor): meaning for message, meaning in _BY_MESSAGE.items()}
    return messages.get(told.message, RequestRefused)


def _told(body: bytes) -> Refusal | None:
    """None: whoever answered, it was not Bluesky."""
    try:
        return _refusal.decode(body)
    except (ValueError, RecursionError):
        return None


def retry_at(headers: Mapping[str, str], now: Micros) -> Micros | None:
    """When to come back. None: it does not say."""
    if (told := headers.get("retry-after")) is not None:
        if (seconds := number_in(told)) is not None:
            return now + seconds * SECOND
        if (date := _date_in(told)) is not None:
            return date
    reset = number_in(headers.get("ratelimit-reset"))
    return None if reset is None else reset * SECOND


def allowance(headers: Mapping[str, str]) -> tuple[int | None, int, Micros] | None:
    """The limit, what is left of it, and when it begins anew. None: it does not say."""
    remaining = number_in(headers.get("ratelimit-remaining"))
    reset = number_in(headers.get("ratelimit-reset"))
    if remaining is None or reset is None:
        return None
    return number_in(headers.get("ratelimit-limit")), remaining, reset * SECOND


def number_in(told: str | None) -> int | None:
    """Headers come from anywhere: what is no plain number is nothing."""
    if told is None or not (plain := told.strip()).isascii() or not plain.isdigit() or len(plain) > 12:
        return None
    return int(plain)


def _date_in(told: str) -> Micros | None:
    try:
        return int(parsedate_to_datetime(told).timestamp()) * SECOND
    except (ValueError, OverflowError):
        return None


_refusal = msgspec.json.Decoder(Refusal)
