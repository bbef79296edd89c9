"""Encrypts values that appear in links of the dashboard.

The tasks of an owner are stored in a partition. Its name contains the owner's name, which must not appear on
a page, in a log or in the browser history. A *locator* is the encrypted name of a partition. A *cursor* is an
encrypted position in a list, because positions contain names of partitions too. The key is kept in the
storage, so a link works on all servers and after a restart. The cipher, AES-SIV, is deterministic, so the
link to a task never changes. It also authenticates what it encrypts, so forged links are rejected.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV


class Sealer:
    """Seals strings: encrypts and authenticates them for one purpose, such as locators.

    A string that was sealed for another purpose is rejected.
    """

    def __init__(self, key: bytes, purpose: str) -> None:
        self._cipher = AESSIV(key)
        self._associated_data = [purpose.encode()]

    def seal(self, text: str) -> str:
        sealed = self._cipher.encrypt(text.encode(), self._associated_data)
        return urlsafe_b64encode(sealed).decode().rstrip("=")

    def unseal(self, sealed: str) -> str | None:
        """Return the original string, or None if it was not sealed with this key for this purpose."""
        try:
            raw = urlsafe_b64decode(sealed.encode("ascii") + b"=" * (-len(sealed) % 4))
            return self._cipher.decrypt(raw, self._associated_data).decode()
        except (ValueError, InvalidTag):
            return None
