"""What must be true after the faults, whatever happened. Each check yields every violation that it finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias

from perdure.storage import Accepted, Address, Change, Committed, Delete, Record, Replace
from perdure.storage.kit.linearizability import is_linearizable

from .clients import BOUND, QUOTA, after
from .histories import body_of, histories, lines, witnesses
from .journal import Commit, Lost
from .scenario import MAX_DUE, Evidence


class SortedEvidence:
    """The evidence, sorted."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.journal = evidence.journal
        self.records = evidence.records
        self.histories = histories(evidence.journal, evidence.records)

    def written(self) -> Iterator[Record]:
        """By commits that were acknowledged."""
        for commit in self.journal.commits:
            if isinstance(commit.result, Committed):
                for change, answer in zip(commit.changes, commit.result.results, strict=True):
                    record = after(change)
                    if record is not None and isinstance(answer, Accepted):
                        yield record

    def refused(self) -> Iterator[tuple[Commit, Record]]:
        for commit in self.journal.commits:
            if not isinstance(commit.result, Committed) and commit.result is not Lost.UNKNOWN:
                for record in map(after, commit.changes):
                    if record is not None:
                        yield commit, record

    def perhaps_written(self) -> Iterator[Change]:
        for commit in self.journal.commits:
            if isinstance(commit.result, Committed) or commit.result is Lost.UNKNOWN:
                yield from commit.changes

    def seen(self) -> Iterator[Record]:
        """Every record that any client ever read."""
        for got in self.journal.got:
            if got.record is not None:
                yield got.record
        yield from self.records.values()


Check: TypeAlias = Callable[[SortedEvidence], Iterator[str]]


def every_history_is_linearizable(case: SortedEvidence) -> Iterator[str]:
    for address, history in case.histories.items():
        if not is_linearizable(history):
            yield f"no order of these operations on {address} explains their answers:\n{lines(history)}"


def every_acknowledged_write_is_there(case: SortedEvidence) -> Iterator[str]:
    """Unless a client replaced or deleted it, or may have."""
    gone: set[tuple[Address, int]] = set()
    for change in case.perhaps_written():
        if isinstance(change, (Replace, Delete)):
            gone.add((change.address, change.before.version))
    for record in case.written():
        if case.records.get(record.address) != record and (record.address, record.version) not in gone:
            stored = case.records.get(record.address)
            found = describe(stored) if stored else "nothing"
            yield f"{describe(record)} was acknowledged, and {found} is stored"


def what_was_refused_was_not_written(case: SortedEvidence) -> Iterator[str]:
    """No client ever read a record whose commit was refused, by the server or by the engine."""
    refused = {body_of(record): commit for commit, record in case.refused()}
    for record in {*case.seen()}:
        if (commit := refused.get(body_of(record))) is not None:
            yield f"{describe(record)} was read, but the result of its commit was {commit.result}"


def what_is_read_was_once_written(case: SortedEvidence) -> Iterator[str]:
    """To the byte, and with the version that its writer gave it."""
    asked = {record for commit in case.journal.commits for record in map(after, commit.changes)}
    for record in {*case.seen()}:
        if record not in asked:
            yield f"no client wrote {describe(record)}"


def commits_are_all_or_nothing(case: SortedEvidence) -> Iterator[str]:
    """By the first and the last change. What lies between is in the histories."""
    for commit in case.journal.commits:
        there = [address in case.records for address in witnesses(commit)]
        if any(there) and not all(there):
            yield f"of the witnesses {witnesses(commit)} there are {there}"
        if isinstance(commit.result, Committed) and not all(there):
            yield f"of {witnesses(commit)}, which were acknowledged, there are {there}"


def the_guard_is_never_passed(case: SortedEvidence) -> Iterator[str]:
    for counted in case.journal.counted:
        if counted.number > BOUND:
            yield f"{counted}, where {BOUND} are allowed"
    for (space, partition), listing in case.evidence.partitions.items():
        if space == QUOTA and len(listing.records) > BOUND:
            yield f"{partition} holds {len(listing.records)}, where {BOUND} are allowed"


def counts_are_what_is_listed(case: SortedEvidence) -> Iterator[str]:
    listings = {**case.evidence.spaces, **case.evidence.partitions}
    for place, listing in listings.items():
        listed = dict(Counter(record.tag for record in listing.records))
        if dict(listing.counts) != listed:
            yield f"{place}: counted {dict(listing.counts)}, listed {listed}"


def listings_are_what_is_read(case: SortedEvidence) -> Iterator[str]:
    """By address, by partition, and over all partitions."""
    read = Counter(case.records.values())
    for listings in (case.evidence.spaces, case.evidence.partitions):
        listed = Counter(record for listing in listings.values() for record in listing.records)
        for record in read - listed:
            yield f"{describe(record)} is there, but not listed"
        for record in listed - read:
            yield f"{describe(record)} is listed, but not there, or listed twice"


def the_lane_holds_what_is_to_be_woken(case: SortedEvidence) -> Iterator[str]:
    """The earliest of it, where that is more than one call answers."""
    waiting = [record for record in case.records.values() if record.lane is not None]
    waiting.sort(key=lambda record: (record.wake_at, record.key, record.partition, record.space))
    due = case.evidence.due
    if waiting[:MAX_DUE] != due:
        yield f"{len(waiting)} wait, and {len(due)} are due, or in another order"


def the_storage_finds_nothing_wrong(case: SortedEvidence) -> Iterator[str]:
    yield from case.evidence.findings


def no_call_failed(case: SortedEvidence) -> Iterator[str]:
    """No call hangs or raises what it may not, and every client works again."""
    yield from case.journal.complaints


CHECKS: tuple[Check, ...] = (
    every_history_is_linearizable,
    every_acknowledged_write_is_there,
    what_was_refused_was_not_written,
    what_is_read_was_once_written,
    commits_are_all_or_nothing,
    the_guard_is_never_passed,
    counts_are_what_is_listed,
    listings_are_what_is_read,
    the_lane_holds_what_is_to_be_woken,
    the_storage_finds_nothing_wrong,
    no_call_failed,
)


def find_violations(case: SortedEvidence) -> dict[str, list[str]]:
    """Return the violations by the name of the check. Checks without violations are left out."""
    found = {check.__name__.replace("_", " "): list(check(case)) for check in CHECKS}
    return {name: each for name, each in found.items() if each}


def describe(record: Record) -> str:
    return f"{'/'.join(record.address)} in version {record.version}, {body_of(record)},"
