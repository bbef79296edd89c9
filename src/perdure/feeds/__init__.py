"""Feeds: polled on the same durable state as tasks, without missing or repeating a post.

`Feeds` (in `api`) does everything that commands, pages and tools need. To read how it works, read `gaps`
(the rules), then `poll` (one poll), then `poller` (many accounts). A source is any object that implements
`source.FeedSource`; `bluesky` has one.
"""

from .account import Account, Gap, Status
from .api import Feeds
from .audit import Audit, audit
from .health import Summary, summary_of
from .item import Item, Link
from .link_index import LinkIndex, Ranking
from .link_summary import SharedLink
from .poll import Failed, Outcome, Polled, PolledElsewhere, Skipped
from .poller import Cycle, Poller
from .rate_limit import Budget, Requests
from .settings import Polling, Settings, read_settings
from .source import FeedSource, Page, Profile
from .store import FeedStore
from .urls import normalised

__all__ = [
    "Account",
    "Audit",
    "Budget",
    "Cycle",
    "Failed",
    "FeedSource",
    "FeedStore",
    "Feeds",
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
