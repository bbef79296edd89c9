"""The fenced blocks of a page, in order.

A block of Python or TOML with a title is a file of that name, a block of `sh` is typed into a terminal, and a
block of `text` after it is the expected output. Other blocks have tests of their own, which
tests/test_page_parts.py lists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_FENCE = re.compile(r"^```(?P<words>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_GENERATED = re.compile(r"<!-- generated.*?-->.*?<!-- end of .*?-->", re.DOTALL)
"""What a script has written, but not the features of FastMCP: people wrote their texts, beside the tests."""
_WORD = re.compile(r"[^\W_]")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    title: str | None
    text: str


def blocks_of(page: Path) -> list[Block]:
    return [_block(found["words"], found["text"]) for found in _FENCE.finditer(page.read_text("utf-8"))]


def _block(words: str, text: str) -> Block:
    title = _TITLE.search(words)
    return Block(words.partition(" ")[0], None if title is None else title[1], text)


def runnable_pages() -> list[Path]:
    """Return the pages that have commands."""
    return [page for page in every_page() if any(block.language == "sh" for block in blocks_of(page))]


def every_page() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def count_words(text: str) -> int:
    """Count the words of a page: code and tables count, what a script has written does not."""
    return sum(1 for word in _GENERATED.sub("", text).split() if _WORD.search(word))


def count_prose(text: str) -> int:
    """Count the words of a page that are written by hand: not fenced code, and not generated parts."""
    return count_words(_FENCE.sub("", text))


def is_seen(expected: str, output: str) -> bool:
    """Return whether the output has these lines in this order. Three dots match any text, even lines."""
    remaining = iter(output.splitlines())
    return all(
        any(_pattern(line).search(each) for each in remaining)
        for line in expected.splitlines()
        if line.strip() != "..."
    )


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(r"^\s*" + ".*".join(map(re.escape, line.strip().split("..."))) + r"\s*$")
