"""Maps the error responses of Bluesky to exceptions. The functions in this module are pure.

The HTTP status alone is not enough: an expired token, an unknown account and a malformed cursor all have
status 400. So the fields `error` and, if necessary, `message` of the response are used as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import msgspec

from ...storage import Micros
from ...storage.time_types import SECOND
from ..errors import (
    AccountBlocked,
    AccountUnavailable,
    AuthenticationFailed,
    CursorRejected,
    InvalidActor,
    RateLimited,
    RequestRejected,
    SourceError,
    SourceServerError,
    SourceUnavailable,
)
from .lexicon import ErrorResponse

CHECK_CREDENTIALS = "check bluesky.identifier in the settings, and its app password"


class TokenRejected(SourceError):
    """Raised when the server rejects the access token. `AuthenticatedClient` then gets a new token."""


_ERRORS_BY_CODE: dict[tuple[int, str], type[SourceError]] = {
    (400, "BlockedActor"): AccountBlocked,
    (400, "BlockedByActor"): AccountBlocked,
    (400, "ExpiredToken"): TokenRejected,
    (400, "InvalidToken"): TokenRejected,
    (401, "ExpiredToken"): TokenRejected,
    (401, "InvalidToken"): TokenRejected,
    (401, "AuthMissing"): AuthenticationFailed,
    (401, "AuthenticationRequired"): AuthenticationFailed,
    (400, "AccountDeactivated"): AccountUnavailable,
    (400, "AccountTakedown"): AccountUnavailable,
    (400, "RepoNotFound"): AccountUnavailable,
    (400, "RepoDeactivated"): AccountUnavailable,
    (400, "RepoSuspended"): AccountUnavailable,
    (400, "RepoTakendown"): AccountUnavailable,
}

_OWN_ACCOUNT_ERRORS = frozenset({"AccountDeactivated", "AccountTakedown"})
"""Values of `error` that, with status 401, mean that the logged-in account itself is unavailable."""

_ERRORS_BY_MESSAGE: dict[str, type[SourceError]] = {
    "Profile not found": AccountUnavailable,
    "Actor not found: {actor}": AccountUnavailable,
    "Could not find repo: {actor}": AccountUnavailable,
    "Invalid AT identifier": InvalidActor,
    "Malformed cursor": CursorRejected,
}
"""Exceptions for responses with status 400 and the error `InvalidRequest`, by message."""


def error_from_response(
    status: int, headers: Mapping[str, str], body: bytes, *, actor: str, now: Micros, has_token: bool = False
) -> SourceError:
    """Return the exception for a response whose status is neither 2xx nor 304.

    `actor` is the account in the request. `has_token` specifies whether the request contained a token.
    """
    error = _parse_error(body)
    if status == 429:
        return RateLimited(retry_at(headers, now))
    if error is None or status >= 500 or status == 408:
        return _unavailable(status, headers, error, now)
    error_class = _error_class(status, error, actor, has_token=has_token)
    if error_class is SourceUnavailable:
        return _unavailable(status, headers, error, now)
    advice = f"; {CHECK_CREDENTIALS}" if error_class is AuthenticationFailed else ""
    return error_class(f"{error.message or error.error} ({status} {error.error}){advice}")


def _unavailable(
    status: int, headers: Mapping[str, str], error: ErrorResponse | None, now: Micros
) -> SourceUnavailable:
    kind = SourceServerError if status == 500 else SourceUnavailable
    reason = f"HTTP {status}{f': {error.error} {error.message}' if error else ''}"
    return kind(reason, retry_at=retry_at(headers, now) if "retry-after" in headers else None)


def _error_class(status: int, error: ErrorResponse, actor: str, *, has_token: bool) -> type[SourceError]:
    if (known := _ERRORS_BY_CODE.get((status, error.error))) is not None:
        return known if has_token or known is not TokenRejected else SourceUnavailable
    if status == 401:
        # Other responses with status 401 are temporary errors between Bluesky's own servers ("jwt expired").
        return AuthenticationFailed if has_token and error.error in _OWN_ACCOUNT_ERRORS else SourceUnavailable
    if (status, error.error) != (400, "InvalidRequest"):
        return RequestRejected
    messages = {message.format(actor=actor): meaning for message, meaning in _ERRORS_BY_MESSAGE.items()}
    return messages.get(error.message, RequestRejected)


def _parse_error(body: bytes) -> ErrorResponse | None:
    """Parse the body of an error response. Return None if the body does not have Bluesky's format."""
    try:
        return _error_response.decode(body)
    except (ValueError, RecursionError):
        return None


def retry_at(headers: Mapping[str, str], now: Micros) -> Micros | None:
    """Return the time at which the headers allow the next request, or None if they specify no time."""
    if (value := headers.get("retry-after")) is not None:
        if (seconds := parse_int(value)) is not None:
            return now + seconds * SECOND
        if (date := _parse_http_date(value)) is not None:
            return date
    reset = parse_int(headers.get("ratelimit-reset"))
    return None if reset is None else reset * SECOND


def parse_rate_limit(headers: Mapping[str, str]) -> tuple[int | None, int, Micros] | None:
    """Parse the headers with the rate limit, the number of remaining requests, and the reset time.

    If only the header with the rate limit is missing, the first element of the result is None. If one of the
    other headers is missing, the whole result is None.
    """
    remaining = parse_int(headers.get("ratelimit-remaining"))
    reset = parse_int(headers.get("ratelimit-reset"))
    if remaining is None or reset is None:
        return None
    return parse_int(headers.get("ratelimit-limit")), remaining, reset * SECOND


def parse_int(text: str | None) -> int | None:
    """Parse a header value as an integer. Return None unless it consists of 1 to 12 decimal digits."""
    if text is None or not (plain := text.strip()).isascii() or not plain.isdigit() or len(plain) > 12:
        return None
    return int(plain)


def _parse_http_date(text: str) -> Micros | None:
    try:
        return int(parsedate_to_datetime(text).timestamp()) * SECOND
    except (ValueError, OverflowError):
        return None


_error_response = msgspec.json.Decoder(ErrorResponse)
