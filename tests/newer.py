"""Records as a newer version of perdure would write them."""

from __future__ import annotations

import msgspec

from perdure.storage import Address, Committed, Micros, Record, Storage

FUTURE = 3


def newer(body: str, **changes: object) -> str:
    """Return a body of the next format, with other values."""
    return msgspec.json.encode({**msgspec.json.decode(body), "format": FUTURE, **changes}).decode()


def changed(body: str, **changes: object) -> str:
    """Return a body of the current format with other values."""
    return msgspec.json.encode({**msgspec.json.decode(body), **changes}).decode()


async def put(storage: Storage, record: Record, body: str, *, now: Micros, tag: str | None = None) -> Record:
    """Write a body as a newer process would; the rest of the record stays the same."""
    change = record.replace_with(
        body=body,
        tag=record.tag if tag is None else tag,
        lane=record.lane,
        wake_at=record.wake_at,
        expires_at=record.expires_at,
    )
    assert isinstance(await storage.commit([change], now=now), Committed)
    return change.after


async def stored(storage: Storage, address: Address, *, now: Micros) -> Record:
    """Return the current record."""
    found = await storage.get(address, now=now)
    assert found is not None
    return found
