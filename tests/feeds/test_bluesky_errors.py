"""The table of errors: status, error and whole message decide, and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from perdure.feeds.bluesky.errors import TokenRejected, error_from_response, parse_rate_limit, retry_at
from perdure.feeds.errors import (
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

NOW = 1_794_744_000_000_000
DID = "did:plc:abc"


def classified(
    status: int, error: str, message: str = "", *, has_token: bool = True, **headers: str
) -> SourceError:
    body = msgspec.json.encode({"error": error, "message": message})
    return error_from_response(status, headers, body, actor=DID, now=NOW, has_token=has_token)


@pytest.mark.parametrize(
    ("status", "error", "message", "meaning"),
    [
        (400, "InvalidRequest", "Profile not found", AccountUnavailable),
        (400, "InvalidRequest", f"Actor not found: {DID}", AccountUnavailable),
        (400, "InvalidRequest", f"Could not find repo: {DID}", AccountUnavailable),
        (400, "InvalidRequest", "Invalid AT identifier", InvalidActor),
        (400, "BlockedActor", "Requester has blocked actor", AccountBlocked),
        (400, "BlockedByActor", "Requester is blocked by actor", AccountBlocked),
        (400, "ExpiredToken", "Token has expired", TokenRejected),
        (400, "InvalidToken", "Token could not be verified", TokenRejected),
        (401, "AuthMissing", "Authentication Required", AuthenticationFailed),
        (401, "AuthenticationRequired", "Invalid identifier or password", AuthenticationFailed),
        (401, "AccountTakedown", "Account has been taken down", AuthenticationFailed),
        (401, "AccountDeactivated", "Account is deactivated", AuthenticationFailed),
        (401, "JwtExpired", "jwt expired", SourceUnavailable),
        (401, "BadJwtSignature", "jwt signature does not match jwt issuer", SourceUnavailable),
        (401, "UntrustedIss", "identity unknown", SourceUnavailable),
        (429, "RateLimitExceeded", "Rate Limit Exceeded", RateLimited),
        (500, "InternalServerError", "Internal Server Error", SourceServerError),
        (502, "UpstreamFailure", "Upstream Failure", SourceUnavailable),
        (400, "InvalidRequest", "Malformed cursor", CursorRejected),
        (400, "InvalidRequest", "limit must not be above 100", RequestRejected),
        (404, "XRPCNotSupported", "", RequestRejected),
        (403, "Forbidden", "", RequestRejected),
    ],
)
def test_each_row_of_the_table(status: int, error: str, message: str, meaning: type[SourceError]) -> None:
    assert type(classified(status, error, message)) is meaning


@pytest.mark.parametrize("error", ["ExpiredToken", "InvalidToken", "AccountTakedown", "JwtExpired"])
def test_a_401_to_a_request_without_a_token_is_not_about_our_credentials(error: str) -> None:
    refused = classified(401, error, has_token=False)
    assert type(refused) is SourceUnavailable
    assert refused.retryable


def test_a_server_that_requires_a_login_says_what_to_set() -> None:
    refused = classified(401, "AuthMissing", "Authentication Required", has_token=False)
    assert type(refused) is AuthenticationFailed
    assert "bluesky.identifier" in str(refused)


@pytest.mark.parametrize(
    "message",
    [
        "profile not found",
        "Profile not found, and neither was the cursor",
        "Error: Malformed cursor",
        "Could not find repo: did:plc:other",
        "",
    ],
)
def test_a_message_that_only_resembles_another_means_nothing(message: str) -> None:
    assert type(classified(400, "InvalidRequest", message)) is RequestRejected


@pytest.mark.parametrize(
    ("status", "error"), [(403, "BlockedActor"), (404, "ExpiredToken"), (409, "InvalidRequest")]
)
def test_an_error_at_another_status_is_another_error(status: int, error: str) -> None:
    assert type(classified(status, error, "Profile not found")) is RequestRejected


@pytest.mark.parametrize("body", [b"", b"<html>Bad request</html>", b'{"err', b"[]", b"\xff"])
@pytest.mark.parametrize("status", [302, 400, 401, 404, 503])
def test_an_answer_that_bluesky_did_not_write_is_no_verdict(status: int, body: bytes) -> None:
    assert type(error_from_response(status, {}, body, actor=DID, now=NOW)) is SourceUnavailable


@pytest.mark.parametrize(
    ("headers", "until"),
    [
        ({"retry-after": "7"}, NOW + 7_000_000),
        ({"retry-after": "7", "ratelimit-reset": "1794744300"}, NOW + 7_000_000),
        ({"retry-after": "Sun, 15 Nov 2026 12:01:00 GMT"}, NOW + 60_000_000),
        ({"ratelimit-reset": "1794744300"}, NOW + 300_000_000),
        ({"retry-after": "soon", "ratelimit-reset": "1794744300"}, NOW + 300_000_000),
        ({"retry-after": "-1"}, None),
        ({}, None),
    ],
)
def test_when_to_come_back(headers: dict[str, str], until: int | None) -> None:
    assert retry_at(headers, NOW) == until
    error = error_from_response(429, headers, b"", actor=DID, now=NOW)
    assert isinstance(error, RateLimited)
    assert error.retry_at == until


def test_the_headers_say_how_many_requests_are_left() -> None:
    headers = {"ratelimit-limit": "3000", "ratelimit-remaining": "2999", "ratelimit-reset": "1794744300"}
    assert parse_rate_limit(headers) == (3000, 2999, 1_794_744_300_000_000)
    del headers["ratelimit-limit"]
    assert parse_rate_limit(headers) == (None, 2999, 1_794_744_300_000_000)


@pytest.mark.parametrize("value", ["", "many", "-5", "1.5", "9" * 30, "\u0663"])
def test_headers_that_are_not_numbers_are_ignored(value: str) -> None:
    assert parse_rate_limit({"ratelimit-remaining": value, "ratelimit-reset": "1794744300"}) is None
    assert parse_rate_limit({"ratelimit-remaining": "5", "ratelimit-reset": value}) is None
