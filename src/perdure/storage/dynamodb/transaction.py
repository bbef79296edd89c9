"""Transactions, which several commits can share, and pending commits, which have not been written yet.

A transaction adds up the changes to each counter, so that it writes each counter only once. If the condition
on an item fails, a callback receives the stored item.

At first, a pending commit makes the same assumptions as its caller: that no record is stored at the address
of a new record, and that an existing record has not changed since the caller read it. If both are true,
DynamoDB accepts the commit in one request. Otherwise DynamoDB returns the stored items. The commit is then
compared with these items, and is either refused or tried again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias
from uuid import uuid4

from ..errors import OutcomeUnknown
from ..records_and_changes import (
    Accepted,
    Address,
    Change,
    ChangeResult,
    Committed,
    Guard,
    Kept,
    Micros,
    Record,
    Refused,
    Space,
    Tag,
    accepted_results,
    decide,
    guard_delta,
    record_after,
    record_before,
    tag_deltas,
)
from ..shards import shard_of
from .counters import StoredCounter, counter_update, with_condition
from .errors import CONDITION_FAILED, NO_REASON, CancellationReason
from .items import (
    ORDER_NAME,
    ExpiredRecord,
    Item,
    Key,
    SpacePartition,
    StoredState,
    count_key,
    decode_state,
    encode_body_part,
    encode_record,
    item_key,
    needs_split,
    owner_of,
    part_keys,
    record_key,
    split_body,
    total_key,
)
from .table_client import RETURN_EXISTING_ITEM, ConditionFailed, Parameters, Table, Write

OnConditionFailed: TypeAlias = Callable[[Item | None], None]
"""A callback for a failed condition. Its argument is the stored item, or None if no item is stored."""

_NOT_EXPIRED = "(attribute_not_exists(expires_at) OR expires_at > :now)"
CLOCK_SKEW_MARGIN: Micros = 60_000_000
"""Maximum number of microseconds by which another client's clock may be ahead of the clock of this client."""


class Transaction:
    """A set of writes that DynamoDB applies together or not at all."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._writes: list[Write] = []
        self._failure_callbacks: list[OnConditionFailed | None] = []
        self._deltas: defaultdict[SpacePartition, Counter[Tag]] = defaultdict(Counter)
        self._expiries: set[SpacePartition] = set()
        self._counter_conditions: dict[SpacePartition, tuple[dict[str, Any], OnConditionFailed | None]] = {}

    def put(self, record: Record, condition: Parameters, on_failure: OnConditionFailed) -> None:
        body = self._put_parts(record) if needs_split(record.body) else {"body": {"S": record.body}}
        self._add("Put", {"Item": encode_record(record, body), **condition}, on_failure)

    def purge(self, expired: ExpiredRecord, until: Micros, on_failure: OnConditionFailed) -> None:
        """Add the deletion of a record that expired at or before `until`, and the update of the counters."""
        values = {":until": {"N": str(until)}, ":tag": {"S": expired.tag}}
        expression = f"expires_at <= :until AND tag = :tag AND {_body_condition(expired.body_id, values)}"
        condition = {"ConditionExpression": expression, "ExpressionAttributeValues": values}
        self.delete(expired.address, condition, on_failure)
        self.uncount_expired(expired.address, expired.tag)

    def delete(self, address: Address, condition: Parameters, on_failure: OnConditionFailed) -> None:
        self._add("Delete", {"Key": record_key(address).item, **condition}, on_failure)

    def check(self, address: Address, condition: Parameters, on_failure: OnConditionFailed) -> None:
        """Let the transaction succeed only if a record meets `condition`. Do not write the record."""
        self._add("ConditionCheck", {"Key": record_key(address).item, **condition}, on_failure)

    def add_count(self, space: Space, partition: str, tag: Tag, delta: int) -> None:
        self._deltas[space, partition][tag] += delta

    def uncount_expired(self, address: Address, tag: Tag) -> None:
        """Subtract an expired record, which this transaction deletes or overwrites, from the counters."""
        self.add_count(address.space, address.partition, tag, -1)
        self._expiries.add((address.space, address.partition))

    def note_near_expiry(self, record: Record, now: Micros) -> None:
        """Increase the counter's `expiries` by 1 if `record` may have expired by the clock of another client.

        Without the increase, that client could subtract the record from counts that no longer include it.
        """
        if record.expires_at is not None and record.expires_at <= now + CLOCK_SKEW_MARGIN:
            self._expiries.add((record.space, record.partition))

    def require_counter(
        self,
        space: Space,
        partition: str,
        condition: dict[str, Any],
        on_failure: OnConditionFailed | None = None,
    ) -> None:
        """Let the transaction succeed only if the counter of the space and partition meets `condition`."""
        self._counter_conditions[space, partition] = condition, on_failure

    async def commit(self, *, is_shared: bool = False) -> bool:
        """Write all items and return True. If a condition fails, call the callbacks and return False.

        For `is_shared`, see `Table.transact`.
        """
        self._add_counters()
        try:
            await self._table.transact(self._writes, is_shared=is_shared)
        except ConditionFailed as refused:
            if refused.maybe_applied:
                # DynamoDB may have forgotten the token, so an earlier attempt may have stored the items.
                name = self._table.location.display_name
                reason = "a write got no response and may have been applied; read before you write again"
                raise OutcomeUnknown(f"{name}: {reason}") from refused
            await self._report_failures(refused.reasons)
            return False
        return True

    def named_by(self, reasons: Sequence[CancellationReason]) -> set[Key]:
        """Return the keys of the items that caused the cancellation of this transaction.

        For a part of a body, return the key of the record to which the body belongs.
        """
        return {
            owner_of(_key_or_item(write))
            for write, reason in zip(self._writes, reasons, strict=False)
            if reason.get("Code", NO_REASON) != NO_REASON
        }

    async def _report_failures(self, reasons: Sequence[CancellationReason]) -> None:
        """Call the callback of each write whose condition failed, with the stored item.

        Also call the callback of each write whose item had a conflict. For such a write, DynamoDB has not
        checked the condition and has returned no item, so the item is read first.
        """
        unchecked: dict[Key, OnConditionFailed] = {}
        for write, on_failure, reason in zip(self._writes, self._failure_callbacks, reasons, strict=True):
            code = reason.get("Code", NO_REASON)
            if on_failure is None or code == NO_REASON:
                continue
            if code == CONDITION_FAILED:
                on_failure(reason.get("Item"))
            else:
                unchecked[item_key(_key_or_item(write))] = on_failure
        found = await self._table.get(unchecked)
        for key, on_failure in unchecked.items():
            on_failure(found.get(key))

    def _put_parts(self, record: Record) -> Mapping[str, Mapping[str, str]]:
        """Add writes for the parts of a large body. Return the record attributes that refer to the parts."""
        body_id, texts = uuid4().hex, split_body(record.body)
        for key, text in zip(part_keys(body_id, len(texts)), texts, strict=True):
            self._add("Put", {"Item": encode_body_part(key, text, record)}, None)
        return {"body_id": {"S": body_id}, "body_parts": {"N": str(len(texts))}}

    def _add(self, action: str, parameters: Parameters, on_failure: OnConditionFailed | None) -> None:
        returned: Parameters = {} if on_failure is None else RETURN_EXISTING_ITEM
        self._writes.append((action, {**parameters, **returned}))
        self._failure_callbacks.append(on_failure)

    # Counters

    def _add_counters(self) -> None:
        totals: defaultdict[Key, Counter[Tag]] = defaultdict(Counter)
        for scope in {**self._deltas, **self._counter_conditions, **dict.fromkeys(self._expiries)}:
            deltas = {tag: delta for tag, delta in self._deltas[scope].items() if delta}
            self._add_counter(scope, deltas)
            totals[total_key(scope[0], shard_of(scope[1]))].update(deltas)
        for key, deltas in totals.items():
            if deltas:  # even if their sum is 0, because the revision must increase when a counter changes
                self._add("Update", {"Key": key.item, **counter_update(deltas)}, None)

    def _add_counter(self, scope: SpacePartition, deltas: Mapping[Tag, int]) -> None:
        key = count_key(*scope).item
        condition, on_failure = self._counter_conditions.get(scope, ({}, None))
        if deltas or scope in self._expiries:
            what = with_condition(counter_update(deltas, expiry=scope in self._expiries), condition)
            self._add("Update", {"Key": key, **what}, on_failure)
        elif condition:
            self._add("ConditionCheck", {"Key": key, **condition}, on_failure)


def _key_or_item(write: Write) -> Item:
    _, parameters = write
    return parameters.get("Key") or parameters["Item"]


def record_condition(stored: StoredState | None, now: Micros) -> dict[str, Any]:
    """Return a condition that requires the record to match `stored`, or to be absent if `stored` is None.

    A matching record must also be live if `stored` is live at `now`, and expired if `stored` has expired.
    """
    if stored is None:
        return {"ConditionExpression": "attribute_not_exists(pk)"}
    values = {
        ":version": {"N": str(stored.version)},
        ":order": {"N": str(stored.order)},
        ":tag": {"S": stored.tag},
        ":now": {"N": str(now)},
    }
    expression = [
        "version = :version AND #order = :order AND tag = :tag",
        _NOT_EXPIRED if stored.is_live(now) else "expires_at <= :now",
        _body_condition(stored.body_id, values),
    ]
    return {
        "ConditionExpression": " AND ".join(expression),
        "ExpressionAttributeNames": ORDER_NAME,
        "ExpressionAttributeValues": values,
    }


def _body_condition(body_id: str | None, values: dict[str, dict[str, str]]) -> str:
    """Return a condition that requires the record to refer to `body_id`, and add `body_id` to `values`.

    If `body_id` is None, the condition requires that the record has no split body.
    """
    if body_id is None:
        return "attribute_not_exists(body_id)"
    values[":body_id"] = {"S": body_id}
    return "body_id = :body_id"


class PendingCommit:
    """A commit that has been neither written nor refused yet."""

    def __init__(self, changes: Sequence[Change], guard: Guard | None, now: Micros) -> None:
        self.changes = changes
        self.guard = guard
        self.now = now
        self.attempts = 0
        self.contended = 0
        """Number of times that a transaction with this commit was cancelled because each of its commits had a
        conflict.
        """
        self.refusing_counter: StoredCounter | None = None
        """The stored counter that did not meet the condition of the guard, or None if no condition failed."""
        self.stored = [_expected_state(change) for change in changes]
        """For each change, the state of its record: at first the expected state, later the stored state."""

    @property
    def partition(self) -> str:
        return self.changes[0].address.partition

    @property
    def addresses(self) -> list[Address]:
        return [change.address for change in self.changes]

    def keys(self) -> set[Key]:
        """Return the keys of the items that this commit writes or checks, except body parts."""
        accepted = zip(self.changes, self.accepted_results(), strict=True)
        changed = {space for change, result in accepted for space, _, _ in tag_deltas(change, result)}
        counted = {address.space for address in self.addresses}
        if self.guard is not None:
            counted.add(self.guard.space)
        return {
            *map(record_key, self.addresses),
            *(count_key(space, self.partition) for space in counted),
            *(total_key(space, shard_of(self.partition)) for space in changed),
        }

    @property
    def removes_split_body(self) -> bool:
        """Whether a change replaces or deletes a split body, whose parts must then be deleted."""
        befores = map(record_before, self.changes)
        return any(before is not None and needs_split(before.body) for before in befores)

    def set_stored(self, index: int, item: Item | None) -> None:
        self.stored[index] = decode_state(item)

    def results(self) -> tuple[ChangeResult, ...]:
        return tuple(
            decide(change, None if stored is None else stored.state(self.now))
            for change, stored in zip(self.changes, self.stored, strict=True)
        )

    def accepted_results(self) -> tuple[Accepted | Kept, ...]:
        """Return the results of all changes, or an empty tuple if a change is refused."""
        return accepted_results(self.results()) or ()

    def result_without_write(self) -> Committed | Refused | None:
        """Return the result of the commit if nothing must be written, otherwise None.

        Nothing must be written if a change is refused, or if all changes keep existing records.
        """
        results = self.results()
        kept = accepted_results(results)
        if kept is None:
            return Refused(results)
        return Committed(kept) if all(isinstance(result, Kept) for result in kept) else None

    def guard_delta(self, guard: Guard | None) -> int:
        """Return the number by which this commit increases the count that `guard` limits."""
        return 0 if guard is None else guard_delta(guard, self.changes, self.accepted_results(), self.now)

    def add_to(self, transaction: Transaction) -> None:
        """Add this commit's writes to `transaction`, with conditions that require the state in `stored`."""
        accepted = zip(self.changes, self.stored, self.accepted_results(), strict=True)
        for index, (change, stored, result) in enumerate(accepted):
            on_failure = partial(self.set_stored, index)
            condition = record_condition(stored, self.now)
            if isinstance(result, Kept):
                transaction.check(change.address, condition, on_failure)
                continue
            before, after = record_before(change), record_after(change)
            if after is None:
                transaction.delete(change.address, condition, on_failure)
            else:
                transaction.put(after, condition, on_failure)
                transaction.note_near_expiry(after, self.now)
            if before is not None:
                transaction.note_near_expiry(before, self.now)
            elif stored is not None:
                transaction.uncount_expired(change.address, stored.tag)
            for space, tag, delta in tag_deltas(change, result):
                transaction.add_count(space, self.partition, tag, delta)

    def obsolete_parts(self) -> list[Key]:
        """Return the keys of the body parts that no record refers to after this commit has been written."""
        return [
            key
            for stored, result in zip(self.stored, self.accepted_results(), strict=True)
            if stored is not None and isinstance(result, Accepted)
            for key in part_keys(stored.body_id, stored.body_parts)
        ]


def _expected_state(change: Change) -> StoredState | None:
    """Return the state that the stored record must have for `change` to be accepted, or None for an insert.

    The state has no expiry time, because DynamoDB itself checks whether the stored record has expired.
    """
    before = record_before(change)
    if before is None:
        return None
    return StoredState(before.version, before.order, before.tag, expires_at=None)
