"""Where things stand: the names of keys, and the entries of the indexes.

All keys of a shard carry one hash tag, so they are in one slot of a cluster and one script may touch them.
Names stand between NULs, which no name holds. Every index is a sorted set of equal scores, that is, in the
order of its entries' bytes; numbers have 16 digits in it, so this is the order that the contract wants. No
index knows a number of its own: what is counted is the length of a range, and cannot be wrong by itself.

    record     R space partition key            the record, see `stored`
    scope      o space partition                order key
               g space partition                tag order key
               e space partition                tag expiry key
               O space                          order key partition
               G space                          tag order key partition
               E space                          tag expiry key partition
    shard      T                                lane wake-up key partition space
               X                                expiry key partition space
"""

from __future__ import annotations

import msgspec

from ..damage import Damaged
from ..record import Address, Micros, Position, Record, Space, Standing, Tag
from ..shards import SHARDS, shard_of

NUL = b"\0"
DIGITS = 16
NEVER = b"9" * DIGITS
"""Later than any time, and in the place of one that there is not."""


def digits(number: Micros) -> bytes:
    return b"%016d" % number


def joined(*names: str) -> bytes:
    return "\0".join(names).encode()


class Keys:
    """The names of keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.channel = f"{prefix}:changes".encode()
        self._tags = tuple(f"{{{prefix}:{shard:02}}}".encode() for shard in range(SHARDS))

    @property
    def format(self) -> bytes:
        """Says which version of perdure's format this is; the only key that is always there."""
        return self._tags[0] + b"format"

    @property
    def pattern(self) -> bytes:
        """What all keys look like, as the server matches them."""
        return self._tags[0].replace(b":00}", b":[0-9][0-9]}*")

    def tag(self, shard: int) -> bytes:
        return self._tags[shard]

    def shard_in(self, key: bytes) -> tuple[int, bytes]:
        """The shard that a key is of, and what comes after its tag."""
        length = len(self._tags[0])
        return int(key[length - 3 : length - 1]), key[length:]

    def record(self, address: Address) -> bytes:
        return self._tags[shard_of(address.partition)] + b"R" + joined(*address)

    def timers(self, shard: int) -> bytes:
        return self._tags[shard] + b"T"

    def expiries(self, shard: int) -> bytes:
        return self._tags[shard] + b"X"

    def listing(self, space: Space, partition: str | None, shard: int, *, by_tag: bool) -> bytes:
        if partition is None:
            return self._tags[shard] + (b"G" if by_tag else b"O") + space.encode()
        return self._tags[shard] + (b"g" if by_tag else b"o") + joined(space, partition)

    def counted(self, space: Space, partition: str | None, shard: int) -> tuple[bytes, bytes]:
        """What is counted by tag, and what of it expires."""
        ends = b"E" + space.encode() if partition is None else b"e" + joined(space, partition)
        return self.listing(space, partition, shard, by_tag=True), self._tags[shard] + ends

    def scope(self, space: Space, partition: str) -> tuple[bytes, ...]:
        """The six indexes of a partition's records of one space, in the order that the scripts know."""
        tag, of_space, of_both = self._tags[shard_of(partition)], space.encode(), joined(space, partition)
        kinds = ((b"o", of_both), (b"g", of_both), (b"e", of_both))
        wide = ((b"O", of_space), (b"G", of_space), (b"E", of_space))
        return tuple(tag + kind + names for kind, names in (*kinds, *wide))


def number_in(entry: bytes, prefix: int) -> Micros:
    """The number that an entry has after a prefix of so many bytes."""
    return int(entry[prefix : prefix + DIGITS])


def names_in(entry: bytes, prefix: int) -> list[str]:
    """The names after that number."""
    return entry[prefix + DIGITS :].decode().split("\0")


class Range(msgspec.Struct, frozen=True):
    """A stretch of an index: between two bounds, in the notation of the server."""

    first: bytes
    last: bytes
    descending: bool = False

    def after(self, entry: bytes | None) -> Range:
        """What of it comes after an entry."""
        return self if entry is None else Range(b"(" + entry, self.last, self.descending)


def after(position: Position, partition: str | None, tag: Tag | None) -> bytes:
    """The entry of a position in a listing."""
    names = joined(position.key) if partition is not None else joined(position.key, position.partition)
    return tag_prefix(tag) + digits(position.order) + names


def tag_prefix(tag: Tag | None) -> bytes:
    return b"" if tag is None else tag.encode() + NUL


def listed(tag: Tag | None, *, descending: bool) -> Range:
    """A whole listing, or what of it has one tag."""
    low, high = b"-", b"+"
    if tag is not None:
        low, high = b"[" + tag.encode() + NUL, b"(" + tag.encode() + b"\1"
    return Range(high, low, descending=True) if descending else Range(low, high)


def awake(lane: str, until: Micros) -> Range:
    """The timers of a lane that have come by then."""
    prefix = lane.encode() + NUL
    return Range(b"[" + prefix, b"(" + prefix + digits(until + 1))


def overdue(until: Micros) -> Range:
    """What has expired by then."""
    return Range(b"-", b"(" + digits(until + 1))


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
