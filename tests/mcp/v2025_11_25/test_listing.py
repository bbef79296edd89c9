"""At 2025-11-25 callers who can be told apart list their own tasks, newest first, page by page."""

from __future__ import annotations

from typing import Any

import pytest

from ...markers import row
from ..raw_clients import Client2025
from .server import RELATED, hosting, simple_tools

pytestmark = pytest.mark.anyio


async def test_nothing_is_listed_where_all_callers_are_alike(core: Client2025) -> None:
    await core.start("slow_compute", {"seconds": 0.01})

    assert (await core.send("tasks/list")).code == -32601


@row(82)
async def test_tasks_are_listed_newest_first_page_by_page() -> None:
    async with hosting(simple_tools, anonymous="session") as url, Client2025(url) as core:
        made = [await core.start("quick", {"number": number}) for number in range(60)]
        await core.until(made[-1], "completed")

        first = (await core.send("tasks/list")).result
        second = (await core.send("tasks/list", {"cursor": first["nextCursor"]})).result

    assert [task["taskId"] for task in first["tasks"] + second["tasks"]] == made[::-1]
    assert len(first["tasks"]) == 50
    assert "nextCursor" not in second


@row(82, 83)
async def test_what_is_listed_is_what_looking_at_it_answers() -> None:
    async with hosting(simple_tools, anonymous="session") as url, Client2025(url) as core:
        task_id = await core.start("quick")
        read = await core.until(task_id, "completed")
        (listed,) = (await core.send("tasks/list")).result["tasks"]

    # advice on when to look again grows with the age of the task, and is no part of it
    assert {**listed, "pollInterval": None} == {**read, "pollInterval": None}
    assert RELATED not in listed.get("_meta", {})


@row(82)
async def test_a_cursor_of_a_listing_is_good_for_that_listing_alone() -> None:
    async with (
        hosting(simple_tools, anonymous="session") as url,
        Client2025(url) as core,
        Client2025(url) as other,
    ):
        made = [await core.start("quick") for _ in range(51)]
        theirs = await other.start("quick")
        cursor = (await core.send("tasks/list")).result["nextCursor"]

        damaged: list[Any] = [
            cursor[:-4] + "AAAA",
            ("B" if cursor[0] == "A" else "A") + cursor[1:],
            "",
            "nonsense",
            "é",
            made[0],
            5,
            {},
        ]
        for bad in damaged:
            assert (await core.send("tasks/list", {"cursor": bad})).code == -32602, bad
        assert (await other.send("tasks/list", {"cursor": cursor})).code == -32602
        assert [task["taskId"] for task in (await other.send("tasks/list")).result["tasks"]] == [theirs]
        assert len((await core.send("tasks/list", {"cursor": cursor})).result["tasks"]) == 1
