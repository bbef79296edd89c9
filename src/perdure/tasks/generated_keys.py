"""Secret keys that are kept in the storage, so that all servers that use the storage have the same keys.

A key is generated when it is first needed.
"""

from __future__ import annotations

import secrets

import msgspec

from ..storage import Address, InsertIfAbsent, Micros, Record, Space, Storage
from ..storage.body_format import FORMAT_FIELD, BodyFormat
from ..storage.errors import StorageCorrupt
from .errors import CorruptRecord

SETTINGS = Space("settings")
CURSOR_KEY = Address(SETTINGS, "perdure", "cursor-key")
"""The address of the key that signs the cursors of paginated lists, which clients receive."""
LOCATOR_KEY = Address(SETTINGS, "perdure", "handle-key")
"""The address of the key that encrypts locators. A locator is an encrypted partition name, which operators
use in links to tasks. Locators were once called handles."""
KEY_BYTES = 32


class _StoredKey(msgspec.Struct, frozen=True, tag_field=FORMAT_FIELD, tag=1):
    key: str


_format = BodyFormat(_StoredKey)


async def load_key(storage: Storage, address: Address, now: Micros) -> bytes:
    """Return the key that is stored at `address`. If no key is stored, generate and store one."""
    stored = await storage.get(address, now=now)
    if stored is None:
        space, partition, key = address
        body = _format.encode(_StoredKey(secrets.token_hex(KEY_BYTES)))
        created = Record(space=space, partition=partition, key=key, order=now, body=body)
        await storage.commit([InsertIfAbsent(record=created)], now=now)
        stored = await storage.get(address, now=now) or created
    return decode_key(stored)


def decode_key(record: Record) -> bytes:
    """Return the key in a record.

    Raise CorruptRecord if the record is damaged, and NewerFormat if a newer version of perdure wrote it.
    """
    try:
        key = bytes.fromhex(_format.decode(record.key, record.body).key)
    except (StorageCorrupt, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise CorruptRecord(record.key, "the key is invalid; to replace it, run: perdure doctor --repair")
    return key
