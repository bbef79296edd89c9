"""Much at once, in parts: what storages and sources take has a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def parts_of(every: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """In parts of this size; itertools has it from Python 3.12 on."""
    return (every[start : start + size] for start in range(0, len(every), size))
