"""A sorted set of tuples, stored in blocks. The memory engine uses it for its indexes.

Adding, removing or finding a key takes O(log n) comparisons. Adding or removing one moves at most 1024 keys.
The standard library has no sorted container, and this module is too short to justify a dependency.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

BLOCK_SIZE = 512

K = TypeVar("K", bound=tuple[object, ...])


class SortedSet(Generic[K]):
    """A set of keys that can be iterated in sorted order, starting at any key."""

    def __init__(self) -> None:
        self._blocks: list[list[K]] = []
        self._lasts: list[K] = []  # the greatest key of each block

    def add(self, key: K) -> None:
        """Add a key, which must not be in the set yet."""
        if not self._blocks:
            self._blocks.append([key])
            self._lasts.append(key)
            return
        if key > self._lasts[-1]:  # the usual case: keys arrive in order
            index = len(self._blocks) - 1
            block = self._blocks[index]
            block.append(key)
        else:
            index = bisect_left(self._lasts, key)
            block = self._blocks[index]
            insort(block, key)
        if len(block) > 2 * BLOCK_SIZE:
            self._blocks[index : index + 1] = [block[:BLOCK_SIZE], block[BLOCK_SIZE:]]
            self._lasts.insert(index, block[BLOCK_SIZE - 1])
            index += 1
        self._lasts[index] = self._blocks[index][-1]

    def remove(self, key: K) -> None:
        """Remove a key, which must be in the set."""
        index = bisect_left(self._lasts, key)
        block = self._blocks[index]
        del block[bisect_left(block, key)]
        if block:
            self._lasts[index] = block[-1]
        else:
            del self._blocks[index], self._lasts[index]

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def after(self, key: K | None) -> Iterator[K]:
        """Yield the keys greater than `key` in ascending order. If `key` is None, yield all keys."""
        first = 0 if key is None else bisect_right(self._lasts, key)
        start = 0 if key is None or first == len(self._blocks) else bisect_right(self._blocks[first], key)
        for index in range(first, len(self._blocks)):
            yield from self._blocks[index][start:]
            start = 0

    def before(self, key: K | None) -> Iterator[K]:
        """Yield the keys less than `key` in descending order. If `key` is None, yield all keys."""
        end = len(self._blocks) if key is None else bisect_left(self._lasts, key)
        if key is not None and end < len(self._blocks):
            yield from reversed(self._blocks[end][: bisect_left(self._blocks[end], key)])
        for index in range(end - 1, -1, -1):
            yield from reversed(self._blocks[index])
