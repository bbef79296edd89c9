"""Access to a server: which hosts are local, and how long a token must be."""

from __future__ import annotations

from ipaddress import ip_address

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
"""Names of this machine that only its own processes can reach."""
MIN_TOKEN_LENGTH = 16
"""Failed logins are not counted, so a token must be too long to guess."""


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine can reach a host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
