"""Locators: a partition, or a position in a listing, as opaque text for links.

A partition contains the name of its owner, which must not appear on a page, in a log or in the history of a
browser. The partition is therefore encrypted. The key is kept in the storage, so a link works on all replicas
and after a restart. AES-SIV is deterministic, so a task always has the same link. It also authenticates, so a
locator that was not issued with this key is rejected.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV


class Sealer:
    """Encrypts and authenticates text for one purpose. Text sealed for another purpose is rejected."""

    def __init__(self, key: bytes, purpose: str) -> None:
        self._cipher = AESSIV(key)
        self._associated_data = [purpose.encode()]

    def seal(self, text: str) -> str:
        sealed = self._cipher.encrypt(text.encode(), self._associated_data)
        return urlsafe_b64encode(sealed).decode().rstrip("=")

    def unseal(self, sealed: str) -> str | None:
        """Return the text, or None if it was not sealed with this key for this purpose."""
        try:
            raw = urlsafe_b64decode(sealed.encode("ascii") + b"=" * (-len(sealed) % 4))
            return self._cipher.decrypt(raw, self._associated_data).decode()
        except (ValueError, InvalidTag):
            return None
