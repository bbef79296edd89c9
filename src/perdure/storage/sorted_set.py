"""A sorted set of tuples, in blocks: what the memory engine keeps its indexes in.

Adding, removing and seeking cost O(log n) comparisons plus a move within one block of at most 1024.
The standard library has no ordered container, and the core takes no dependency for 60 lines.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

BLOCK = 512

K = TypeVar("K", bound=tuple[object, ...])


class OrderedSet(Generic[K]):
    """Unique keys, always sorted."""

    def __init__(self) -> None:
        self._blocks: list[list[K]] = []
        self._lasts: list[K] = []  # the greatest key of each block, to find a block by

    def add(self, key: K) -> None:
        """Put in a key that is not there yet."""
        if not self._blocks:
            self._blocks.append([key])
            self._lasts.append(key)
            return
        if key > self._lasts[-1]:  # most come in order
            at = len(self._blocks) - 1
            block = self._blocks[at]
            block.append(key)
        else:
            at = bisect_left(self._lasts, key)
            block = self._blocks[at]
            insort(block, key)
        if len(block) > 2 * BLOCK:
            self._blocks[at : at + 1] = [block[:BLOCK], block[BLOCK:]]
            self._lasts.insert(at, block[BLOCK - 1])
            at += 1
        self._lasts[at] = self._blocks[at][-1]

    def remove(self, key: K) -> None:
        """Take out a key that is there."""
        at = bisect_left(self._lasts, key)
        block = self._blocks[at]
        del block[bisect_left(block, key)]
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at], self._lasts[at]

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def after(self, key: K | None) -> Iterator[K]:
        """The keys greater than this one (or all), ascending."""
        at = 0 if key is None else bisect_right(self._lasts, key)
        start = 0 if key is None or at == len(self._blocks) else bisect_right(self._blocks[at], key)
        for index in range(at, len(self._blocks)):
            yield from self._blocks[index][start:]
            start = 0

    def before(self, key: K | None) -> Iterator[K]:
        """The keys less than this one (or all), descending."""
        at = len(self._blocks) if key is None else bisect_left(self._lasts, key)
        if key is not None and at < len(self._blocks):
            yield from reversed(self._blocks[at][: bisect_left(self._blocks[at], key)])
        for index in range(at - 1, -1, -1):
            yield from reversed(self._blocks[index])
