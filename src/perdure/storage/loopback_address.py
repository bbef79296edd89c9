"""Decides whether a host name or an address refers to this machine."""

from __future__ import annotations

from ipaddress import ip_address

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
"""Host names and addresses that only processes on the same machine can reach."""


def is_loopback(host: str) -> bool:
    """Return whether only processes on the same machine can reach this host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
