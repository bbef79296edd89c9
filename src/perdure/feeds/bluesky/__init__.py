"""Bluesky as a source of feeds: its public service, or a reader's own server with credentials. No SDK.

`reading` and `embeds` make items of what it shows, `answers` has the table of what its errors mean, `client`
asks, `session` keeps the credentials fresh, and `source` puts them together.
"""

from .source import BlueskyHintSource, BlueskySource, open_bluesky

__all__ = ["BlueskyHintSource", "BlueskySource", "open_bluesky"]
