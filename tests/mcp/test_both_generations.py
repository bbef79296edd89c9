"""One server speaks both task protocols at once, of the same tasks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeAlias

import pytest
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl

from perdure import Tasks
from perdure.runtime import RuntimeConfig

from ..markers import row
from .conformance_server import add_task_fixtures
from .raw_clients import Answer, Client2025, Client2026, Json, serving

pytestmark = pytest.mark.anyio

YES: Json = {"action": "accept", "content": {"confirm": True}}
SHARED = ("taskId", "status", "statusMessage", "createdAt", "lastUpdatedAt")
"""What both protocols call the same."""

Both: TypeAlias = tuple[Client2026, Client2025]


class Names:
    """Lets everybody in under the name that is their token."""

    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id=f"client of {token}", scopes=[], subject=token)


async def yes(request: Json) -> Json:
    """Ana agrees to everything."""
    wants_name = "name" in request["params"]["requestedSchema"]["properties"]
    return {"action": "accept", "content": {"name": "Ana"}} if wants_name else YES


@pytest.fixture(params=["the id is the key", "the owner is authenticated"])
async def both(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncGenerator[Both]:
    """A client of each protocol, of the same server and user."""
    authenticated = request.param == "the owner is authenticated"
    async with hosting(authenticated=authenticated) as url:
        token = "ana" if authenticated else None
        async with (
            Client2026(url, token=token) as modern,
            Client2025(url, token=token, answering=yes) as core,
        ):
            yield modern, core


@asynccontextmanager
async def hosting(*, authenticated: bool) -> AsyncGenerator[str]:
    tasks = Tasks("memory:", runtime=RuntimeConfig(drain_timeout=0.0, cancel_grace=0.5))
    auth = AuthSettings(issuer_url=AnyHttpUrl("https://issuer.test"), resource_server_url=None)
    server: MCPServer[object] = MCPServer(
        "tests",
        auth=auth if authenticated else None,
        token_verifier=Names() if authenticated else None,
        **tasks.attach(),
    )
    add_task_fixtures(server, tasks)
    async with serving(server.streamable_http_app()) as url:
        yield url


def shared(task: Json) -> Json:
    return {name: task.get(name) for name in SHARED}


# From the later protocol to the earlier


@row(82, 84)
async def test_a_task_of_the_later_protocol_is_looked_at_and_its_result_read_through_the_earlier(
    both: Both,
) -> None:
    modern, core = both
    task_id = await modern.start("slow_compute", {"seconds": 0.1, "label": "x"})

    result = (await core.send("tasks/result", {"taskId": task_id})).result
    there, here = await modern.get(task_id), await core.get(task_id)

    assert shared(there) == shared(here)
    assert result["content"] == there["result"]["content"]
    assert result["structuredContent"] == there["result"]["structuredContent"]
    assert "resultType" not in result


async def test_a_task_of_the_later_protocol_is_answered_through_the_earlier(both: Both) -> None:
    modern, core = both
    task_id = await modern.start("confirm_delete", {"filename": "a.txt"})
    asked = (await modern.until(task_id, "input_required"))["inputRequests"]

    result = (await core.send("tasks/result", {"taskId": task_id})).result

    assert result["content"][0]["text"] == "deleted a.txt"
    assert core.asked[0]["params"]["message"] == asked["confirm"]["params"]["message"]
    assert (await modern.get(task_id))["status"] == "completed"


async def test_a_task_of_the_later_protocol_is_cancelled_through_the_earlier(both: Both) -> None:
    modern, core = both
    task_id = await modern.start("slow_compute", {"seconds": 60})

    assert (await core.send("tasks/cancel", {"taskId": task_id})).result["status"] == "cancelled"
    assert (await modern.get(task_id))["status"] == "cancelled"


# From the earlier to the later


@row(82, 84)
async def test_a_task_of_the_earlier_protocol_is_looked_at_with_its_result_through_the_later(
    both: Both,
) -> None:
    modern, core = both
    task_id = await core.start("slow_compute", {"seconds": 0.1, "label": "x"})

    there = await modern.until(task_id, "completed")

    assert there["result"]["content"][0]["text"] == "computed x in 0.1 seconds"
    assert there["result"]["resultType"] == "complete"
    assert shared(there) == shared(await core.get(task_id))


async def test_a_task_of_the_earlier_protocol_is_answered_through_the_later(both: Both) -> None:
    modern, core = both
    task_id = await core.start("confirm_delete", {"filename": "a.txt"})
    asked = (await modern.until(task_id, "input_required"))["inputRequests"]

    await modern.update(task_id, dict.fromkeys(asked, YES))

    result = (await core.send("tasks/result", {"taskId": task_id})).result
    assert result["content"][0]["text"] == "deleted a.txt"
    assert core.asked == []


async def test_a_task_of_the_earlier_protocol_is_cancelled_through_the_later(both: Both) -> None:
    modern, core = both
    task_id = await core.start("slow_compute", {"seconds": 60})

    await modern.cancel(task_id)

    await modern.until(task_id, "cancelled")
    assert (await core.send("tasks/cancel", {"taskId": task_id})).code == -32602


async def test_what_a_resolver_asks_in_the_earlier_protocol_can_be_answered_in_the_later_one(
    both: Both,
) -> None:
    modern, core = both
    task_id = await core.start("test_tool_with_task")
    asked = await modern.until(task_id, "input_required")
    (key,) = asked["inputRequests"]
    await modern.update(task_id, {key: {"action": "accept", "content": {"name": "Ana"}}})

    ended = await modern.until(task_id, "completed")
    assert ended["result"]["content"][0]["text"] == "done for Ana"
    assert core.asked == []


async def test_a_client_of_2026_that_declares_the_tasks_of_2025_has_access_to_tasks_of_2025_only(
    both: Both,
) -> None:
    modern, core = both
    old: Json = {"tasks": {"cancel": {}}}
    ours = await core.start("slow_compute", {"seconds": 60})
    theirs = await modern.start("slow_compute", {"seconds": 60})

    async def ask(method: str, task_id: str) -> Answer:
        return await modern.send(method, {"taskId": task_id}, capabilities=old)

    assert (await ask("tasks/get", ours)).result["status"] == "working"
    assert (await ask("tasks/cancel", ours)).result["resultType"] == "complete"
    for method in ("tasks/get", "tasks/cancel"):
        assert (await ask(method, theirs)).code == -32021
    await modern.until(ours, "cancelled")
    assert (await modern.get(theirs))["status"] == "working"


# One task, two spellings


async def test_each_question_is_answered_once_whichever_protocol_brings_the_answer(both: Both) -> None:
    modern, core = both
    task_id = await core.start("multi_input")
    await modern.until(task_id, "input_required")
    await modern.update(task_id, {"first": {"action": "decline"}})

    result = (await core.send("tasks/result", {"taskId": task_id})).result

    assert [each["params"]["message"] for each in core.asked] == ["Second?"]
    assert result["content"][0]["text"] == "first: decline, second: accept"


async def test_the_two_protocols_tell_the_same_of_a_task_that_waits(both: Both) -> None:
    modern, core = both
    created = (await core.call("confirm_delete", {"filename": "x"}, task={"ttl": 90_000})).result["task"]
    there = await modern.until(created["taskId"], "input_required")
    here = await core.get(created["taskId"])

    assert shared(there) == shared(here)
    assert (created["ttl"], there["ttlMs"], here["ttl"]) == (90_000, 180_000, 180_000)
    assert there["createdAt"] == created["createdAt"]
    assert there["lastUpdatedAt"] > created["lastUpdatedAt"]
    assert {"ttl", "pollInterval"}.isdisjoint(there)
    assert {"ttlMs", "pollIntervalMs", "resultType", "inputRequests"}.isdisjoint(here)


async def test_the_two_protocols_tell_the_same_of_a_json_rpc_error(both: Both) -> None:
    modern, core = both
    task_id = await modern.start("protocol_error_job")
    there = await modern.until(task_id, "failed")
    here = await core.get(task_id)

    assert shared(there) == shared(here)
    assert (await core.send("tasks/result", {"taskId": task_id})).error == there["error"]


# Whose it is


@row(82)
async def test_the_listing_of_an_owner_has_the_tasks_of_both_protocols() -> None:
    async with (
        hosting(authenticated=True) as url,
        Client2026(url, token="ana") as modern,  # noqa: S106, a name
        Client2025(url, token="ana") as core,  # noqa: S106, a name
    ):
        one = await modern.start("slow_compute", {"seconds": 0.01})
        two = await core.start("slow_compute", {"seconds": 0.01})
        listed = (await core.send("tasks/list")).result["tasks"]

        assert core.initialized["capabilities"]["tasks"]["list"] == {}
        assert [task["taskId"] for task in listed] == [two, one]


@row(86)
async def test_a_task_of_another_owner_is_not_found_through_either_protocol() -> None:
    async with (
        hosting(authenticated=True) as url,
        Client2026(url, token="ana") as ana,  # noqa: S106, a name
        Client2026(url, token="bob") as modern,  # noqa: S106, a name
        Client2025(url, token="bob") as core,  # noqa: S106, a name
    ):
        task_id = await ana.start("confirm_delete", {"filename": "a.txt"})
        await ana.until(task_id, "input_required")
        named: Json = {"taskId": task_id}
        answers = {**named, "inputResponses": {"confirm": YES}}
        refused = [
            await modern.send("tasks/get", named),
            await modern.send("tasks/update", answers),
            await modern.send("tasks/cancel", named),
            await core.send("tasks/get", named),
            await core.send("tasks/result", named),
            await core.send("tasks/cancel", named),
        ]

        assert [answer.error for answer in refused] == [{"code": -32602, "message": "Task not found"}] * 6
        assert (await core.send("tasks/list")).result == {"tasks": []}
        assert (await ana.get(task_id))["status"] == "input_required"
