"""Owners, clocks and values for the tests of tasks, and what hypothesis makes of them."""

from __future__ import annotations

import hypothesis.strategies as st

from perdure.storage import Micros
from perdure.tasks import Json, NewTask, Owner, Snapshot, TaskStore

ANA = Owner.user("https://issuer.example", "ana")
BOB = Owner.user("https://issuer.example", "bob")
CALL = NewTask(method="tools/call", params={"name": "build_report", "arguments": {"year": 2026}})

START: Micros = 1_700_000_000_000_000


class Clock:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> Micros:
        return self.now

    def advance(self, by: Micros) -> None:
        self.now += by


async def created(store: TaskStore, count: int, owner: Owner = ANA, new: NewTask = CALL) -> list[Snapshot]:
    return [await store.create(owner, new) for _ in range(count)]


async def ids_of(store: TaskStore, owner: Owner = ANA, *, limit: int = 50) -> list[str]:
    """The ids of all tasks, by walking the pages."""
    page = await store.list(owner, limit=limit)
    ids: list[str] = [each.task.task_id for each in page.tasks]
    while page.next_cursor is not None:
        page = await store.list(owner, limit=limit, cursor=page.next_cursor)
        ids += [each.task.task_id for each in page.tasks]
    return ids


text = st.text(st.characters(codec="utf-8"))
"""Any text that UTF-8 can express, NUL included."""

json_values: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)

owners = st.one_of(
    st.builds(Owner.user, text.filter(lambda t: len(t) < 40), text.filter(lambda t: 0 < len(t) < 40)),
    st.builds(Owner.client, text.filter(lambda t: len(t) < 40), text.filter(lambda t: 0 < len(t) < 40)),
    st.builds(Owner.session, text.filter(lambda t: 0 < len(t) < 40)),
    st.just(Owner.local()),
)
