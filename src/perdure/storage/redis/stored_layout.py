"""Defines the names of Redis keys, the entries of indexes, and the stored form of a record.

All Redis keys of a shard (a fixed group of partitions) have the same hash tag, so a cluster keeps them in one
slot, and one script can use them all. Names are separated by NUL, which no name contains. Every index is a
sorted set whose scores are all equal, so its entries are sorted by their bytes. Numbers have 16 digits, so
that they sort in numerical order. No counters are stored: `counts` counts the entries in a range of an index.

In this table, `key` is the key of a record within its partition, `tag` is the label of a record, and `lane`
is the timer queue of a record:

    Redis key                                   entries of the index
    R space partition key                       (a record, stored as one string)
    o space partition                           order key
    g space partition                           tag order key
    e space partition                           tag expiry key
    O space                                     order key partition
    G space                                     tag order key partition
    E space                                     tag expiry key partition
    T                                           lane wake-up key partition space
    X                                           expiry key partition space

The string of a record starts with the version, order, expiry time and wake-up time, each with 16 digits. The
tag, lane and body follow, separated by NUL. The scripts read everything except the body (see
`lua/record.lua`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from ..damaged_record import Damaged
from ..records_and_changes import Address, LanePosition, Micros, Position, Record, RecordState, Space, Tag
from ..request_batcher import batched
from ..shards import SHARD_COUNT, shard_of

NUL = b"\0"
NUMBER_WIDTH = 16
NEVER = b"9" * NUMBER_WIDTH
"""The stored form of an expiry or a wake-up time that is not set. It sorts after all real times."""


def encode_number(number: Micros) -> bytes:
    return b"%016d" % number


def join_names(*names: str) -> bytes:
    return "\0".join(names).encode()


class Keys:
    """Builds the names of the Redis keys of one storage. Every name contains the prefix of the storage."""

    def __init__(self, prefix: str) -> None:
        self.hash_tags = tuple(f"{{{prefix}:{shard:02}}}".encode() for shard in range(SHARD_COUNT))
        self.channel = f"{prefix}:changes".encode()
        self.format_key = self.hash_tags[0] + b"format"
        """The key that stores the format version. It exists even in a storage without records."""
        self.scan_pattern = f"{{{prefix}:[0-9][0-9]}}*".encode()
        """The glob pattern that matches all keys of the storage."""

    def split_key(self, key: bytes) -> tuple[int, bytes, list[str]]:
        """Split `key` into the shard number, the kind (one letter), and the names that follow."""
        start = len(self.hash_tags[0])
        return int(key[start - 3 : start - 1]), key[start : start + 1], key[start + 1 :].decode().split("\0")

    def record_key(self, address: Address) -> bytes:
        return self.hash_tags[shard_of(address.partition)] + b"R" + join_names(*address)

    def timer_index(self, shard: int) -> bytes:
        return self.hash_tags[shard] + b"T"

    def expiry_index(self, shard: int) -> bytes:
        return self.hash_tags[shard] + b"X"

    def listing_index(self, space: Space, partition: str | None, shard: int, *, by_tag: bool) -> bytes:
        if partition is None:
            return self.hash_tags[shard] + (b"G" if by_tag else b"O") + space.encode()
        return self.hash_tags[shard] + (b"g" if by_tag else b"o") + join_names(space, partition)

    def count_indexes(self, space: Space, partition: str | None, shard: int) -> tuple[bytes, bytes]:
        """Return the keys of the listing by tag and of the expiry index by tag, which `counts` uses."""
        expiries = b"E" + space.encode() if partition is None else b"e" + join_names(space, partition)
        return self.listing_index(space, partition, shard, by_tag=True), self.hash_tags[shard] + expiries

    def script_keys(
        self, partitions: Iterable[tuple[Space, str]], addresses: Sequence[Address]
    ) -> list[bytes]:
        """Return the keys that a script needs for these records, in the order that the script expects.

        All records must be in the same shard. The result contains the keys of the timer index, the expiry
        index, six indexes for each of `partitions`, and the records at `addresses`.
        """
        shard = shard_of(addresses[0].partition)
        tag = self.hash_tags[shard]
        keys = [self.timer_index(shard), self.expiry_index(shard)]
        for space, partition in partitions:
            keys += [tag + kind + join_names(space, partition) for kind in (b"o", b"g", b"e")]
            keys += [tag + kind + space.encode() for kind in (b"O", b"G", b"E")]
        return keys + [self.record_key(address) for address in addresses]


def batches_by_shard(addresses: Iterable[Address], size: int) -> list[Sequence[Address]]:
    """Group addresses by shard, and split each group into batches of at most `size` addresses."""
    by_shard: defaultdict[int, list[Address]] = defaultdict(list)
    for address in addresses:
        by_shard[shard_of(address.partition)].append(address)
    return [batch for group in by_shard.values() for batch in batched(group, size)]


def entry_number(entry: bytes, prefix: int) -> Micros:
    """Return the number that follows the first `prefix` bytes of an index entry."""
    return int(entry[prefix : prefix + NUMBER_WIDTH])


def entry_names(entry: bytes, prefix: int) -> list[str]:
    """Return the names that follow the number in an index entry. The number starts after `prefix` bytes."""
    return entry[prefix + NUMBER_WIDTH :].decode().split("\0")


def entry_address(entry: bytes, prefix: int) -> Address:
    """Return the address in an entry of the timer index or the expiry index.

    The first number in the entry starts after `prefix` bytes.
    """
    key, partition, space = entry_names(entry, prefix)
    return Address(Space(space), partition, key)


class LexRange(msgspec.Struct, frozen=True):
    """A range of an index between two bounds, in the notation of ZRANGE BYLEX."""

    first: bytes
    last: bytes
    descending: bool = False

    def starting_after(self, entry: bytes) -> LexRange:
        """Return the part of this range that follows `entry`."""
        return LexRange(b"(" + entry, self.last, self.descending)


def position_entry(position: Position, partition: str | None, tag: Tag | None) -> bytes:
    """Return the entry for `position` in a listing of `partition`, or of all partitions if it is None.

    If `tag` is not None, the listing is sorted by tag.
    """
    names = [position.key] if partition is not None else [position.key, position.partition]
    return tag_prefix(tag) + encode_number(position.order) + join_names(*names)


def tag_prefix(tag: Tag | None) -> bytes:
    return b"" if tag is None else tag.encode() + NUL


def listing_range(tag: Tag | None, *, descending: bool) -> LexRange:
    """Return the range of a listing that contains the records with `tag`, or all records if `tag` is None."""
    low, high = b"-", b"+"
    if tag is not None:
        low, high = b"[" + tag_prefix(tag), b"(" + tag.encode() + b"\1"
    return LexRange(high, low, descending=True) if descending else LexRange(low, high)


def due_range(lane: str, until: Micros) -> LexRange:
    """Return the range of the timer index that contains the records of a lane with `wake_at <= until`."""
    prefix = lane.encode() + NUL
    return LexRange(b"[" + prefix, b"(" + prefix + encode_number(until + 1))


def timer_entry(lane: str, position: LanePosition) -> bytes:
    """Return the timer index entry for a position in a lane."""
    names = join_names(position.key, position.partition, position.space)
    return lane.encode() + NUL + encode_number(position.wake_at) + names


def expired_range(until: Micros) -> LexRange:
    """Return the range of the expiry index that contains the records with `expires_at <= until`."""
    return LexRange(b"-", b"(" + encode_number(until + 1))


DAMAGED = b"!"
"""The value that the write script returns instead of the state of a damaged record."""
_EXPIRY, _WAKE, _TAG = 2 * NUMBER_WIDTH, 3 * NUMBER_WIDTH, 4 * NUMBER_WIDTH


def encode_record(record: Record) -> bytes:
    expires = NEVER if record.expires_at is None else encode_number(record.expires_at)
    wake = NEVER if record.wake_at is None else encode_number(record.wake_at)
    numbers = encode_number(record.version) + encode_number(record.order) + expires + wake
    return numbers + f"{record.tag}\0{record.lane or ''}\0{record.body}".encode()


def decode_record(address: Address, value: bytes) -> Record | Damaged:
    try:
        tag, lane, body = value[_TAG:].split(NUL, 2)
        expires, wake = value[_EXPIRY:_WAKE], value[_WAKE:_TAG]
        return Record(
            space=address.space,
            partition=address.partition,
            key=address.key,
            order=int(value[NUMBER_WIDTH:_EXPIRY]),
            body=body.decode(),
            version=int(value[:NUMBER_WIDTH]),
            tag=tag.decode(),
            expires_at=None if expires == NEVER else int(expires),
            lane=None if wake == NEVER else lane.decode(),
            wake_at=None if wake == NEVER else int(wake),
        )
    except ValueError as error:
        return Damaged(address, f"its value cannot be decoded ({error})")


def encode_state(record: Record) -> bytes:
    """Encode the version, order and tag of a record.

    The write script compares them with the stored record.
    """
    return encode_number(record.version) + encode_number(record.order) + record.tag.encode()


def decode_state(address: Address, value: bytes) -> RecordState | None:
    """Decode the state of the record that the write script found at `address`.

    Return None if there was no record. Raise StorageCorrupt if the record is damaged.
    """
    if not value:
        return None
    if value == DAMAGED:
        raise Damaged(address, "its value cannot be decoded").error()
    try:
        return RecordState(
            int(value[:NUMBER_WIDTH]), int(value[NUMBER_WIDTH:_EXPIRY]), value[_EXPIRY:].decode()
        )
    except ValueError as error:
        raise Damaged(address, f"its value cannot be decoded ({error})").error() from error


def decode_tag(value: bytes) -> Tag:
    """Return the tag in the encoded state of a purged record. Invalid UTF-8 is replaced."""
    return value[_EXPIRY:].decode(errors="replace")
