"""The sample server of `perdure serve`, for users who have no MCP server of their own yet.

The tools in `server` write reports: they take some time, ask questions, fail or retry. The tools in
`feed_tools` poll feeds. `source` simulates the accounts of these feeds, so no network is needed.
"""

from .feed_tools import SampleFeeds, simulated_feeds
from .server import make_server
from .source import SimulatedSource

__all__ = ["SampleFeeds", "SimulatedSource", "make_server", "simulated_feeds"]
