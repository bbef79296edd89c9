"""One transaction in the making: records, parts of bodies, counters, and the conditions on each.

Counters are added up over the whole of it, so that each counter is one item however many changes move it.
Every item remembers who is to learn what stands in its way, should the transaction be refused.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias
from uuid import uuid4

from ..errors import OutcomeUnknown
from ..record import (
    Accepted,
    Address,
    Change,
    ChangeResult,
    Committed,
    Delete,
    Guard,
    Insert,
    InsertIfAbsent,
    Kept,
    Micros,
    Record,
    Refused,
    Replace,
    Space,
    Tag,
    accepted_results,
    decide,
    guard_delta,
    tag_deltas,
)
from ..shards import shard_of
from .counters import Stored, addition, joined
from .errors import CONDITION_FAILED, NO_REASON, Reason
from .items import (
    ORDER_NAME,
    Found,
    Item,
    Key,
    Overdue,
    count_key,
    found_in,
    is_split,
    item_of_part,
    item_of_record,
    key_of,
    owner_of,
    part_keys,
    record_key,
    split,
    total_key,
    whole,
)
from .table import TELL_WHAT_STANDS, NotAsExpected, Parameters, Table

Learn: TypeAlias = Callable[[Item | None], None]
"""Is told what stands where a condition failed."""
_Scope: TypeAlias = tuple[Space, str]

_ALIVE = "(attribute_not_exists(expires_at) OR expires_at > :now)"
SOON: Micros = 60_000_000
"""A record that expires so soon after it was written may expire before those who count have seen it."""


class Transaction:
    """What is written together, or not at all."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._writes: list[Parameters] = []
        self._learners: list[tuple[Key, Learn] | None] = []
        self._deltas: defaultdict[_Scope, Counter[Tag]] = defaultdict(Counter)
        self._expiries: set[_Scope] = set()
        self._held: dict[_Scope, tuple[dict[str, Any], Learn | None]] = {}

    def put(self, record: Record, stands: Found | None, now: Micros, learn: Learn) -> None:
        """Write a record where this stands, or nothing."""
        body = self._put_parts(record) if is_split(record.body) else whole(record.body)
        self._add("Put", {"Item": item_of_record(record, body), **condition(stands, now)}, learn)
        self.may_expire(record, now)

    def purge(self, overdue: Overdue, until: Micros, learn: Learn) -> None:
        """Remove a record that has expired, and its count."""
        values = {":until": {"N": str(until)}, ":tag": {"S": overdue.tag}}
        expression = f"expires_at <= :until AND tag = :tag AND {_body(overdue.body_id, values)}"
        what = {"ConditionExpression": expression, "ExpressionAttributeValues": values}
        self._add("Delete", {"Key": record_key(overdue.address).item, **what}, learn)
        self.forget_expired(overdue.address, overdue.tag)

    def delete(self, address: Address, stands: Found | None, now: Micros, learn: Learn) -> None:
        self._add("Delete", {"Key": record_key(address).item, **condition(stands, now)}, learn)

    def check(self, address: Address, stands: Found | None, now: Micros, learn: Learn) -> None:
        """Go on only while this stands there."""
        self._add("ConditionCheck", {"Key": record_key(address).item, **condition(stands, now)}, learn)

    def count(self, space: Space, partition: str, tag: Tag, by: int) -> None:
        self._deltas[space, partition][tag] += by

    def forget_expired(self, address: Address, tag: Tag) -> None:
        """An expired record is removed, or overwritten: it no longer counts."""
        self.count(address.space, address.partition, tag, -1)
        self._expiries.add((address.space, address.partition))

    def may_expire(self, record: Record, now: Micros) -> None:
        """A record comes, or goes, so near its end that to those whose clock is ahead it may have expired."""
        if record.expires_at is not None and record.expires_at <= now + SOON:
            self._expiries.add((record.space, record.partition))

    def only_if(
        self, space: Space, partition: str, condition: dict[str, Any], learn: Learn | None = None
    ) -> None:
        """Go on only while the partition's counter meets a condition."""
        self._held[space, partition] = condition, learn

    async def commit(self, *, is_shared: bool = False) -> bool:
        """Whether it was written; if not, everybody has learned what stood in the way.

        `is_shared`: raise Contended if only some items prevented it for now.
        """
        self._add_counters()
        try:
            await self._table.transact(self._writes, is_shared=is_shared)
        except NotAsExpected as refused:
            if refused.lost:  # and the server may have forgotten the token, so this may have met itself
                name = self._table.location.name
                raise OutcomeUnknown(
                    f"{name}: the answer to a write was lost, and the next was no"
                ) from refused
            await self._tell(refused.reasons)
            return False
        return True

    def named_by(self, reasons: Sequence[Reason]) -> set[Key]:
        """Return the keys of the items that these reasons name. A part of a body is named by its record."""
        return {
            _owner_of(write)
            for write, reason in zip(self._writes, reasons, strict=False)
            if reason.get("Code", NO_REASON) != NO_REASON
        }

    async def _tell(self, reasons: Sequence[Reason]) -> None:
        """Tell what stood in the way. Where DynamoDB did not look, because others were there, it is read."""
        unseen: dict[Key, Learn] = {}
        for learner, reason in zip(self._learners, reasons, strict=True):
            code = reason.get("Code", NO_REASON)
            if learner is None or code == NO_REASON:
                continue
            key, learn = learner
            if code == CONDITION_FAILED:
                learn(reason.get("Item"))
            else:
                unseen[key] = learn
        found = await self._table.get(unseen) if unseen else {}
        for key, learn in unseen.items():
            learn(found.get(key))

    def _put_parts(self, record: Record) -> Mapping[str, Mapping[str, str]]:
        """Write the body apart; the answer goes into the record in its place."""
        body_id, texts = uuid4().hex, split(record.body)
        for key, text in zip(part_keys(body_id, len(texts)), texts, strict=True):
            self._add("Put", {"Item": item_of_part(key, text, record)}, None)
        return {"body_id": {"S": body_id}, "body_parts": {"N": str(len(texts))}}

    def _add(self, kind: str, what: Parameters, learn: Learn | None) -> None:
        tell: Parameters = {} if learn is None else TELL_WHAT_STANDS
        self._writes.append({kind: {"TableName": self._table.name, **what, **tell}})
        self._learners.append(None if learn is None else (key_of(what.get("Key") or what["Item"]), learn))

    # Counters

    def _add_counters(self) -> None:
        totals: defaultdict[Key, Counter[Tag]] = defaultdict(Counter)
        for scope in {**self._deltas, **self._held, **dict.fromkeys(self._expiries)}:
            moved = {tag: by for tag, by in self._deltas[scope].items() if by}
            self._add_counter(scope, moved)
            totals[total_key(scope[0], shard_of(scope[1]))].update(moved)
        for key, moved in totals.items():
            if moved:  # even by nothing in the end: its revision tells that its counters moved
                self._add("Update", {"Key": key.item, **addition(moved)}, None)

    def _add_counter(self, scope: _Scope, moved: Mapping[Tag, int]) -> None:
        key = count_key(*scope).item
        met, learn = self._held.get(scope, ({}, None))
        if moved or scope in self._expiries:
            what = joined(addition(moved, expiry=scope in self._expiries), met)
            self._add("Update", {"Key": key, **what}, learn)
        elif met:
            self._add("ConditionCheck", {"Key": key, **met}, learn)


def _owner_of(write: Parameters) -> Key:
    [what] = write.values()
    return owner_of(what.get("Key") or what["Item"])


def condition(stands: Found | None, now: Micros) -> dict[str, Any]:
    """That this very record stands there, as alive or as dead as it was; or none."""
    if stands is None:
        return {"ConditionExpression": "attribute_not_exists(pk)"}
    values = {
        ":version": {"N": str(stands.version)},
        ":order": {"N": str(stands.order)},
        ":tag": {"S": stands.tag},
        ":now": {"N": str(now)},
    }
    expression = [
        "version = :version AND #order = :order AND tag = :tag",
        _ALIVE if stands.is_live(now) else "expires_at <= :now",
        _body(stands.body_id, values),
    ]
    return {
        "ConditionExpression": " AND ".join(expression),
        "ExpressionAttributeNames": ORDER_NAME,
        "ExpressionAttributeValues": values,
    }


def _body(body_id: str | None, values: dict[str, dict[str, str]]) -> str:
    """That its body is where we think it is."""
    if body_id is None:
        return "attribute_not_exists(body_id)"
    values[":body_id"] = {"S": body_id}
    return "body_id = :body_id"


class Pending:
    """One commit, until it is settled."""

    def __init__(self, changes: Sequence[Change], guard: Guard | None, now: Micros) -> None:
        self.changes = changes
        self.guard = guard
        self.now = now
        self.tries = 0
        self.contended = 0
        """How often a transaction of this commit was canceled because of items that concern all of it."""
        self.counted: Stored | None = None
        """The guarded counter, once the guard has stood in the way."""
        self._stands = [_believed(change) for change in changes]

    @property
    def partition(self) -> str:
        return self.changes[0].address.partition

    @property
    def addresses(self) -> list[Address]:
        return [change.address for change in self.changes]

    def keys(self) -> set[Key]:
        """Return the keys of the items that this commit writes or checks, but for the parts of bodies."""
        together = zip(self.changes, self.done(), strict=True)
        moved = {space for change, answer in together for space, _, _ in tag_deltas(change, answer)}
        counted = {address.space for address in self.addresses}
        if self.guard is not None:
            counted.add(self.guard.space)
        return {
            *map(record_key, self.addresses),
            *(count_key(space, self.partition) for space in counted),
            *(total_key(space, shard_of(self.partition)) for space in moved),
        }

    @property
    def does_away_with_parts(self) -> bool:
        """Whether a change ends a body in parts, of which only the table knows where they are."""
        return any(
            isinstance(change, (Replace, Delete)) and is_split(change.before.body) for change in self.changes
        )

    def learn(self, place: int, item: Item | None) -> None:
        """Take note of what stands where a change expected something else."""
        self._stands[place] = found_in(item)

    def stands(self, place: int) -> Found | None:
        return self._stands[place]

    def results(self) -> tuple[ChangeResult, ...]:
        return tuple(
            decide(change, None if stands is None else stands.state(self.now))
            for change, stands in zip(self.changes, self._stands, strict=True)
        )

    def done(self) -> tuple[Accepted | Kept, ...]:
        """The answers, of a commit that is not refused."""
        return accepted_results(self.results()) or ()

    def settled(self) -> Committed | Refused | None:
        """The result, where nothing need be written: a refusal, or that everything was kept."""
        answers = self.results()
        done = accepted_results(answers)
        if done is None:
            return Refused(answers)
        return Committed(done) if all(isinstance(answer, Kept) for answer in done) else None

    def grows(self, guard: Guard | None) -> int:
        """By how much this commit raises the count that a guard bounds."""
        return 0 if guard is None else guard_delta(guard, self.changes, self.done(), self.now)

    def write(self, transaction: Transaction) -> None:
        """Add to a transaction what this commit writes if what it believes is so."""
        together = zip(self.changes, self._stands, self.done(), strict=True)
        for place, (change, stands, answer) in enumerate(together):
            learn = partial(self.learn, place)
            match change:
                case Insert(record=record) | InsertIfAbsent(record=record):
                    if isinstance(answer, Kept) and stands is not None:
                        transaction.check(change.address, stands, self.now, learn)
                        continue
                    transaction.put(record, stands, self.now, learn)
                    if stands is not None:
                        transaction.forget_expired(change.address, stands.tag)
                case Replace(before=before, after=after):
                    transaction.put(after, stands, self.now, learn)
                    transaction.may_expire(before, self.now)
                case Delete(before=before):
                    transaction.delete(change.address, stands, self.now, learn)
                    transaction.may_expire(before, self.now)
            for space, tag, by in tag_deltas(change, answer):
                transaction.count(space, self.partition, tag, by)

    def left_behind(self) -> list[Key]:
        """The parts of bodies that nothing refers to once this is written."""
        return [
            key
            for stands, answer in zip(self._stands, self.done(), strict=True)
            if stands is not None and stands.body_id is not None and isinstance(answer, Accepted)
            for key in part_keys(stands.body_id, stands.body_parts)
        ]


def _believed(change: Change) -> Found | None:
    """What stands there if the writer is right; that it still lives is for the table to say."""
    if isinstance(change, (Insert, InsertIfAbsent)):
        return None
    before = change.before
    return Found(before.version, before.order, before.tag, expires_at=None)
