"""What is told of feeds: to programs as JSON, to people as lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec

from ...feeds import Link, PolledElsewhere, PollFailed, PollOutcome, PollSkipped, PollSucceeded
from ...operating.times import format_clock, iso
from ..output import one_line, print_json

_TIMES = {"added_at", "next_poll_at", "last_polled_at", "profile_read_at", "first_at", "last_at"} | {
    "failing_since",
    "deep_watermark",
    "unseen_since",
    "watermark",
    "floor",
    "late_floor",
    "until",
    "since",
    "history_start",
    "time",
    "now",
}
"""Fields that are times, and are told as such."""
_SPANS = {"poll_interval", "last_wait", "cadence"}


def tell_json(value: object) -> None:
    """One document, on one line."""
    print_json(plain(value))


def plain(value: object) -> object:
    """As JSON has it: times as ISO 8601, and every field, whether it is as usual or not."""
    match value:
        case Link():
            return {
                **{name: getattr(value, name) for name in value.__struct_fields__},
                "shared": value.address,
            }
        case msgspec.Struct():
            return plain({name: getattr(value, name) for name in value.__struct_fields__})
        case Mapping():
            fields = cast("Mapping[str, object]", value)
            return dict(_field(name, each) for name, each in fields.items())
        case list() | tuple():
            return [plain(each) for each in cast("Sequence[object]", value)]
        case _:
            return value


def _field(name: str, value: object) -> tuple[str, object]:
    if isinstance(value, int) and name in _TIMES:
        return name, iso(value)
    if isinstance(value, int) and name in _SPANS:
        return f"{name}_seconds", value / 1e6
    return name, plain(value)


# Polls


def event_of(outcome: PollOutcome) -> dict[str, object]:
    """A poll, for programs."""
    about = {"account": outcome.account.account_id, "handle": outcome.account.handle}
    match outcome:
        case PollSucceeded():
            return {
                "event": "initial" if outcome.was_initial else "poll",
                **about,
                "new_items": outcome.new_items,
                "new_links": outcome.new_links,
                "pages": outcome.pages,
                "invalid_records": outcome.invalid_records,
                "gaps": len(outcome.account.gaps),
                "next_poll_at": outcome.account.next_poll_at,
            }
        case PollSkipped():
            return {
                "event": "skip",
                **about,
                "reason": str(outcome.error),
                "next_poll_at": outcome.account.next_poll_at,
            }
        case PollFailed():
            return {"event": "error", **about, "reason": str(outcome.error)}
        case PolledElsewhere():
            return {
                "event": "elsewhere",
                **about,
                "reason": str(outcome.error),
                "until": outcome.error.retry_at,
            }


def lines_of(outcome: PollOutcome, *, always: bool = False) -> Iterator[str]:
    """A poll, for people. Of one that brought nothing there is nothing to say, unless always."""
    handle = one_line(outcome.account.handle)
    match outcome:
        case PollSucceeded():
            yield from _polled(outcome, handle, always=always)
        case PollSkipped():
            yield f"[SKIP] {handle}: Account unavailable ({one_line(str(outcome.error))})"
        case PollFailed():
            yield f"[ERROR] {handle}: {one_line(str(outcome.error))}"
        case PolledElsewhere():
            until = outcome.error.retry_at
            lease = "" if until is None else f", which has it until {format_clock(until)} unless it continues"
            yield f"[SKIP] {handle}: being polled by {one_line(outcome.error.poller)}{lease}"


def _polled(outcome: PollSucceeded, handle: str, *, always: bool) -> Iterator[str]:
    is_first = outcome.was_initial and (outcome.new_items > 0 or outcome.account.poll_count <= 1)
    if outcome.is_high_volume:
        yield f"[POLL] {handle}: High volume, {outcome.pages} pages were fetched"
    if outcome.new_items or is_first or always:
        label = "[INITIAL]" if outcome.was_initial else "[POLL]"
        counts = f"{outcome.new_items} posts, {outcome.new_links} URLs across {outcome.pages} pages"
        yield f"{label} {handle}: {counts}"
    if outcome.invalid_records:
        yield f"[POLL] {handle}: {outcome.invalid_records} records could not be read, and were set aside"
