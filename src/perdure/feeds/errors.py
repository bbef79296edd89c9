"""The errors of feeds, as one tree.

    PerdureError
    └── FeedError
        ├── InvalidSettings          a setting has an invalid value
        ├── UnknownAccount           no such account is stored
        ├── PollInProgress           another poller is polling the account (retryable)
        ├── EditConflict             other processes kept changing the account (retryable)
        ├── AmbiguousHandle          several stored accounts have this handle
        ├── AccountLeaseLost         another poller took the account over; the write was dropped
        ├── CorruptFeedRecord        a stored account, item or link summary is damaged
        └── SourceError              a source returned an error
            ├── SourceUnavailable      the source cannot be reached, or its response is invalid (retryable)
            │   └── SourceServerError  the source reports an internal error
            ├── RateLimited            the source received too many requests (retryable, at `retry_at`)
            ├── AccountUnavailable     the account is unknown, deactivated, taken down or renamed
            │   └── AccountBlocked     the account blocks the logged-in user, or the user blocks it
            ├── InvalidActor           a handle or id is not valid
            ├── EmptyFollowList        pruning by an empty follow list would suspend all its accounts
            ├── CursorRejected         the source does not accept a cursor that it returned earlier
            ├── AuthenticationFailed   credentials are missing or wrong; no request can succeed
            └── RequestRejected        the source rejected a request for any other reason

Errors of the storage (`perdure.storage.errors`) are raised unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..storage import Micros
from ..storage.errors import PerdureError


class FeedError(PerdureError):
    """The base class of all errors of feeds."""


class InvalidSettings(FeedError):
    """Raised when a setting has an invalid value."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(f"{setting}: {reason}")
        self.setting = setting
        self.reason = reason


class UnknownAccount(FeedError):
    """Raised when no such account is stored."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no account {name} is stored; `perdure feeds list` lists the accounts")
        self.name = name


class PollInProgress(FeedError):
    """Raised when another poller has the lease on the account."""

    retryable = True

    def __init__(self, name: str, poller: str, *, retry_at: Micros | None = None) -> None:
        super().__init__(f"{name} is already being polled by {poller}")
        self.name = name
        self.poller = poller
        self.retry_at = retry_at
        """When the other poller's lease expires unless it is renewed. None if the time is not known."""


class EditConflict(FeedError):
    """Raised when an account could not be changed because other processes kept changing it."""

    retryable = True

    def __init__(self, account_id: str) -> None:
        super().__init__(f"too many concurrent changes to {account_id}; try again")
        self.account_id = account_id


class AmbiguousHandle(FeedError):
    """Raised when several accounts have this handle in their most recently read profiles."""

    def __init__(self, handle: str, account_ids: Sequence[str]) -> None:
        super().__init__(f"handle {handle} matches several accounts; use a DID: {', '.join(account_ids)}")
        self.handle = handle
        self.account_ids = tuple(account_ids)


class AccountLeaseLost(FeedError):
    """Raised when a poller writes to an account after another poller took it over or it was removed.

    Items that were stored earlier are kept. Nothing else is written.
    """


class CorruptFeedRecord(FeedError):
    """Raised when a stored record of feeds is damaged."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


class SourceError(FeedError):
    """The base class of errors that a source raises."""


class SourceUnavailable(SourceError):
    """Raised when the source cannot be reached, is too slow, or sends an invalid response."""

    retryable = True

    def __init__(self, reason: str, *, retry_at: Micros | None = None) -> None:
        super().__init__(reason)
        self.retry_at = retry_at
        """When to send the next request. None if the source gives no time."""


class SourceServerError(SourceUnavailable):
    """Raised when the source reports an internal error.

    Some sources report one whenever they receive an unknown cursor.
    """


class RateLimited(SourceError):
    """Raised when the source received too many requests."""

    retryable = True

    def __init__(self, retry_at: Micros | None) -> None:
        super().__init__("rate limited by the source")
        self.retry_at = retry_at


class AccountUnavailable(SourceError):
    """Raised when the source does not show an account, temporarily or permanently."""


class AccountBlocked(AccountUnavailable):
    """Raised when the account blocks the logged-in user, or the user blocks the account."""


class InvalidActor(SourceError):
    """Raised when a handle or id is not valid, so that no account can have it."""


class EmptyFollowList(SourceError):
    """Raised when pruning by an empty follow list would suspend every account that the list added."""

    def __init__(self, actor: str) -> None:
        super().__init__(f"{actor} follows no account; pruning would suspend all that its list added")


class CursorRejected(SourceError):
    """Raised when the source does not accept a cursor."""


class AuthenticationFailed(SourceError):
    """Raised when credentials are missing or wrong. This stops all polls, since no request can succeed."""


class RequestRejected(SourceError):
    """Raised when the source rejects a request for any other reason."""
