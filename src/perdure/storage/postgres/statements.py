"""The SQL of this engine: one statement per file, named after the file."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

_PACKAGE = files(__package__ or "")


@cache
def statement(name: str, schema: str) -> str:
    """A statement on the tables of a schema, whose name has been quoted."""
    return (_PACKAGE / "sql" / f"{name}.sql").read_text(encoding="utf-8").replace("{schema}", schema)


def addresses_only(listing: str) -> str:
    """Return the statement of a listing with the addresses in the place of the records."""
    _, rest = listing.split("\n", 1)
    return f"SELECT space, partition, key\n{rest}"


def migrations() -> tuple[str, ...]:
    """The scripts that lead from schema version n to n + 1, for each n from 0."""
    scripts = sorted((_PACKAGE / "migrations").iterdir(), key=lambda each: each.name)
    return tuple(script.read_text(encoding="utf-8") for script in scripts)
