"""A plain call of a durable tool ends, and tells of its progress, as that of a plain tool does."""

from __future__ import annotations

import asyncio

import pytest

from perdure.tasks import Status

from ... import task_edits
from ..raw_clients import MODERN
from .tool_server import ANYBODY, EVERY_VERSION, HANDSHAKES, calling, hosting, texts_of

pytestmark = pytest.mark.anyio


# Results


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_a_durable_tool_answers_a_plain_call_exactly_as_a_plain_tool_does(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        durable = await client.call("add", {"one": 1, "two": 2})
        plain = await client.call("plain_add", {"one": 1, "two": 2})

    assert durable.result == plain.result
    assert "sum" in texts_of(durable)[0]


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_a_json_rpc_error_of_the_tool_is_the_error_of_the_call(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        answer = await client.call("breaking")

    assert answer.error == {"code": -32099, "message": "broken", "data": {"why": "on purpose"}}


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_arguments_that_the_tool_does_not_take_are_refused_as_for_a_plain_tool(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        durable = await client.call("add", {"one": "x", "two": 2})
        plain = await client.call("plain_add", {"one": "x", "two": 2})
        counts = await task_edits.counts(site.tasks.runtime.store)

    plainly = str(plain.result).replace("plain_add", "add").replace("add_plainly", "add")
    assert str(durable.result) == plainly
    assert durable.result["isError"] is True
    assert sum(counts.values()) == 0


@pytest.mark.parametrize("version", HANDSHAKES)
async def test_a_tool_that_requires_a_task_is_not_called_without_one_at_any_handshake(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        assert (await client.call("required")).code == -32601


@pytest.mark.parametrize("version", [MODERN, "2025-06-18", "2024-11-05"])
async def test_the_wish_for_a_task_is_passed_over_where_the_version_has_none(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        answer = await client.call("add", {"one": 1, "two": 2}, task={"ttl": 1000})

    assert "sum" in texts_of(answer)[0]


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_a_task_of_which_the_client_does_not_know_is_stored_while_it_runs(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        call = asyncio.create_task(client.call("endless", {"label": "x"}))
        task_id = await site.begins()
        task = (await site.look(task_id)).task

        assert (task.status, task.original_method) == (Status.WORKING, "tools/call")
        assert task.original_params == {"name": "endless", "arguments": {"label": "x"}}

        await site.tasks.runtime.cancel(ANYBODY, task_id)
        assert "cancel" in (await call).error["message"]


# Progress


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_progress_of_the_task_is_progress_of_the_call(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        answer = await client.call("stepping", _meta={"progressToken": "mine"})

    told = [frame["params"] for frame in answer.frames if frame["method"] == "notifications/progress"]
    assert told
    assert {params["progressToken"] for params in told} == {"mine"}
    assert [params["progress"] for params in told] == sorted({params["progress"] for params in told})
    assert (told[-1]["progress"], told[-1]["total"]) == (3, 3)
    assert texts_of(answer) == ["all steps"]


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_a_call_without_a_progress_token_is_told_of_no_progress(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        answer = await client.call("stepping")

    assert answer.frames == ()
    assert texts_of(answer) == ["all steps"]
