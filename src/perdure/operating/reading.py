"""How much one look may read: so many records, and so many letters of them, whichever is used up first."""

from __future__ import annotations

from collections.abc import Sequence

from ..storage import Record

MOST_LETTERS = 16 * 1024 * 1024
FIRST_PAGE = 20
"""Records that are read before anybody knows how large they are."""


class Budget:
    """What is left of it. Ask for `size` records, then say which came."""

    def __init__(self, records: int, page: int) -> None:
        self._records = records
        self._page = page
        self._read = 0
        self._letters = 0

    @property
    def is_spent(self) -> bool:
        return self._read >= self._records or self._letters >= MOST_LETTERS

    @property
    def size(self) -> int:
        """As many as there is room for, if the next ones are as large as those before."""
        if not self._read:
            return min(FIRST_PAGE, self._page)
        room = (MOST_LETTERS - self._letters) * self._read // max(1, self._letters)
        return max(1, min(self._page, room, self._records - self._read))

    def take(self, records: Sequence[Record]) -> None:
        self._read += len(records)
        self._letters += sum(len(each.body) for each in records)
