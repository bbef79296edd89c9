"""Opening a storage by its URL: what is wrong is told with its remedy."""

from __future__ import annotations

import pytest

from perdure.storage import Engine, open_storage, register_engine
from perdure.storage.errors import CannotOpen, MissingExtra, UnknownScheme

from .naive import NaiveEngine

pytestmark = pytest.mark.anyio


async def open_naive(url: str) -> Engine:
    return NaiveEngine()


async def test_a_storage_knows_its_name() -> None:
    async with await open_storage("memory:") as storage:
        assert (storage.name, storage.lag) == ("memory", 0)


@pytest.mark.parametrize("url", ["", "tasks.db", "memory", "oracle://host/db", ":", "SQLITE:///x"])
async def test_an_unknown_scheme_is_told_which_there_are(url: str) -> None:
    with pytest.raises(UnknownScheme, match=r"begin the URL with one of .*memory, .*sqlite") as caught:
        await open_storage(url)
    assert caught.value.location == url


@pytest.mark.parametrize("url", ["memory:name", "memory://", "memory:?x=1"])
async def test_a_memory_storage_has_no_options(url: str) -> None:
    with pytest.raises(CannotOpen, match='write "memory:"'):
        await open_storage(url)


async def test_an_engine_of_ones_own_opens_by_its_scheme() -> None:
    register_engine("naive", f"{__name__}:open_naive", install="naive-engine")
    async with await open_storage("naive:anything") as storage:
        assert storage.name == "naive"


async def test_a_missing_driver_is_told_what_to_install() -> None:
    register_engine("absent", "no_such_driver.engine:open_engine", install="perdure[absent]")
    with pytest.raises(MissingExtra, match=r"pip install 'perdure\[absent\]'") as caught:
        await open_storage("absent://host")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
