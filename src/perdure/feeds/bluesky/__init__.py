"""Reads feeds from Bluesky: from its public service or, with a login, from the user's own server.

`xrpc` sends requests, `session` logs in and renews tokens, and `lexicon` declares the schemas of responses.
`items`, `post_links` and `errors` parse the responses. `source` combines these modules.
"""

from ...storage.install_advice import without_extra

try:
    from .source import BlueskyHintSource, BlueskySource, open_bluesky
except ModuleNotFoundError as error:
    raise without_extra("feeds", error) from error

__all__ = ["BlueskyHintSource", "BlueskySource", "open_bluesky"]
