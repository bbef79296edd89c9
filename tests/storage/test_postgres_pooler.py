"""Behind a transaction pooler nothing stays in a session. The contract is run there by test_contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from perdure.storage import open_storage
from perdure.storage.errors import CannotOpen
from perdure.storage.kit import Subject
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, insert_each, make_record

from .. import servers
from .engines import at
from .postgres_pooler import Pooler, pooler

pytestmark = pytest.mark.anyio


def url_of(one: Pooler, options: str = "&pooler=transaction") -> str:
    return f"postgresql://perdure@127.0.0.1:{one.port}/postgres?schema=perdure_{uuid4().hex}{options}"


@asynccontextmanager
async def behind_pooler() -> AsyncGenerator[tuple[Pooler, Subject]]:
    async with pooler(servers.postgres().port, "perdure") as one, at(url_of(one)) as subject:
        yield one, subject


async def test_nothing_is_left_in_a_session() -> None:
    async with behind_pooler() as (one, subject):
        storage = subject.storage
        await insert_each(storage, make_record("k"))
        await storage.get(make_record("k").address, now=NOW)
        await storage.page(SPACE, PARTITION, limit=1, now=NOW)
        await storage.due("lane", until=NOW, limit=1, now=NOW)
        await storage.counts(SPACE, now=NOW)
        await storage.purge(until=NOW, limit=1)
        await storage.maintain(repair=True)
        assert {name for name, _ in one.statements} == {b""}
        texts = b"\n".join(text for _, text in one.statements)
        assert b"LISTEN" not in texts
        assert b"jit" not in texts  # with which the driver begins to ask about types that it does not know


async def test_a_commit_is_one_transaction_behind_a_pooler() -> None:
    async with behind_pooler() as (one, subject):
        await insert_each(subject.storage, make_record("first"))
        before = one.transactions
        await insert_each(subject.storage, make_record("second"))
        assert one.transactions == before + 1


async def test_a_pooler_without_the_option_is_reported() -> None:
    async with pooler(servers.postgres().port, "perdure") as one:
        with pytest.raises(CannotOpen, match="add pooler=transaction"):
            await open_storage(url_of(one, options=""))
