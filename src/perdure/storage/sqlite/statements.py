"""The SQL of this engine: one statement per file, named after the file."""

from __future__ import annotations

from importlib.resources import files

_PACKAGE = files(__package__ or "")


def statement(name: str) -> str:
    return (_PACKAGE / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def migrations() -> tuple[tuple[str, ...], ...]:
    """The statements that lead from schema version n to n + 1, for each n from 0."""
    scripts = sorted((each for each in (_PACKAGE / "migrations").iterdir()), key=lambda each: each.name)
    return tuple(_split(script.read_text(encoding="utf-8")) for script in scripts)


def _split(script: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in script.split(";\n") if part.strip())
