"""Locators: a partition, or a position in a listing, as opaque text for links.

A partition contains the name of its owner, which must not appear on a page, in a log or in the history of a
browser. It is encrypted with a key that is created once and kept in the storage, so a link works on every
replica and after a restart. AES-SIV is deterministic, so a task always has the same link, and authenticated,
so a locator that was not issued with this key is rejected.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from ..storage import Address, InsertIfAbsent, Micros, Record, Storage
from ..tasks.listing import KEY_FORMAT, SETTINGS, StoredKey, decode_key

LOCATOR_KEY = Address(SETTINGS, "perdure", "handle-key")
"""Where the key is stored. Its stored name predates the word locator."""


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


async def load_key(storage: Storage, now: Micros) -> bytes:
    """Return the key of a storage. The first process that needs it creates it."""
    stored = await storage.get(LOCATOR_KEY, now=now)
    if stored is None:
        space, partition, key = LOCATOR_KEY
        body = KEY_FORMAT.encode(StoredKey(secrets.token_hex(32)))
        created = Record(space=space, partition=partition, key=key, order=now, body=body)
        await storage.commit([InsertIfAbsent(record=created)], now=now)
        stored = await storage.get(LOCATOR_KEY, now=now) or created
    return decode_key(stored)
