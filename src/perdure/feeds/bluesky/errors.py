"""What Bluesky's answers mean when they are not what was asked for. Pure; this is the whole table.

The status alone says little: an expired token, an unknown account and a malformed cursor are all 400. Each is
told by its status and its `error`, and by the whole message where two share these.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import msgspec

from ...storage import Micros
from ...storage.clock import SECOND
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
from .lexicon import Refusal

CHECK_CREDENTIALS = "check bluesky.identifier in the settings, and its app password"


class TokenRefused(SourceError):
    """The access token is no longer valid. `session` gets a new one; the error never leaves this package."""


_BY_ERROR: dict[tuple[int, str], type[SourceError]] = {
    (400, "BlockedActor"): AccountBlocked,
    (400, "BlockedByActor"): AccountBlocked,
    (400, "ExpiredToken"): TokenRefused,
    (400, "InvalidToken"): TokenRefused,
    (401, "ExpiredToken"): TokenRefused,
    (401, "InvalidToken"): TokenRefused,
    (401, "AuthMissing"): NotAuthorized,
    (401, "AuthenticationRequired"): NotAuthorized,
    (400, "AccountDeactivated"): AccountUnavailable,
    (400, "AccountTakedown"): AccountUnavailable,
    (400, "RepoNotFound"): AccountUnavailable,
    (400, "RepoDeactivated"): AccountUnavailable,
    (400, "RepoSuspended"): AccountUnavailable,
    (400, "RepoTakendown"): AccountUnavailable,
}

_OUR_ACCOUNT = frozenset({"AccountDeactivated", "AccountTakedown"})
"""Errors of status 401 about the account whose token was sent."""

_BY_MESSAGE: dict[str, type[SourceError]] = {
    "Profile not found": AccountUnavailable,
    "Actor not found: {actor}": AccountUnavailable,
    "Could not find repo: {actor}": AccountUnavailable,
    "Invalid AT identifier": InvalidActor,
    "Malformed cursor": CursorRefused,
}
"""What 400 InvalidRequest means."""


def refusal(
    status: int, headers: Mapping[str, str], body: bytes, *, actor: str, now: Micros, has_token: bool = False
) -> SourceError:
    """Return the error that an answer other than 2xx and 304 stands for.

    `actor` is the account that was asked about. `has_token` is whether the request was sent with a token.
    """
    told = _told(body)
    if status == 429:
        return RateLimited(retry_at(headers, now))
    if told is None or status >= 500 or status == 408:
        return _unavailable(status, headers, told, now)
    meaning = _meaning(status, told, actor, has_token=has_token)
    if meaning is SourceUnavailable:
        return _unavailable(status, headers, told, now)
    advice = f"; {CHECK_CREDENTIALS}" if meaning is NotAuthorized else ""
    return meaning(f"{told.message or told.error} ({status} {told.error}){advice}")


def _unavailable(
    status: int, headers: Mapping[str, str], told: Refusal | None, now: Micros
) -> SourceUnavailable:
    kind = SourceFailed if status == 500 else SourceUnavailable
    reason = f"status {status}{f': {told.error} {told.message}' if told else ''}"
    return kind(reason, until=retry_at(headers, now) if "retry-after" in headers else None)


def _meaning(status: int, told: Refusal, actor: str, *, has_token: bool) -> type[SourceError]:
    if (known := _BY_ERROR.get((status, told.error))) is not None:
        return known if has_token or known is not TokenRefused else SourceUnavailable
    if status == 401:
        # Any other 401 is about a token between their own servers ("jwt expired"), and passes.
        return NotAuthorized if has_token and told.error in _OUR_ACCOUNT else SourceUnavailable
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
