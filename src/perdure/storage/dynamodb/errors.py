"""What went wrong with a request: by code and type, never by message.

Three questions decide what happens next. Did the server refuse it, so that nothing was done? Is its answer
lost, so that nobody knows? May the same request work a moment later?
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, cast

from aiohttp import ClientConnectorError
from botocore.exceptions import (  # pyright: ignore[reportMissingTypeStubs]
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    MetadataRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
    SSOError,
    TokenRetrievalError,
)
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

DriverError = (ClientError, BotoCoreError, ResponseParserError)
"""What a request may raise: DynamoDB's refusals, and whatever happened on the way to it."""
Failure: TypeAlias = ClientError | BotoCoreError | ResponseParserError

CONDITION_FAILED = "ConditionalCheckFailed"
NO_REASON = "None"
"""The code of an item that stood in nobody's way."""
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
_BROKEN_SERVER = {"InternalServerError", "InternalFailure", "ServiceUnavailable"}
_DENIED = {"AccessDenied", "AccessDeniedException"}
_BAD_CREDENTIALS = {
    "ExpiredTokenException",
    "IncompleteSignatureException",
    "InvalidSignatureException",
    "MissingAuthenticationTokenException",
    "UnrecognizedClientException",
}
_NO_CREDENTIALS = (
    CredentialRetrievalError,
    MetadataRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
)
_NEVER_SENT = (ConnectTimeoutError, ProxyConnectionError, SSLError)


class Reason(TypedDict, total=False):
    """Why one item of a transaction stood in its way."""

    Code: str
    Item: Mapping[str, Mapping[str, str]]


def code_of(error: Failure) -> str:
    """DynamoDB's own, or none where the request did not get there."""
    return _response(error).get("Error", {}).get("Code", "")


def reasons_of(error: Failure) -> Sequence[Reason]:
    """One for each item of the write, in their order."""
    response = _response(error)
    if code_of(error) == _CONDITION_FAILED_ALONE:
        return [{"Code": CONDITION_FAILED, "Item": response.get("Item", {})}]
    return response.get("CancellationReasons", ())


def is_condition_failed(error: Failure) -> bool:
    """Whether what stands there is not what the write expected: an answer rather than a failure."""
    return any(reason.get("Code") == CONDITION_FAILED for reason in reasons_of(error))


def is_contended(error: Failure) -> bool:
    """Whether a transaction was canceled, for now, because of the items that its reasons name."""
    codes = {reason.get("Code", NO_REASON) for reason in reasons_of(error)} - {NO_REASON}
    return bool(codes) and codes <= _CONFLICT | _THROTTLED


def is_lost(error: Failure) -> bool:
    """Whether the request may have been carried out though it failed."""
    if isinstance(error, ClientError):
        return code_of(error) in _BROKEN_SERVER or _status_of(error) >= 500
    if isinstance(error, EndpointConnectionError):
        cause = cast("Any", error).kwargs.get("error")
        return not isinstance(cause, (ClientConnectorError, socket.gaierror))
    return isinstance(error, (HTTPClientError, IncompleteReadError, ResponseParserError))


def is_passing(error: Failure) -> bool:
    """Whether the same request may work a moment later."""
    if not isinstance(error, ClientError):
        return is_lost(error) or isinstance(error, (EndpointConnectionError, *_NEVER_SENT))
    return is_lost(error) or bool(_codes_of(error) & (_CONFLICT | _THROTTLED | _IN_PROGRESS))


def is_bad_credentials(error: Failure) -> bool:
    return isinstance(error, _NO_CREDENTIALS) or code_of(error) in _BAD_CREDENTIALS


def is_denied(error: Failure) -> bool:
    return code_of(error) in _DENIED


def as_storage_error(error: Failure, name: str, *, writes: bool, lost: bool) -> StorageError:
    """The contract's error for one of the driver's, which the caller sets as its cause.

    `lost`: this write, or an earlier try of it, may have been carried out.
    """
    if writes and lost:
        return OutcomeUnknown(f"{name}: the answer to a write was lost; read before writing again ({error})")
    kind, what = _kind_of(error, writes=writes)
    return kind(f"{name}: {what} ({error})")


def _kind_of(error: Failure, *, writes: bool) -> tuple[type[StorageError], str]:
    codes = _codes_of(error) if isinstance(error, ClientError) else set[str]()
    if codes & (_CONFLICT | _IN_PROGRESS):
        return StorageBusy, "others kept changing the same items"
    if codes & _FULL:
        return StorageFull, "a partition holds 10 GB, which is all that it can"
    if writes and is_denied(error):
        return StorageReadOnly, "these credentials may not write"
    if is_passing(error) or is_bad_credentials(error):
        return StorageUnavailable, "it cannot be reached, or takes no more for now"
    return StorageFailed, "DynamoDB failed"


def _codes_of(error: ClientError) -> set[str]:
    code = code_of(error)
    return {reason.get("Code", "") for reason in reasons_of(error)} if code == _CANCELED else {code}


def _status_of(error: ClientError) -> int:
    return _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def _response(error: Failure) -> Mapping[str, Any]:
    """What DynamoDB said, if it said anything."""
    return cast("Any", error).response if isinstance(error, ClientError) else {}
