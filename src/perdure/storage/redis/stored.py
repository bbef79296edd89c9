"""A record as it is stored: one string, whose head the scripts read too (`lua/record.lua`).

Version, order, expiry and wake-up with 16 digits each, then tag, lane and body, with a NUL after the first
two.
"""

from __future__ import annotations

from ..damage import Damaged
from ..record import Address, Record, Standing, Tag
from .keys import DIGITS, NEVER, NUL, digits

DAMAGED = b"!"
"""What the scripts answer in the place of the standing of a record whose head they cannot read."""
_EXPIRY, _WAKE, _TAG = 2 * DIGITS, 3 * DIGITS, 4 * DIGITS


def encode(record: Record) -> bytes:
    expires = NEVER if record.expires_at is None else digits(record.expires_at)
    wake = NEVER if record.wake_at is None else digits(record.wake_at)
    numbers = digits(record.version) + digits(record.order) + expires + wake
    return numbers + f"{record.tag}\0{record.lane or ''}\0{record.body}".encode()


def decode(address: Address, value: bytes) -> Record | Damaged:
    try:
        return _decode(address, value)
    except ValueError as error:
        return Damaged(address, f"its value cannot be decoded ({error})")


def _decode(address: Address, value: bytes) -> Record:
    tag, lane, body = value[_TAG:].split(NUL, 2)
    expires, wake = value[_EXPIRY:_WAKE], value[_WAKE:_TAG]
    return Record(
        space=address.space,
        partition=address.partition,
        key=address.key,
        order=int(value[DIGITS:_EXPIRY]),
        body=body.decode(),
        version=int(value[:DIGITS]),
        tag=tag.decode(),
        expires_at=None if expires == NEVER else int(expires),
        lane=None if wake == NEVER else lane.decode(),
        wake_at=None if wake == NEVER else int(wake),
    )


def standing(record: Record) -> bytes:
    """What decides about a change, as the scripts compare it: version, order and tag."""
    return digits(record.version) + digits(record.order) + record.tag.encode()


def decode_standing(address: Address, value: bytes) -> Standing | None:
    """Return what a change met at this address; raise StorageCorrupt if that is damaged."""
    if not value:
        return None
    if value == DAMAGED:
        raise Damaged(address, "its value cannot be decoded").error()
    try:
        return Standing(int(value[:DIGITS]), int(value[DIGITS:_EXPIRY]), value[_EXPIRY:].decode())
    except ValueError as error:
        raise Damaged(address, f"its value cannot be decoded ({error})").error() from error


def decode_tag(value: bytes) -> Tag:
    """Return the tag in the standing of a record that was removed, whatever is left of it."""
    return value[_EXPIRY:].decode(errors="replace")
