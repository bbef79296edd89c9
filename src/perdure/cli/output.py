"""Prints results to standard output, as text or JSON, and messages and logs to standard error.

Control characters are removed or escaped, because untrusted text could use them to control the terminal.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from textwrap import wrap
from typing import Any, cast, get_args

import msgspec
import typer
from rich.console import Console
from rich.logging import RichHandler

from ..operating import TaskDetail, TaskSummary, Throughput, outcome_json
from ..operating.times import iso
from ..tasks import Status

MIN_WRAP_WIDTH = 20
"""Minimum width to which values are wrapped, in characters, even if the terminal is narrower."""

_NAMES = {
    Status.WORKING: "working (queued, running or waiting to retry)",
    Status.INPUT_REQUIRED: "input required",
}

stdout = Console(highlight=False, emoji=False)
stderr = Console(stderr=True, highlight=False, emoji=False)


def print_result(text: str) -> None:
    """Print text to standard output, without control characters except newlines."""
    typer.echo(strip_control(text))


def print_message(text: str) -> None:
    """Print a message to standard error, without control characters except newlines."""
    stderr.print(strip_control(text), soft_wrap=True, markup=False)


def one_line(text: str) -> str:
    """Join the lines of `text` with spaces, and remove control characters."""
    return "".join(filter(str.isprintable, " ".join(text.split())))


def strip_control(text: str) -> str:
    """Remove control characters except newlines."""
    return "".join(character for character in text if character.isprintable() or character == "\n")


def truncate(text: str, length: int) -> str:
    flat = one_line(text)
    return flat if len(flat) <= length else f"{flat[: length - 1]}…"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun, such as `1 task` or `12 000 tasks`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}".replace(",", " ")


def describe_counts(counts: Mapping[Status, int]) -> str:
    """Return a text with the number of tasks with each status."""
    return ", ".join(f"{count} {_NAMES.get(status, status.value)}" for status, count in counts.items())


def key_values(*rows: tuple[str, str]) -> Iterator[str]:
    """Yield a line for each name and its value. The values are aligned in a column.

    In a terminal, long values are wrapped within that column.
    """
    indent = max(len(name) for name, _ in rows) + 2
    for name, value in rows:
        first, *others = _wrap(value, stdout.width - indent) if stdout.is_interactive else [value]
        yield f"{name:<{indent}}{first}"
        for line in others:
            yield f"{'':<{indent}}{line}"


def _wrap(text: str, width: int) -> list[str]:
    return wrap(text, max(width, MIN_WRAP_WIDTH), break_long_words=False, break_on_hyphens=False) or [""]


def print_json(value: object) -> None:
    """Print a value as JSON on one line."""
    typer.echo(escape_control(msgspec.json.encode(to_json(value)).decode()))


def to_json(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Convert records to dictionaries, times to ISO 8601 strings and intervals to seconds.

    Times have the type `Timestamp`, and intervals have the type `Interval`. `Locator` fields are omitted.
    """
    match value:
        case TaskSummary():
            return {**_fields(value), "state": value.display_status}
        case TaskDetail():
            fields = _fields(value)
            return {**fields.pop("summary"), **fields, "outcome": outcome_json(value.outcome)}
        case Throughput():
            return {**_fields(value), "finished": value.finished, "per_minute": value.per_minute}
        case msgspec.Struct():
            return _fields(value)
        case Mapping():
            return {key: to_json(each) for key, each in cast("Mapping[Any, object]", value).items()}
        case list() | tuple():
            return [to_json(each) for each in cast("Sequence[object]", value)]
        case _:
            return value


def _fields(record: msgspec.Struct) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, encoded_name, unit in _declared_fields(type(record)):
        value = getattr(record, name)
        if unit == "time":
            found[encoded_name] = None if value is None else iso(value)
        elif unit == "interval":
            found[f"{encoded_name}_seconds"] = None if value is None else value / 1e6
        elif unit != "omit":
            found[encoded_name] = to_json(value)
    return found


@cache
def _declared_fields(record: type[msgspec.Struct]) -> list[tuple[str, str, str | None]]:
    return [(each.name, each.encode_name, _unit(each.type)) for each in msgspec.structs.fields(record)]


def _unit(declared: object) -> str | None:
    """Return how to convert a field of this type: `time`, `interval`, `omit`, or None for no conversion."""
    if isinstance(declared, msgspec.Meta):
        return (declared.extra or {}).get("json")
    return next((unit for each in get_args(declared) if (unit := _unit(each))), None)


def escape_control(document: str) -> str:
    """Replace control characters in a JSON document with escape sequences."""
    if document.isprintable():
        return document
    return "".join(
        character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1]
        for character in document
    )


class SanitizingFormatter(logging.Formatter):
    """A log formatter that removes control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return strip_control(super().format(record))


def configure_logging(*, verbose: bool = False) -> None:
    """Log to standard error: in colour on a terminal, otherwise as lines with time and level."""
    colour = stderr.is_terminal
    handler = RichHandler(console=stderr, show_path=False) if colour else logging.StreamHandler()
    layout = "%(message)s" if colour else "%(asctime)s %(levelname)s %(message)s"
    handler.setFormatter(SanitizingFormatter(layout))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("perdure").setLevel(logging.DEBUG if verbose else logging.INFO)
