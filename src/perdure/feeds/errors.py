"""The public exceptions of `perdure.feeds`. They form this tree:

    PerdureError
    └── FeedError
        ├── InvalidSettings          a setting or the settings file is invalid
        ├── UnknownAccount           no stored account has the given id or handle
        ├── PollInProgress           another poller is polling the account (retryable)
        ├── EditConflict             other processes kept changing the account (retryable)
        ├── AmbiguousHandle          several stored accounts have the same handle
        ├── AccountLeaseLost         another poller has taken over the account, or the account was removed
        ├── CorruptFeedRecord        a stored account, item or link summary is damaged
        └── SourceError              a request to a source failed
            ├── SourceUnavailable      the source cannot be reached, or its response is invalid (retryable)
            │   └── SourceServerError  the source reports an internal error
            ├── RateLimited            the source received too many requests (retryable, at `retry_at`)
            ├── AccountUnavailable     the account does not exist, is deactivated, or was taken down
            │   └── AccountBlocked     the account blocks the logged-in user, or the user blocks the account
            ├── InvalidActor           a handle or id is malformed, or the owner of a follow list is unknown
            ├── EmptyFollowList        a follow list is empty, so it cannot be used to suspend accounts
            ├── CursorRejected         the source does not accept a cursor that it returned earlier
            ├── AuthenticationFailed   credentials are missing or wrong; no request can succeed
            └── RequestRejected        the source rejected or does not support a request

Storage errors (see `perdure.storage.errors`) are passed through unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..storage import Micros
from ..storage.errors import PerdureError


class FeedError(PerdureError):
    """The base class of all public exceptions of `perdure.feeds`."""


class InvalidSettings(FeedError):
    """Raised when a setting or the settings file is invalid, or when a required package is not installed."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(f"{setting}: {reason}")
        self.setting = setting
        self.reason = reason


class UnknownAccount(FeedError):
    """Raised when no stored account has the given id or handle."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown account {name}; `perdure feeds list` lists the known accounts")
        self.name = name


class PollInProgress(FeedError):
    """Raised when another poller is polling the account, so this poller cannot lease it."""

    retryable = True

    def __init__(self, name: str, poller: str, *, retry_at: Micros | None = None) -> None:
        super().__init__(f"{name} is already being polled by {poller}; try again later")
        self.name = name
        self.poller = poller
        self.retry_at = retry_at
        """The time at which the other poller's lease expires unless it is renewed. None if unknown."""


class EditConflict(FeedError):
    """Raised when an account could not be changed because other processes kept changing it."""

    retryable = True

    def __init__(self, account_id: str) -> None:
        super().__init__(f"too many concurrent changes to {account_id}; try again")
        self.account_id = account_id


class AmbiguousHandle(FeedError):
    """Raised when a handle is ambiguous because several stored accounts have it."""

    def __init__(self, handle: str, account_ids: Sequence[str]) -> None:
        super().__init__(f"several accounts have the handle {handle}; use a DID: {', '.join(account_ids)}")
        self.handle = handle
        self.account_ids = tuple(account_ids)


class AccountLeaseLost(FeedError):
    """Raised when a poller tries to write to an account that was removed or that another poller took over.

    The write has no effect. Items that this poller stored earlier are kept.
    """


class CorruptFeedRecord(FeedError):
    """Raised when a stored account, item or link summary is damaged and cannot be decoded."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


class SourceError(FeedError):
    """The base class of errors in requests to a source, such as Bluesky."""


class SourceUnavailable(SourceError):
    """Raised when a source cannot be reached, responds too slowly, or sends an invalid response."""

    retryable = True

    def __init__(self, reason: str, *, retry_at: Micros | None = None) -> None:
        super().__init__(reason)
        self.retry_at = retry_at
        """The earliest time for the next request. None if the source did not specify a time."""


class SourceServerError(SourceUnavailable):
    """Raised when a source reports an internal error.

    Some sources also report an internal error when they receive an unknown cursor.
    """


class RateLimited(SourceError):
    """Raised when a source rejects a request because too many requests were sent."""

    retryable = True

    def __init__(self, retry_at: Micros | None) -> None:
        super().__init__("the source received too many requests")
        self.retry_at = retry_at


class AccountUnavailable(SourceError):
    """Raised when the source temporarily or permanently does not show an account."""


class AccountBlocked(AccountUnavailable):
    """Raised when the account blocks the logged-in user, or the user blocks the account."""


class InvalidActor(SourceError):
    """Raised when a handle or id is malformed, or when the owner of a follow list does not exist."""


class EmptyFollowList(SourceError):
    """Raised when unfollowed accounts are to be suspended (pruned) but the follow list is empty.

    Pruning would suspend every account that was added only from that list.
    """

    def __init__(self, actor: str) -> None:
        danger = "pruning would suspend every account that was added only from its follow list"
        super().__init__(f"{actor} follows no accounts, so {danger}; run without pruning")


class CursorRejected(SourceError):
    """Raised when a source does not accept a cursor that it returned earlier."""


class AuthenticationFailed(SourceError):
    """Raised when credentials are missing or wrong. All polls then stop, because no request can succeed."""


class RequestRejected(SourceError):
    """Raised when a source does not support a request, or rejects it and no other exception applies."""
