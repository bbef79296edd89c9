"""Sources and documentation use plain words: some are refused in names, comments, docstrings and messages.

The list has only words that no sentence about this code needs, because the trade or the Python documentation
has a better one. A word with a legitimate use does not belong here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "perdure"
FOLDERS = ("src", "tests", "tools", "examples", "benchmarks")
FILES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Dockerfile", "compose.yaml")

NOT_YET = (
    "tests/runtime",
    "tests/mcp",
    "tests/fastmcp",
)
"""Files and packages that will be rewritten. The change that rewrites one removes it from this list."""

SUFFIXES = (".py", ".pyi", ".html", ".sql", ".lua", ".js", ".css")

BETTER = {
    "told|tells?": "show, print, report, return, log, notify",
    "most_": "MAX_",
    "(?:fewest|least)_": "MIN_",
    "for ever": "forever",
    "of late": "recently",
    "by now": "currently, already",
    "stood": "existed, was stored",
    "born|births?": "created, insertion",
    "under ?way": "running, active",
    "in work": "running",
    "begun": "started",
    "who(?:ever|mever|soever)": "the caller, a client that ...",
    "(?:some|every|no|any)body": "a client, all clients, no client",
    "patience": "timeout, limit, grace period",
    "sets? aside|setting aside": "quarantine, skip",
    "g(?:ive|ives|iven|ave|iving) back": "release, return",
    "t(?:ake|akes|aken|ook|aking) away": "delete, remove",
    "(?:go|goes|went|going) on": "continue, resume",
    "pass(?:es|ed|ing)? over": "skip, ignore",
    "beyond all calendars": "never",
    "heard of": "alive",
    "worn out": "expired",
    "sweep(?:s|er|ers|ing)?": "purge",
    "of no kind": "invalid",
    "nowhere": "not anywhere",
    "robbed|robbers?": "lost its lease, its work was claimed by another worker",
    "doubts": "retries, delays",
    "leash": "supervisor",
    "crew": "workers",
    "blows?|storms?": "fault, disturbance, scenario",
    "heeds?": "respect, obey",
    "outruns?": "serialization failure",
}
"""Patterns, and better words. A pattern that ends in `_` is for names only."""

ALLOWED: dict[str, tuple[str, ...]] = {
    "src/perdure/storage/kit/servers/": ("nobody",),  # the user of that name
    "src/perdure/storage/postgres/migrations/": ("patience", "stood"),
    "src/perdure/storage/postgres/sql/commit.sql": ("patience", "stood"),
    "src/perdure/tasks/attempt_history.py": ("begun",),
    "tests/tasks/test_attempt_history.py": ("begun",),
    "tests/cli/test_tasks_commands.py": ("begun",),
    "tools/calls.py": ("most",),  # `Counter.most_common`
    "CHANGELOG.md": ("sweep",),  # `TaskStore.sweep`, as it was called
}
"""Words in names that are stored, sent or gone, by path. Stored names stay until the format changes."""

NOUNS = {"link_ranking", "listing", "operating", "testing"}
"""Modules may have these names, although they end in -ing."""


@cache
def sources() -> list[Path]:
    """Return every source but this file, which has to quote the words."""
    excluded = [ROOT / name for name in NOT_YET]
    return [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in SUFFIXES
        and path != Path(__file__)
        and "node_modules" not in path.parts
        and not any(path.is_relative_to(each) for each in excluded)
    ]


def documents() -> Iterator[Path]:
    yield from (ROOT / name for name in FILES)
    yield from sorted((ROOT / "docs").rglob("*.md"))


@cache
def text_of(path: Path) -> tuple[str, str]:
    """Return the text, and the same in lower case."""
    text = path.read_text(encoding="utf-8")
    return text, text.lower()


def in_text(pattern: str) -> str:
    return pattern.rstrip("_").replace(" ?", r"[\s_#]*").replace(" ", r"[\s_#]+")


@cache
def expression(pattern: str) -> re.Pattern[str]:
    """Match whole words: in text, across line ends, and as parts of `snake_case` and `CamelCase` names."""
    start = r"(?:(?<![^\W_])|(?-i:(?<=[a-z])(?=[A-Z])))"
    end = r"(?=_)" if pattern.endswith("_") else r"(?:(?![^\W_])|(?-i:(?<=[a-z])(?=[A-Z])))"
    return re.compile(f"{start}(?:{in_text(pattern)}){end}", re.IGNORECASE)


def find(text: str, pattern: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each match."""
    for match in expression(pattern).finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[0]


def is_allowed(path: str, word: str) -> bool:
    return any(path.startswith(folder) and word.lower() in words for folder, words in ALLOWED.items())


@pytest.mark.parametrize("pattern", BETTER)
def test_no_source_and_no_page_uses_a_word_that_has_a_better_one(pattern: str) -> None:
    anywhere = re.compile(in_text(pattern))  # much faster than the whole expression
    found = [
        f"{name}:{line}: {word!r}"
        for path in [*sources(), *documents()]
        for name, (text, lower) in [(path.relative_to(ROOT).as_posix(), text_of(path))]
        if anywhere.search(lower)
        for line, word in find(text, pattern)
        if not is_allowed(name, word)
    ]
    assert not found, f"write instead: {BETTER[pattern]}\n" + "\n".join(found)


def test_no_module_is_named_by_a_gerund() -> None:
    modules = [path for path in sources() if path.suffix == ".py" and path.is_relative_to(SOURCES)]
    names = [path.relative_to(SOURCES) for path in modules]
    parts = {(name.as_posix(), part) for name in names for part in name.with_suffix("").parts}
    found = sorted(name for name, part in parts if part.endswith("ing") and part not in NOUNS)
    assert not found, "a module is a noun of the trade: " + ", ".join(found)


def test_every_exclusion_exists() -> None:
    """An exclusion that excludes nothing hides that it can go."""
    assert [name for name in NOT_YET if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("he was told", "told"),
        ("TOLD = 1", "told"),
        ("is_told_so", "told"),
        ("class ToldSo:", "told"),
        ("def wasTold", "told"),
        ("MOST_KEYS = 3", "most_"),
        ("# it runs for\n    # ever", "for ever"),
        ("runs_for_ever", "for ever"),
        ("underway", "under ?way"),
        ("UnderWay", "under ?way"),
    ],
)
def test_words_are_found_in_text_and_in_names_of_every_style(text: str, pattern: str) -> None:
    assert [line for line, _ in find(text, pattern)] == [1]


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("extolled, untold, toldify", "told"),
        ("most of them", "most_"),
        ("forever", "for ever"),
        ("reborn", "born"),
    ],
)
def test_parts_of_words_are_not_found(text: str, pattern: str) -> None:
    assert [*find(text, pattern)] == []
