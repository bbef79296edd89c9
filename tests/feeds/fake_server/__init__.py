"""A fake Bluesky: real HTTP on loopback, over a `World`. Also: `python -m tests.feeds.fake_server`."""

from .control import populate
from .faults import Fault
from .recordings import account_of, load, recorded
from .server import FEED, Asked, FakeBluesky

__all__ = ["FEED", "Asked", "FakeBluesky", "Fault", "account_of", "load", "populate", "recorded"]
