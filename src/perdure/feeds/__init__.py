"""Feeds: polled on the same durable state as tasks, without missing or repeating a post.

Read `walking` (the rules), then `polling` (one poll), then `poller` (many accounts). A source is whatever
keeps `source.FeedSource`; `bluesky` is one.
"""

from .account import Account, Gap, Status
from .auditing import Audit, audit
from .item import Item, Link
from .link_identity import normalised
from .link_index import LinkIndex, Ranking
from .link_summary import SharedLink
from .poller import Cycle, Poller
from .polling import Failed, Outcome, Polled, PolledElsewhere, Skipped
from .requests import Budget, Requests
from .settings import Polling, Settings, read_settings
from .source import FeedSource, Page, Profile
from .store import FeedStore
from .summary import Summary, summary_of

__all__ = [
    "Account",
    "Audit",
    "Budget",
    "Cycle",
    "Failed",
    "FeedSource",
    "FeedStore",
    "Gap",
    "Item",
    "Link",
    "LinkIndex",
    "Outcome",
    "Page",
    "Polled",
    "PolledElsewhere",
    "Poller",
    "Polling",
    "Profile",
    "Ranking",
    "Requests",
    "Settings",
    "SharedLink",
    "Skipped",
    "Status",
    "Summary",
    "audit",
    "normalised",
    "read_settings",
    "summary_of",
]
