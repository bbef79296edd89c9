"""Parses and looks up account names that users enter: handles, DIDs and profile URLs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .errors import InvalidActor, RequestRejected
from .source import FeedSource, Profile

_NAME = re.compile(r"did:[a-z]+:[A-Za-z0-9._:%-]+|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_PROFILE_URL = re.compile(r"https?://[^/]+/profile/([^/?#]+).*")


def normalize_account_name(text: str) -> str:
    """Remove surrounding spaces and a leading @. If the text is a profile URL, extract the name from it."""
    profile = _PROFILE_URL.fullmatch(text.strip())
    return (profile[1] if profile else text.strip()).removeprefix("@")


def is_account_name(name: str) -> bool:
    """Return whether a normalized name is a well-formed handle or DID."""
    return _NAME.fullmatch(name) is not None


def parse_account_name(text: str) -> str:
    """Return the handle or DID in a user's input. Raise InvalidActor if the input contains neither."""
    name = normalize_account_name(text)
    if not is_account_name(name):
        raise InvalidActor(f"invalid account {text!r}; use a handle such as alice.bsky.social, or a DID")
    return name


async def find_profiles(source: FeedSource, names: Sequence[str]) -> list[Profile]:
    """Return the profiles of the accounts with these names. Omit accounts that do not exist.

    If the source rejects the request because of an invalid name, look up each half of `names` separately.
    """
    try:
        return await source.profiles(names)
    except (InvalidActor, RequestRejected):
        if len(names) == 1:
            return []
    half = len(names) // 2
    return [*await find_profiles(source, names[:half]), *await find_profiles(source, names[half:])]
