"""Polls the feeds of social media accounts, and stores each post once.

Accounts and posts are kept in the same kind of storage as tasks. Commands, web pages and tools manage feeds
through the class `Feeds` in `api`. To understand the implementation, read `watermark_and_gaps` (the rules),
then `poll` (one poll of one account), then `poller` (many accounts). A source is an object that implements
`source.FeedSource`, such as `bluesky.BlueskySource`.
"""

from .account import Account, AccountStatus, Gap
from .api import Feeds
from .api_types import FeedSummary, summarize
from .completeness_audit import AuditReport, audit_account
from .item import Item, Link
from .link_ranking import LinkIndex, Ranking, SharedLink
from .poll import PolledElsewhere, PollFailed, PollOutcome, PollSkipped, PollSucceeded
from .poller import CycleStats, Poller
from .rate_limit import RateLimiter, Retrier
from .settings import FeedSettings, PollSettings, load_settings
from .source import FeedPage, FeedSource, Profile
from .store import FeedStore
from .urls import normalize_url

__all__ = [
    "Account",
    "AccountStatus",
    "AuditReport",
    "CycleStats",
    "FeedPage",
    "FeedSettings",
    "FeedSource",
    "FeedStore",
    "FeedSummary",
    "Feeds",
    "Gap",
    "Item",
    "Link",
    "LinkIndex",
    "PollFailed",
    "PollOutcome",
    "PollSettings",
    "PollSkipped",
    "PollSucceeded",
    "PolledElsewhere",
    "Poller",
    "Profile",
    "Ranking",
    "RateLimiter",
    "Retrier",
    "SharedLink",
    "audit_account",
    "load_settings",
    "normalize_url",
    "summarize",
]
