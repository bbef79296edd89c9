"""The SQL of this engine: one statement per file, named after the file."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

_PACKAGE = files(__package__ or "")


@cache
def statement(name: str, schema: str) -> str:
    """A statement on the tables of a schema, whose name has been quoted."""
    return (_PACKAGE / "sql" / f"{name}.sql").read_text(encoding="utf-8").replace("{schema}", schema)


def bounded(listing: str, most: int) -> str:
    """Return the statement of a listing that ends with the record whose body brings it to so many bytes.

    The length of a body is known without reading the body.
    """
    sums = "sum(octet_length(body)) OVER (ROWS UNBOUNDED PRECEDING) AS bytes"
    page = f"SELECT *, {sums} FROM ({listing}) AS listed"  # noqa: S608 - `listing` is a statement of ours
    return f"SELECT * FROM ({page}) AS page WHERE bytes - octet_length(body) < {most:d}"  # noqa: S608


def addresses_only(listing: str) -> str:
    """Return the statement of a listing with the addresses in the place of the records."""
    _, rest = listing.split("\n", 1)
    return f"SELECT space, partition, key\n{rest}"


def migrations() -> tuple[str, ...]:
    """The scripts that lead from schema version n to n + 1, for each n from 0."""
    scripts = sorted((_PACKAGE / "migrations").iterdir(), key=lambda each: each.name)
    return tuple(script.read_text(encoding="utf-8") for script in scripts)
