"""Defines the items of the table: their keys, their attributes, and the sort keys of the indexes.

    pk                          sk         item
    record#SPACE#PARTITION      KEY        a record
    body#ID                     NUMBER     a part of a body that is too large for one item
    count#SPACE#PARTITION       count      a counter: the number of records with each tag in a partition
    total#SHARD#SPACE           total      a total: the sum of the counters of all partitions in a shard
    format                      format     the version of the stored format

A tag is a label by which records are indexed and counted. Each partition belongs to one of a fixed number of
shards, so that the load of an index is spread over several parts of the table. The space is percent-encoded,
so that it contains no `#`.

The attributes `place`, `tagged_place` and `timer_place` are sort keys of the indexes. A sort key is a string
that sorts like the tuple of its parts: numbers have a fixed width, and names are separated by NUL, which no
name contains and which sorts before any other character. A change to this module can make stored data
unreadable.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from ..damaged_record import Damaged
from ..records_and_changes import (
    Address,
    LanePosition,
    Micros,
    Position,
    Record,
    RecordState,
    Space,
    Tag,
    is_live,
)
from ..shards import shard_of

Item: TypeAlias = Mapping[str, Mapping[str, str]]
"""An item in the form of DynamoDB's API, such as `{"version": {"N": "1"}}`."""
SpacePartition: TypeAlias = tuple[Space, str]
"""A space and a partition. Each such pair has its own counter."""


class Key(NamedTuple):
    pk: str
    sk: str

    @property
    def item(self) -> dict[str, dict[str, str]]:
        return {"pk": {"S": self.pk}, "sk": {"S": self.sk}}


FORMAT_VERSION = 1
"""The version of the stored format. Increase it if older versions of perdure would misread new data."""
FORMAT_KEY = Key("format", "format")
MAX_INLINE_BODY_BYTES = 380_000
"""Maximum size in bytes of a body, or of a part of a body, in one item. DynamoDB limits an item to 400 KB."""
TIMER_SHARD_COUNT = 8
"""Number of shards of the timer index for each lane (timer queue). DynamoDB accepts 1,000 writes a second to
one shard.
"""
TTL_DELAY: Micros = 7 * 86_400_000_000
"""Minimum number of microseconds between the expiry of a record and the deletion of its items by DynamoDB."""

ORDER_NAME: Mapping[str, str] = {"#order": "order"}
"""Maps the placeholder `#order` to the attribute `order`, whose name is a reserved word in DynamoDB."""


class StoredState(NamedTuple):
    """The fields of a stored record that decide the result of a change or locate the parts of the body."""

    version: int
    order: Micros
    tag: Tag
    expires_at: Micros | None
    body_id: str | None = None
    body_parts: int = 0

    def state(self, now: Micros) -> RecordState | None:
        """Return the state to pass to `records_and_changes.decide`.

        Return None if the record has expired at `now`.
        """
        return RecordState(self.version, self.order, self.tag) if self.is_live(now) else None

    def is_live(self, now: Micros) -> bool:
        return is_live(self.expires_at, now)


class ExpiredRecord(NamedTuple):
    """The fields that are needed to delete an expired record. The expiry indexes contain these fields."""

    expires_at: Micros
    address: Address
    tag: Tag
    body_id: str | None
    body_parts: int


# Keys


def record_key(address: Address) -> Key:
    return Key(partition_pk(address.space, address.partition), address.key)


def partition_pk(space: Space, partition: str) -> str:
    return f"record#{_quoted(space)}#{partition}"


def count_key(space: Space, partition: str) -> Key:
    return Key(f"count#{_quoted(space)}#{partition}", "count")


def total_key(space: Space, shard: int) -> Key:
    return Key(f"total#{shard:02}#{_quoted(space)}", "total")


def part_keys(body_id: str | None, parts: int) -> list[Key]:
    """Return the keys of the parts of a body, or [] if `body_id` is None because the body is not split."""
    return [] if body_id is None else [Key(f"body#{body_id}", f"{number:02}") for number in range(parts)]


def parse_pk(pk: str) -> tuple[Space, str]:
    """Extract the space and the partition from `pk`, the partition key of a record or a counter."""
    _, word, partition = pk.split("#", 2)
    return Space(unquote(word)), partition


def _quoted(space: Space) -> str:
    return quote(space, safe="")


# Sort keys and shards


def sort_key(position: Position) -> str:
    return f"{position.order:016}#{position.key}\0{position.partition}"


def tag_sort_key(tag: Tag, position: Position) -> str:
    return f"{tag}\0{sort_key(position)}"


def timer_sort_key(position: LanePosition) -> str:
    return f"{position.wake_at:016}#{position.key}\0{position.partition}\0{position.space}"


def space_shard(shard: int, space: Space) -> str:
    return f"{shard:02}#{_quoted(space)}"


def tag_shard(shard: int, space: Space, tag: Tag) -> str:
    return f"{shard:02}#{_quoted(space)}#{tag}"


def timer_shard(shard: int, lane: str) -> str:
    return f"{shard}#{lane}"


def expiry_shard(shard: int) -> str:
    return f"{shard:02}"


# Items


def encode_record(record: Record, body: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    """Return the item that stores a record.

    `body` contains the attributes for the record's body: either the whole body, or references to its parts.
    """
    shard = shard_of(record.partition)
    position = record.position
    item: dict[str, Mapping[str, str]] = {
        **record_key(record.address).item,
        "order": {"N": str(record.order)},
        "version": {"N": str(record.version)},
        "tag": {"S": record.tag},
        "place": {"S": sort_key(position)},
        "tagged_place": {"S": tag_sort_key(record.tag, position)},
        "space_shard": {"S": space_shard(shard, record.space)},
        "tag_shard": {"S": tag_shard(shard, record.space, record.tag)},
        **body,
    }
    if record.expires_at is not None:
        item["expires_at"] = {"N": str(record.expires_at)}
        item["expiry_shard"] = {"S": expiry_shard(shard)}
        item |= _ttl_attribute(record)
    if record.lane is not None:
        item["lane"] = {"S": record.lane}
        item["wake_at"] = {"N": str(record.wake_at)}
        item["timer_shard"] = {"S": timer_shard(shard % TIMER_SHARD_COUNT, record.lane)}
        item["timer_place"] = {"S": timer_sort_key(record.lane_position)}
    return item


def encode_body_part(key: Key, text: str, record: Record) -> dict[str, Mapping[str, str]]:
    """Return the item that stores a part of a body.

    The item contains the key of the record, so that `maintain` can find parts that the record no longer
    refers to.
    """
    parent = record_key(record.address)
    return {
        **key.item,
        "part": {"S": text},
        "part_bytes": {"N": str(len(text.encode()))},
        "record_pk": {"S": parent.pk},
        "record_sk": {"S": parent.sk},
        **_ttl_attribute(record),
    }


def _ttl_attribute(record: Record) -> dict[str, Mapping[str, str]]:
    """Return the attribute that decides when DynamoDB deletes the item, or {} if the record never expires.

    The attribute is a Unix time in seconds. It is rounded up, so that the item is not deleted too early.
    """
    if record.expires_at is None:
        return {}
    return {"removed_after": {"N": str(ceil((record.expires_at + TTL_DELAY) / 1_000_000))}}


def decode_record(item: Item, body: str) -> Record | Damaged:
    try:
        space, partition = parse_pk(item["pk"]["S"])
        return Record(
            space=space,
            partition=partition,
            key=item["sk"]["S"],
            order=int(item["order"]["N"]),
            body=body,
            version=int(item["version"]["N"]),
            tag=item["tag"]["S"],
            expires_at=int_attribute(item, "expires_at"),
            lane=item["lane"]["S"] if "lane" in item else None,
            wake_at=int_attribute(item, "wake_at"),
        )
    except (KeyError, ValueError) as error:
        return _damaged(item, error)


def decode_state(item: Item | None) -> StoredState | None:
    """Return the state of the record in `item`, or None if `item` is empty or None.

    Raise StorageCorrupt if the record is damaged.
    """
    if not item:
        return None
    try:
        return StoredState(
            version=int(item["version"]["N"]),
            order=int(item["order"]["N"]),
            tag=item["tag"]["S"],
            expires_at=int_attribute(item, "expires_at"),
            body_id=item["body_id"]["S"] if "body_id" in item else None,
            body_parts=int_attribute(item, "body_parts") or 0,
        )
    except (KeyError, ValueError) as error:
        raise _damaged(item, error).error() from error


def decode_expired(item: Item) -> ExpiredRecord | None:
    """Return the expired record that `item` stores, or None if the record is damaged.

    Damaged records are not purged, because their tags may be unknown.
    """
    try:
        return ExpiredRecord(
            expires_at=int(item["expires_at"]["N"]),
            address=Address(*parse_pk(item["pk"]["S"]), item["sk"]["S"]),
            tag=item["tag"]["S"],
            body_id=item["body_id"]["S"] if "body_id" in item else None,
            body_parts=int_attribute(item, "body_parts") or 0,
        )
    except (KeyError, ValueError):
        return None


def address_of(key: Key) -> Address:
    return Address(*parse_pk(key.pk), key.sk)


def _damaged(item: Item, error: KeyError | ValueError) -> Damaged:
    missing = f"the attribute {error} is missing or has the wrong type"
    return Damaged(address_of(item_key(item)), missing if isinstance(error, KeyError) else str(error))


def owner_of(item: Item) -> Key:
    """Return the key of the record to which a part of a body belongs.

    For any other item, return the key of the item itself.
    """
    if "record_pk" in item:
        return Key(item["record_pk"]["S"], item["record_sk"]["S"])
    return item_key(item)


def tag_in(item: Item) -> Tag | None:
    """Return the tag under which a record is counted, or None if the tag is missing or damaged."""
    return item.get("tag", {}).get("S")


def int_attribute(item: Item, name: str) -> int | None:
    return int(item[name]["N"]) if name in item else None


def item_key(item: Item) -> Key:
    return Key(item["pk"]["S"], item["sk"]["S"])


# Bodies


def needs_split(body: str) -> bool:
    return len(body) > MAX_INLINE_BODY_BYTES // 4 and len(body.encode()) > MAX_INLINE_BODY_BYTES


def split_body(body: str) -> list[str]:
    """Split a body into parts, each of which fits into one item. Do not split a character."""
    raw = body.encode()
    parts: list[str] = []
    start = 0
    while start < len(raw):
        end = min(start + MAX_INLINE_BODY_BYTES, len(raw))
        while end < len(raw) and raw[end] & 0xC0 == 0x80:  # a byte within a character
            end -= 1
        parts.append(raw[start:end].decode())
        start = end
    return parts
