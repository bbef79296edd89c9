"""The sample server of `perdure serve`: tools to try without a server of your own.

`server` has reports, which take a minute, ask questions or fail. `feed_tools` polls feeds as a task; the
accounts are simulated by `source`, so no network is needed.
"""

from .feed_tools import SampleFeeds, simulated_feeds
from .server import make_server
from .source import SimulatedSource

__all__ = ["SampleFeeds", "SimulatedSource", "make_server", "simulated_feeds"]
