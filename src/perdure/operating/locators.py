"""Handles: a partition, or a place in a listing, in letters that say nothing and can stand in a link.

A partition holds the name of its owner, which no page, log or address bar is to show. It is enciphered under
a key that is made once and kept in the storage, so a link works on every replica and after a restart. The
same text has the same handle; what was not made here is refused.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b, shake_256

from ..storage import Address, InsertIfAbsent, Micros, Record, Storage
from ..tasks.listing import KEY_FORMAT, SETTINGS, StoredKey, decode_key

HANDLE_KEY = Address(SETTINGS, "perdure", "handle-key")
_SEAL_BYTES = 16


class Sealer:
    """Seals texts for one purpose: what was sealed for another is refused."""

    def __init__(self, key: bytes, purpose: str) -> None:
        self._key = key
        self._purpose = purpose.encode()

    def seal(self, text: str) -> str:
        plain = text.encode()
        seal = self._digest(plain)
        return urlsafe_b64encode(seal + self._stream(seal, plain)).decode().rstrip("=")

    def unseal(self, sealed: str) -> str | None:
        """What was sealed, or none where nothing was."""
        try:
            raw = urlsafe_b64decode(sealed.encode("ascii") + b"=" * (-len(sealed) % 4))
        except ValueError:
            return None
        seal, hidden = raw[:_SEAL_BYTES], raw[_SEAL_BYTES:]
        plain = self._stream(seal, hidden)
        return plain.decode() if hmac.compare_digest(seal, self._digest(plain)) else None

    def _digest(self, plain: bytes) -> bytes:
        return blake2b(plain, key=self._key, person=self._purpose, digest_size=_SEAL_BYTES).digest()

    def _stream(self, seal: bytes, text: bytes) -> bytes:
        """The text under a stream that depends on all of it through its seal; the same again undoes it."""
        stream = shake_256(self._key + self._purpose + seal).digest(len(text))
        return bytes(a ^ b for a, b in zip(text, stream, strict=True))


async def key_of(storage: Storage, now: Micros) -> bytes:
    """The key, made by whoever is first and kept in the storage itself."""
    kept = await storage.get(HANDLE_KEY, now=now)
    if kept is None:
        space, partition, key = HANDLE_KEY
        body = KEY_FORMAT.encode(StoredKey(secrets.token_hex(32)))
        made = Record(space=space, partition=partition, key=key, order=now, body=body)
        await storage.commit([InsertIfAbsent(record=made)], now=now)
        kept = await storage.get(HANDLE_KEY, now=now) or made
    return decode_key(kept)
