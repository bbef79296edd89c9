"""Rules for access to a server: which hosts are local, and how long a token must be."""

from __future__ import annotations

from ipaddress import ip_address

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
"""Host names and addresses that only processes on the same machine can reach."""
MIN_TOKEN_LENGTH = 16
"""Minimum number of characters in a token. It is high because login attempts are not limited."""


def is_loopback(host: str) -> bool:
    """Return whether only processes on the same machine can reach this host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
