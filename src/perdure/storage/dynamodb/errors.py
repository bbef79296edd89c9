"""Translates AWS errors into storage errors, based on error codes and types, not on messages.

This module answers three questions. Did the server reject the request, so that nothing was written? Was the
response lost, so that the outcome is unknown? Can the same request succeed later?
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, cast

from aiohttp import ClientConnectorError
from botocore import exceptions  # pyright: ignore[reportMissingTypeStubs]
from botocore.parsers import ResponseParserError  # pyright: ignore[reportMissingTypeStubs]

from ..errors import (
    OutcomeUnknown,
    StorageBusy,
    StorageError,
    StorageFailed,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)

DRIVER_ERRORS = (exceptions.ClientError, exceptions.BotoCoreError, ResponseParserError)
"""The exceptions that a request can raise when DynamoDB or the connection fails."""
DriverFailure: TypeAlias = exceptions.ClientError | exceptions.BotoCoreError | ResponseParserError

CONDITION_FAILED = "ConditionalCheckFailed"
NO_REASON = "None"
"""The reason code of an item that did not cause the cancellation of its transaction."""
_CONDITION_FAILED_ALONE = "ConditionalCheckFailedException"
_CANCELED = "TransactionCanceledException"
_CONFLICT = {"TransactionConflict", "TransactionConflictException", "ReplicatedWriteConflictException"}
_IN_PROGRESS = {"TransactionInProgressException"}
_THROTTLED = {
    "ProvisionedThroughputExceeded",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ThrottlingError",
    "ThrottlingException",
}
_FULL = {"ItemCollectionSizeLimitExceeded", "ItemCollectionSizeLimitExceededException"}
_SERVER_ERRORS = {"InternalServerError", "InternalFailure", "ServiceUnavailable"}
_DENIED = {"AccessDenied", "AccessDeniedException"}
_BAD_CREDENTIALS = {
    "ExpiredTokenException",
    "IncompleteSignatureException",
    "InvalidSignatureException",
    "MissingAuthenticationTokenException",
    "UnrecognizedClientException",
}
_NO_CREDENTIALS = (
    exceptions.CredentialRetrievalError,
    exceptions.MetadataRetrievalError,
    exceptions.NoAuthTokenError,
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.SSOError,
    exceptions.TokenRetrievalError,
)


class CancellationReason(TypedDict, total=False):
    """The reason that DynamoDB returns for one item of a cancelled transaction."""

    Code: str
    Item: Mapping[str, Mapping[str, str]]


def error_code(error: DriverFailure) -> str:
    """Return the error code of DynamoDB, or an empty string if there was no response."""
    return _response(error).get("Error", {}).get("Code", "")


def cancellation_reasons(error: DriverFailure) -> Sequence[CancellationReason]:
    """Return a reason for each item of a rejected write, in the order of the items.

    For any other error, return an empty sequence.
    """
    response = _response(error)
    if error_code(error) == _CONDITION_FAILED_ALONE:
        return [{"Code": CONDITION_FAILED, "Item": response.get("Item", {})}]
    return response.get("CancellationReasons", ())


def is_condition_failed(error: DriverFailure) -> bool:
    """Return whether a write was rejected because one of its conditions failed."""
    return any(reason.get("Code") == CONDITION_FAILED for reason in cancellation_reasons(error))


def is_contended(error: DriverFailure) -> bool:
    """Return whether a transaction was cancelled only because items were throttled or had conflicts."""
    codes = {reason.get("Code", NO_REASON) for reason in cancellation_reasons(error)} - {NO_REASON}
    return bool(codes) and codes <= _CONFLICT | _THROTTLED


def may_have_been_applied(error: DriverFailure) -> bool:
    """Return whether DynamoDB may have applied the request although an error was raised."""
    if isinstance(error, exceptions.ClientError):
        status = _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return error_code(error) in _SERVER_ERRORS or status >= 500
    if isinstance(error, exceptions.EndpointConnectionError):
        cause = cast("Any", error).kwargs.get("error")
        return not isinstance(cause, (ClientConnectorError, socket.gaierror))
    return isinstance(
        error, (exceptions.HTTPClientError, exceptions.IncompleteReadError, ResponseParserError)
    )


def is_transient(error: DriverFailure) -> bool:
    """Return whether the same request may succeed if it is sent again later."""
    is_rejected = bool(_codes_of(error) & (_CONFLICT | _THROTTLED | _IN_PROGRESS))
    return is_rejected or may_have_been_applied(error) or isinstance(error, exceptions.ConnectionError)


def is_bad_credentials(error: DriverFailure) -> bool:
    return isinstance(error, _NO_CREDENTIALS) or error_code(error) in _BAD_CREDENTIALS


def is_access_denied(error: DriverFailure) -> bool:
    return error_code(error) in _DENIED


def as_storage_error(error: DriverFailure, name: str, *, writes: bool, maybe_applied: bool) -> StorageError:
    """Return the storage error that corresponds to a driver error. The caller must set its `__cause__`.

    `writes` is true if the request was a write. `maybe_applied` is true if DynamoDB may have applied the
    request in this attempt or in an earlier one.
    """
    if writes and maybe_applied:
        what = "no response to a write; it may have been applied, so read before writing again"
        return OutcomeUnknown(f"{name}: {what} ({error})")
    kind, what = _classify(error, writes=writes)
    return kind(f"{name}: {what} ({error})")


def _classify(error: DriverFailure, *, writes: bool) -> tuple[type[StorageError], str]:
    codes = _codes_of(error)
    if codes & (_CONFLICT | _IN_PROGRESS):
        return StorageBusy, "conflicting writes to the same items"
    if codes & _FULL:
        return StorageFull, "a partition has reached DynamoDB's limit of 10 GB; delete records"
    if writes and is_access_denied(error):
        remedy = "grant the permissions that docs/reference/dynamodb.md lists"
        return StorageReadOnly, f"the AWS credentials do not allow writes; {remedy}"
    if is_bad_credentials(error):
        return StorageUnavailable, "the AWS credentials are missing, invalid or expired; set valid ones"
    if is_transient(error):
        return StorageUnavailable, "the table is unreachable or throttled"
    return StorageFailed, "DynamoDB failed"


def _codes_of(error: DriverFailure) -> set[str]:
    """Return a set with the error code or, for a cancelled transaction, the reason codes of its items."""
    code = error_code(error)
    return {reason.get("Code", "") for reason in cancellation_reasons(error)} if code == _CANCELED else {code}


def _response(error: DriverFailure) -> Mapping[str, Any]:
    """Return the response of DynamoDB, or an empty mapping if there was no response."""
    return cast("Any", error).response if isinstance(error, exceptions.ClientError) else {}
