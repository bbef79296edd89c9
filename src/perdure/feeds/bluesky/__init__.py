"""Bluesky as a source of feeds: its public service, or the reader's own server with credentials. No SDK.

`items` and `embeds` parse responses, `errors` has the table of error responses, `xrpc` sends requests,
`session` keeps the tokens valid, and `source` combines them.
"""

from .source import BlueskyHintSource, BlueskySource, open_bluesky

__all__ = ["BlueskyHintSource", "BlueskySource", "open_bluesky"]
