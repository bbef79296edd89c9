"""Bluesky in memory: who is there, who posted what and when, and what readers are shown of it. No IO.

`World` gives the same answers to the same history, and it knows the truth: `everything_of` is what a perfect
poller must have. What answers look like on the wire is left to `fake`. `WorldSource` is a feed source
straight on a world, for tests that want many histories and no HTTP.

A feed is a list of rows in the order of `(time, cid)`, read from its end. A row whose post is not to be seen
(deleted, or of an account that is gone) still counts for a page's length, which is how pages get short.
"""

from .accounts import POSTS, REPOSTS, Account, Json, Knobs, Refusal, Row, Shown, State, quoted_in
from .source import HintingWorldSource, Question, WorldSource, error_of, item_of
from .times import iso, parsed, tid
from .world import START, World

__all__ = [
    "POSTS",
    "REPOSTS",
    "START",
    "Account",
    "HintingWorldSource",
    "Json",
    "Knobs",
    "Question",
    "Refusal",
    "Row",
    "Shown",
    "State",
    "World",
    "WorldSource",
    "error_of",
    "iso",
    "item_of",
    "parsed",
    "quoted_in",
    "tid",
]
