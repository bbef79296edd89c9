"""Bluesky as a source of feeds: its public service, or with a login the user's own server. It uses no SDK.

`xrpc` sends requests, `session` renews tokens, `lexicon` declares the schemas of responses, `items` and
`post_links` parse them, `errors` maps error responses, and `source` combines these modules.
"""

from .source import BlueskyHintSource, BlueskySource, open_bluesky

__all__ = ["BlueskyHintSource", "BlueskySource", "open_bluesky"]
