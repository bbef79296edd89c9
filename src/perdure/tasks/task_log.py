"""The log and the progress reports of a task: lists of limited size that keep only the newest entries.

Both lists are stored as JSON, and later versions of perdure may add fields to their entries. They are only
for display, so a list that cannot be decoded is treated as empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast, get_args

import msgspec
from msgspec import Raw, UnsetType

from ..storage.time_types import Timestamp
from . import canonical_json
from .canonical_json import Json, JsonLike, check_name
from .errors import InvalidValue
from .secret_contents import SecretContents

MAX_LOG_ENTRIES = 200
MAX_REPORTS_KEPT = 8
MAX_REPORTS_BYTES = 4096
"""Maximum total size of the stored progress reports. They count toward the size of the task."""

LogLevel: TypeAlias = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""The log levels of MCP, from least to most severe."""

T = TypeVar("T")


class LogEntry(SecretContents, frozen=True, kw_only=True, omit_defaults=True):
    """An entry in the log of a task. The function `log_entry` creates one."""

    shown_in_repr = ("at", "level")

    at: Timestamp
    level: LogLevel
    message: Any
    """The logged value: usually a string, but any JSON value is allowed."""
    logger: str | None = None

    @property
    def text(self) -> str:
        """The message as a string. A message that is not a string is encoded as JSON."""
        if isinstance(self.message, str):
            return self.message
        return canonical_json.encode(self.message).decode()


class Report(SecretContents, frozen=True, kw_only=True, omit_defaults=True):
    """One progress report of a task."""

    shown_in_repr = ("done", "total")

    done: int | float
    total: int | float | None = None
    message: str | None = None


class NewestEntries(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """The newest entries of a list, and the number of older entries that were removed."""

    removed: int = 0
    entries: tuple[T, ...] = ()

    @property
    def total(self) -> int:
        """Number of entries that were ever added, including removed ones."""
        return self.removed + len(self.entries)

    def after(self, count: int) -> tuple[T, ...]:
        """Return the stored entries that were added after the first `count` entries."""
        return self.entries[max(0, count - self.removed) :]


def log_entry(
    at: Timestamp, level: LogLevel, message: JsonLike, logger: str | None, *, max_length: int
) -> LogEntry:
    """Return a log entry. A message of more than `max_length` characters is truncated.

    A value that cannot be encoded as JSON is converted to a string. Raise InvalidValue if the level or the
    name of the logger is invalid.
    """
    if level not in LOG_LEVELS:
        raise InvalidValue("level", f"must be one of {', '.join(LOG_LEVELS)}, not {level!r:.40}")
    if logger is not None:
        check_name("logger", logger, max_length)
    return LogEntry(at=at, level=level, message=_storable(message, max_length), logger=logger)


def _storable(message: JsonLike, max_length: int) -> Json:
    if isinstance(message, str):
        return _cut(message, max_length)
    try:
        encoded = canonical_json.encode_checked("message", message)
    except InvalidValue:
        return _cut(str(message), max_length)
    if len(memoryview(encoded)) > max_length:
        return _cut(bytes(encoded).decode(), max_length)
    return canonical_json.decode(encoded)


def _cut(text: str, max_length: int) -> str:
    cut = text if len(text) <= max_length else f"{text[: max_length - 1]}…"
    return cut if cut.isascii() else cut.encode(errors="replace").decode()


_log_decoder = msgspec.json.Decoder(NewestEntries[LogEntry])
_reports_decoder = msgspec.json.Decoder(NewestEntries[Report])
_entries_decoder = msgspec.json.Decoder(NewestEntries[dict[str, Any]])


def decode_log(raw: Raw | UnsetType) -> NewestEntries[LogEntry]:
    return _decode(raw, _log_decoder)


def decode_reports(raw: Raw | UnsetType) -> NewestEntries[Report]:
    return _decode(raw, _reports_decoder)


def append(
    raw: Raw | UnsetType,
    new: Sequence[msgspec.Struct],
    *,
    skipped: int = 0,
    max_entries: int,
    max_bytes: int,
) -> Raw | UnsetType:
    """Return the list with the `new` entries appended. If it exceeds a limit, remove its oldest entries.

    A log entry that is already in the list is not added again: a previous write may have succeeded although
    its response was lost. `skipped` is the number of entries that the caller left out; they count as removed.
    """
    stored = _decode(raw, _entries_decoder)
    times = {entry.get("at") for entry in stored.entries} - {None}
    added = [
        entry
        for entry in cast("list[dict[str, Any]]", msgspec.to_builtins(new))
        if entry.get("at") not in times or entry not in stored.entries
    ]
    if not added:
        return raw
    entries = [*stored.entries, *added][-max_entries:]
    sizes = [len(canonical_json.encode(entry)) + 1 for entry in entries]
    while entries and sum(sizes) > max_bytes:
        del entries[0], sizes[0]
    removed = stored.total + skipped + len(added) - len(entries)
    return Raw(canonical_json.encode({"removed": removed, "entries": entries}))


def _decode(raw: Raw | UnsetType, decoder: msgspec.json.Decoder[NewestEntries[T]]) -> NewestEntries[T]:
    try:
        return NewestEntries() if isinstance(raw, UnsetType) else decoder.decode(raw)
    except msgspec.MsgspecError:
        return NewestEntries()
