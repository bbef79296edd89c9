"""What can go wrong with a feed, as one tree.

    PerdureError
    └── FeedError
        ├── InvalidSettings        a settings file that says what cannot be
        ├── UnknownAccount         nobody was told to poll such an account
        ├── AccountHeld            another poller is at the account just now (retryable)
        ├── AccountBusy            others kept changing it (retryable)
        ├── AmbiguousName          several accounts were called so
        ├── HoldLost               another poller took the account over; what was to be written was dropped
        ├── CorruptFeed            what is stored is no account, or no item
        └── SourceError            what a source said instead of what it was asked for
            ├── SourceUnavailable    it cannot be reached, or answers nonsense (retryable)
            │   └── SourceFailed     it says itself that it failed
            ├── RateLimited          too many requests (retryable, at a time that it tells)
            ├── AccountUnavailable   unknown, deactivated, taken down or renamed: perhaps back one day
            │   └── AccountBlocked   one of the two has blocked the other
            ├── InvalidActor         no account can have this name
            ├── FollowsNobody        a follow list is empty, so that pruning would suspend all its accounts
            ├── CursorRefused        the source does not know a cursor that it once gave
            ├── NotAuthorized        the credentials are missing or wrong; nothing can be asked before that
            └── RequestRefused       any other refusal

The storage's own errors (`perdure.storage.errors`) pass through as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..storage import Micros
from ..storage.errors import PerdureError


class FeedError(PerdureError):
    """Something that cannot be done with feeds."""


class InvalidSettings(FeedError):
    """A settings file that says what cannot be. Names the setting."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason


class UnknownAccount(FeedError):
    """Nobody was told to poll such an account."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no account {name} is stored; `perdure feeds list` lists the accounts")
        self.name = name


class AccountHeld(FeedError):
    """Raised when another poller has the account. One poller at a time reads an account."""

    retryable = True

    def __init__(self, name: str, holder: str, *, until: Micros | None = None) -> None:
        super().__init__(f"{name} is already being polled by {holder}")
        self.name = name
        self.holder = holder
        self.until = until
        """When the other poller loses the account unless it renews its lease, if that is known."""


class AccountBusy(FeedError):
    """Others changed the account again and again, each time before we could."""

    retryable = True

    def __init__(self, account_id: str) -> None:
        super().__init__(f"others keep changing {account_id}; try again")
        self.account_id = account_id


class AmbiguousName(FeedError):
    """A handle that more than one account had when its profile was last read."""

    def __init__(self, name: str, account_ids: Sequence[str]) -> None:
        super().__init__(f"several accounts were called {name}; name one of {', '.join(account_ids)}")
        self.name = name
        self.account_ids = tuple(account_ids)


class HoldLost(FeedError):
    """The account was taken over, or removed. Items that were stored stay; nothing else was written."""


class CorruptFeed(FeedError):
    """What is stored is not what it should be."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


class SourceError(FeedError):
    """What a source said instead of what it was asked for."""


class SourceUnavailable(SourceError):
    """The source cannot be reached, is too slow, or answers nonsense."""

    retryable = True

    def __init__(self, reason: str, *, until: Micros | None = None) -> None:
        super().__init__(reason)
        self.until = until
        """When it wants to be asked again, where it says so."""


class SourceFailed(SourceUnavailable):
    """The source says that it failed. To a cursor that it does not know it may say that for ever."""


class RateLimited(SourceError):
    """The source wants to be left alone for a while."""

    retryable = True

    def __init__(self, until: Micros | None) -> None:
        super().__init__("the source limits the rate of requests")
        self.until = until


class AccountUnavailable(SourceError):
    """The source knows no such account: not yet, no longer, or not for now."""


class AccountBlocked(AccountUnavailable):
    """The account and the reader do not see each other, with credentials or without."""


class InvalidActor(SourceError):
    """No account can have this name: somebody mistyped it."""


class FollowsNobody(SourceError):
    """Raised instead of suspending every account of a follow list that has become empty."""

    def __init__(self, actor: str) -> None:
        super().__init__(f"{actor} follows no account; pruning would suspend all that its list added")


class CursorRefused(SourceError):
    """The source does not take this cursor."""


class NotAuthorized(SourceError):
    """Missing or wrong credentials. It is nobody's account that is at fault, so everything stops."""


class RequestRefused(SourceError):
    """The source refuses this request for a reason of its own."""
