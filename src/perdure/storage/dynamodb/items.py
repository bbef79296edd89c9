"""How records lie in the table: names of attributes, keys, places in the indexes, and back.

    pk                          sk         what
    record#SPACE#PARTITION      KEY        a record
    body#ID                     NUMBER     a part of a body that is too large for one item
    count#SPACE#PARTITION       count      how many records of each tag a partition holds
    total#SHARD#SPACE           total      the same for all partitions of a shard
    format                      format     the number of the format in which all of this is stored

A space is percent-encoded there, so that no name can pretend to be another. A place is text that sorts as the
tuple of its parts: numbers have all their digits, and NUL, which no name holds, comes before any character.
Stored data depends on everything in this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from ..damage import Damaged
from ..record import Address, Micros, Position, Record, RecordState, Space, Tag
from ..shards import shard_of

Item: TypeAlias = Mapping[str, Mapping[str, str]]
"""An item as DynamoDB speaks of it: each value under the letter of its type."""


class Key(NamedTuple):
    pk: str
    sk: str

    @property
    def item(self) -> dict[str, dict[str, str]]:
        return {"pk": {"S": self.pk}, "sk": {"S": self.sk}}


FORMAT = 1
"""The number of the format that this module describes. A change that older versions misread raises it."""
FORMAT_KEY = Key("format", "format")
MOST_INLINE = 380_000
"""Bytes of a body, or of a part of one. With all names at their longest an item stays below 400 KB."""
TIMER_SHARDS = 8
"""Workers ask for what is due all the time, and each time all of these. DynamoDB takes 1 000 writes a second
for each, so a lane takes 8 000."""
BACKSTOP: Micros = 7 * 86_400_000_000
"""How long after its expiry DynamoDB itself may remove an item that nobody has purged."""

ORDER_NAME: Mapping[str, str] = {"#order": "order"}
"""`order` is a reserved word in DynamoDB's expressions."""


class Found(NamedTuple):
    """What stands at an address, expired or not, as far as it matters to who would change it."""

    version: int
    order: Micros
    tag: Tag
    expires_at: Micros | None
    body_id: str | None = None
    body_parts: int = 0

    def state(self, now: Micros) -> RecordState | None:
        """What a change meets here: nothing, if it has expired."""
        return RecordState(self.version, self.order, self.tag) if self.is_live(now) else None

    def is_live(self, now: Micros) -> bool:
        return self.expires_at is None or now < self.expires_at


class Overdue(NamedTuple):
    """An expired record as an index shows it: enough to remove it."""

    expires_at: Micros
    address: Address
    tag: Tag
    body_id: str | None
    body_parts: int


# Keys


def record_key(address: Address) -> Key:
    return Key(records_of(address.space, address.partition), address.key)


def records_of(space: Space, partition: str) -> str:
    return f"record#{_word(space)}#{partition}"


def count_key(space: Space, partition: str) -> Key:
    return Key(f"count#{_word(space)}#{partition}", "count")


def total_key(space: Space, shard: int) -> Key:
    return Key(f"total#{shard:02}#{_word(space)}", "total")


def part_keys(body_id: str, parts: int) -> list[Key]:
    return [Key(f"body#{body_id}", f"{number:02}") for number in range(parts)]


def scope_of(pk: str) -> tuple[Space, str]:
    """The space and partition that a record or a count belongs to."""
    _, word, partition = pk.split("#", 2)
    return Space(unquote(word)), partition


def total_scope_of(pk: str) -> tuple[Space, int]:
    _, shard, word = pk.split("#", 2)
    return Space(unquote(word)), int(shard)


def _word(space: Space) -> str:
    return quote(space, safe="")


# Places


def place(position: Position) -> str:
    return f"{position.order:016}#{position.key}\0{position.partition}"


def tagged_place(tag: Tag, position: Position) -> str:
    return f"{tag}\0{place(position)}"


def timer_place(record: Record) -> str:
    return f"{record.wake_at or 0:016}#{record.key}\0{record.partition}\0{record.space}"


def space_shard(shard: int, space: Space) -> str:
    return f"{shard:02}#{_word(space)}"


def tag_shard(shard: int, space: Space, tag: Tag) -> str:
    return f"{shard:02}#{_word(space)}#{tag}"


def timer_shard(shard: int, lane: str) -> str:
    return f"{shard}#{lane}"


def expiry_shard(shard: int) -> str:
    return f"{shard:02}"


# Items


def item_of_record(record: Record, body: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    """`body` is the body itself, or where its parts are."""
    shard = shard_of(record.partition)
    position = record.position
    item: dict[str, Mapping[str, str]] = {
        **record_key(record.address).item,
        "order": {"N": str(record.order)},
        "version": {"N": str(record.version)},
        "tag": {"S": record.tag},
        "place": {"S": place(position)},
        "tagged_place": {"S": tagged_place(record.tag, position)},
        "space_shard": {"S": space_shard(shard, record.space)},
        "tag_shard": {"S": tag_shard(shard, record.space, record.tag)},
        **body,
    }
    if record.expires_at is not None:
        item["expires_at"] = {"N": str(record.expires_at)}
        item["expiry_shard"] = {"S": expiry_shard(shard)}
        item |= _backstop(record)
    if record.lane is not None:
        item["lane"] = {"S": record.lane}
        item["wake_at"] = {"N": str(record.wake_at)}
        item["timer_shard"] = {"S": timer_shard(shard % TIMER_SHARDS, record.lane)}
        item["timer_place"] = {"S": timer_place(record)}
    return item


def item_of_part(key: Key, text: str, record: Record) -> dict[str, Mapping[str, str]]:
    """A part of a body. It tells whose it is, so that one which its record does not know can be found out."""
    whose = record_key(record.address)
    return {
        **key.item,
        "part": {"S": text},
        "part_bytes": {"N": str(len(text.encode()))},
        "record_pk": {"S": whose.pk},
        "record_sk": {"S": whose.sk},
        **_backstop(record),
    }


def _backstop(record: Record) -> dict[str, Mapping[str, str]]:
    """When DynamoDB itself may remove it, in whole seconds."""
    if record.expires_at is None:
        return {}
    return {"removed_after": {"N": str((record.expires_at + BACKSTOP) // 1_000_000)}}


def record_of(item: Item, body: str) -> Record | Damaged:
    try:
        return _record_of(item, body)
    except (KeyError, ValueError) as error:
        return _damaged(item, error)


def _record_of(item: Item, body: str) -> Record:
    space, partition = scope_of(item["pk"]["S"])
    return Record(
        space=space,
        partition=partition,
        key=item["sk"]["S"],
        order=int(item["order"]["N"]),
        body=body,
        version=int(item["version"]["N"]),
        tag=item["tag"]["S"],
        expires_at=number(item, "expires_at"),
        lane=item["lane"]["S"] if "lane" in item else None,
        wake_at=number(item, "wake_at"),
    )


def found_in(item: Item | None) -> Found | None:
    """Return what a change needs to know of a stored record; raise StorageCorrupt if it is damaged."""
    if not item:
        return None
    try:
        return _found_in(item)
    except (KeyError, ValueError) as error:
        raise _damaged(item, error).error() from error


def _found_in(item: Item) -> Found:
    return Found(
        version=int(item["version"]["N"]),
        order=int(item["order"]["N"]),
        tag=item["tag"]["S"],
        expires_at=number(item, "expires_at"),
        body_id=item["body_id"]["S"] if "body_id" in item else None,
        body_parts=number(item, "body_parts") or 0,
    )


def overdue_in(item: Item) -> Overdue | None:
    """Return an expired record, or None if it is damaged: nobody knows how it was counted, so it stays."""
    try:
        return _overdue_in(item)
    except (KeyError, ValueError):
        return None


def _overdue_in(item: Item) -> Overdue:
    return Overdue(
        expires_at=int(item["expires_at"]["N"]),
        address=Address(*scope_of(item["pk"]["S"]), item["sk"]["S"]),
        tag=item["tag"]["S"],
        body_id=item["body_id"]["S"] if "body_id" in item else None,
        body_parts=number(item, "body_parts") or 0,
    )


def address_of(key: Key) -> Address:
    return Address(*scope_of(key.pk), key.sk)


def _damaged(item: Item, error: KeyError | ValueError) -> Damaged:
    what = (
        f"the attribute {error} is missing or of another type" if isinstance(error, KeyError) else str(error)
    )
    return Damaged(address_of(key_of(item)), what)


def owner_of(item: Item) -> Key:
    """Return the key of the record that an item belongs to: its own, unless it is a part of a body."""
    if "record_pk" in item:
        return Key(item["record_pk"]["S"], item["record_sk"]["S"])
    return key_of(item)


def tag_in(item: Item) -> Tag | None:
    """Return the tag by which a record is counted, or None if it is damaged."""
    return item.get("tag", {}).get("S")


def number(item: Item, name: str) -> int | None:
    return int(item[name]["N"]) if name in item else None


def key_of(item: Item) -> Key:
    return Key(item["pk"]["S"], item["sk"]["S"])


# Bodies


def whole(body: str) -> dict[str, Mapping[str, str]]:
    return {"body": {"S": body}}


def is_split(body: str) -> bool:
    return len(body) > MOST_INLINE // 4 and len(body.encode()) > MOST_INLINE


def split(body: str) -> list[str]:
    """The body in parts, each as large as an item can hold; no character is cut."""
    raw = body.encode()
    parts: list[str] = []
    start = 0
    while start < len(raw):
        end = min(start + MOST_INLINE, len(raw))
        while end < len(raw) and raw[end] & 0xC0 == 0x80:  # within a character
            end -= 1
        parts.append(raw[start:end].decode())
        start = end
    return parts
