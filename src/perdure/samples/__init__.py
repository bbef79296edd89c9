"""The sample server of `perdure serve`: tools to try without a server of your own.

The tools in `server` write reports: they take a minute, ask questions, or fail. Those in `feed_tools` poll
feeds as a task. `source` simulates the accounts, so no network is needed.
"""

from .feed_tools import SampleFeeds, simulated_feeds
from .server import make_server
from .source import SimulatedSource

__all__ = ["SampleFeeds", "SimulatedSource", "make_server", "simulated_feeds"]
