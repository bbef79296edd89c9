"""What is told on standard output: to programs as JSON, to people as lines, in which what others wrote is
harmless.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import msgspec
import typer


def harmless(text: str) -> str:
    """On one line, and without anything that a terminal would obey."""
    flat = " ".join(text.split())
    return "".join(letter for letter in flat if letter.isprintable())


def obeyed_by_none(text: str) -> str:
    """The same lines, without anything else that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(letter for letter in text if letter.isprintable() or letter == "\n")


def shortened(text: str, most: int) -> str:
    flat = harmless(text)
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def escaped(document: str) -> str:
    """The same JSON, in which whatever a terminal might obey is spelled out."""
    if document.isprintable():
        return document
    return "".join(
        letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1] for letter in document
    )


def tell(text: str) -> None:
    """Print a result, on standard output. Everything else is said on standard error: see `saying.say`."""
    typer.echo(obeyed_by_none(text))


def tell_document(value: object) -> None:
    """One JSON document, on one line."""
    typer.echo(escaped(msgspec.json.encode(value).decode()))


def counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}".replace(",", " ")


def table(*rows: tuple[str, str]) -> Iterator[str]:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        yield f"{name:<{width}}  {value}"


def bear_any_letter() -> None:
    """What others wrote may hold any letter, and a terminal not show it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
