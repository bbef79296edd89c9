"""`subscriptions/listen` of 2026-07-28: tasks that tell of themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl

from perdure import Tasks
from perdure.runtime import RuntimeConfig
from perdure.storage import Address, Micros, Record, Storage, open_storage
from perdure.storage.errors import StorageCorrupt

from ..forwarding_engine import ForwardingEngine
from ..markers import once, row
from .conformance.core_fixtures import add_core_fixtures
from .conformance_server import add_task_fixtures
from .raw_clients import EXTENSION, Json, serving
from .schema_check import Published, Recorded, judged

pytestmark = pytest.mark.anyio

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED, CHANGED = "notifications/subscriptions/acknowledged", "notifications/tasks"
YES: Json = {"action": "accept", "content": {"confirm": True}}
NOBODYS = "0" * 32
FILE: Json = {"filename": "a.txt"}


@pytest.fixture(scope="module")
def published() -> Generator[Published]:
    with judged() as published:
        yield published


class Tokens:
    """Whom a server lets in: each token is the name of its subject, up to a slash."""

    def __init__(self) -> None:
        self.expiring: dict[str, int] = {}

    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(
            token=token,
            client_id="tests",
            scopes=[],
            subject=token.partition("/")[0],
            expires_at=self.expiring.get(token),
        )


@asynccontextmanager
async def listened_to(where: str, tokens: Tokens | None = None) -> AsyncGenerator[str]:
    """The address of a server, which lets in only bearers of tokens where there are some."""
    tasks = Tasks(where, runtime=RuntimeConfig(drain_timeout=0))
    auth = AuthSettings(issuer_url=AnyHttpUrl("https://issuer.test"), resource_server_url=None)
    server: MCPServer[object] = MCPServer(
        "listened to",
        version="1",
        auth=None if tokens is None else auth,
        token_verifier=tokens,
        **tasks.attach(),
    )
    add_core_fixtures(server)
    add_task_fixtures(server, tasks)
    async with serving(server.streamable_http_app()) as url:
        yield url


@pytest.fixture
async def url(where: str) -> AsyncGenerator[str]:
    async with listened_to(where) as url:
        yield url


@pytest.fixture
async def modern(url: str, published: Published) -> AsyncGenerator[Recorded]:
    async with Recorded(url, published) as client:
        yield client


async def waiting(client: Recorded) -> str:
    """A task that waits for an answer."""
    task_id = await client.start("confirm_delete", FILE)
    await client.until(task_id, "input_required")
    return task_id


async def upto(frames: AsyncIterator[Json], good: Callable[[Json], object]) -> list[Json]:
    """The frames up to the first one that is good, that one included."""
    seen: list[Json] = []
    async with asyncio.timeout(15):
        async for frame in frames:
            seen.append(frame)
            if good(frame):
                return seen
    raise AssertionError(f"the stream ended, after {seen}")


async def rest_of(frames: AsyncIterator[Json]) -> list[Json]:
    async with asyncio.timeout(15):
        return [frame async for frame in frames]


def says(status: str) -> Callable[[Json], bool]:
    return lambda frame: frame.get("method") == CHANGED and frame["params"]["status"] == status


def is_method(method: str) -> Callable[[Json], bool]:
    return lambda frame: frame.get("method") == method


def told(shape: Mapping[str, Any]) -> Json:
    """What a task says of itself, without what is about one message alone."""
    meta = {name: value for name, value in shape.get("_meta", {}).items() if name.startswith("perdure/")}
    alone = {"_meta": meta, "resultType": None, "pollIntervalMs": None}
    return {**shape, **alone}


# What is told


async def test_the_acknowledgement_comes_first_and_names_the_tasks_that_there_are(modern: Recorded) -> None:
    first, second = await waiting(modern), await waiting(modern)
    wanted = [second, NOBODYS, first, "no-such-task", second]

    async with modern.listen({"taskIds": wanted}) as frames:
        (acknowledged,) = await upto(frames, lambda _: True)

    assert acknowledged["method"] == ACKNOWLEDGED
    assert acknowledged["params"]["notifications"] == {"taskIds": [second, first]}


async def test_every_notification_says_what_a_look_at_that_moment_says(modern: Recorded) -> None:
    task_id = await waiting(modern)

    async with modern.listen({"taskIds": [task_id]}) as frames:
        *_, asking = await upto(frames, says("input_required"))
        assert told(asking["params"]) == told(await modern.get(task_id))

        await modern.update(task_id, {"confirm": YES})
        *_, ended = await upto(frames, says("completed"))
        assert told(ended["params"]) == told(await modern.get(task_id))
        assert ended["params"]["result"]["content"][0]["text"] == "deleted a.txt"


@pytest.mark.parametrize("tool", ["protocol_error_job", "failing_job"])
async def test_the_end_is_told_with_its_error_as_with_its_result(modern: Recorded, tool: str) -> None:
    task_id = await modern.start(tool)

    async with modern.listen({"taskIds": [task_id]}) as frames:
        *_, last, _ = await rest_of(frames)

    assert told(last["params"]) == told(await modern.get(task_id))


async def test_after_the_last_end_the_stream_ends_with_its_result(modern: Recorded) -> None:
    first, second = await waiting(modern), await waiting(modern)

    async with modern.listen({"taskIds": [first, second]}) as frames:
        request_id = modern.last_id
        await upto(frames, is_method(ACKNOWLEDGED))
        await modern.cancel(first)
        await upto(frames, says("cancelled"))
        await modern.update(second, {"confirm": YES})
        *_, last, result = await rest_of(frames)

    assert (last["params"]["taskId"], last["params"]["status"]) == (second, "completed")
    assert result["id"] == request_id
    assert result["result"]["resultType"] == "complete"


async def test_a_task_that_has_ended_already_is_told_once(modern: Recorded) -> None:
    task_id = await modern.start("slow_compute", {"seconds": 0})
    await modern.until(task_id, "completed")

    async with modern.listen({"taskIds": [task_id]}) as frames:
        methods = [frame.get("method") for frame in await rest_of(frames)]

    assert methods == [ACKNOWLEDGED, CHANGED, None]


async def test_where_there_is_no_task_to_tell_of_the_stream_says_so_and_ends(modern: Recorded) -> None:
    async with modern.listen({"taskIds": [NOBODYS]}) as frames:
        acknowledged, result = await rest_of(frames)

    assert acknowledged["params"]["notifications"] == {"taskIds": []}
    assert result["result"]["resultType"] == "complete"


class Named(Recorded):
    """A client whose requests have names instead of numbers."""

    def body(self, method: str, params: Mapping[str, Any], capabilities: Json) -> Json:
        body = super().body(method, params, capabilities)
        self.last_id = f"request {body['id']}"
        return {**body, "id": self.last_id}


@pytest.mark.parametrize("client_type", [Recorded, Named])
@pytest.mark.parametrize("also", [{}, {"toolsListChanged": True}])
async def test_every_frame_carries_the_id_of_its_subscription_as_it_was_sent(
    url: str, published: Published, client_type: type[Recorded], also: Json
) -> None:
    async with client_type(url, published) as client:
        task_id = await waiting(client)
        async with client.listen({"taskIds": [task_id], **also}) as frames:
            request_id = client.last_id
            await client.update(task_id, {"confirm": YES})
            seen = await upto(frames, says("completed"))
            if not also:
                (result,) = await rest_of(frames)
                assert result["result"]["_meta"][SUBSCRIPTION] == request_id

    tagged = [frame["params"]["_meta"][SUBSCRIPTION] for frame in seen]
    assert tagged == [request_id] * len(seen)
    assert {type(tag) for tag in tagged} == {type(request_id)}


async def test_tasks_are_told_of_beside_other_changes_on_one_stream(modern: Recorded) -> None:
    task_id = await waiting(modern)

    async with modern.listen({"taskIds": [task_id, NOBODYS], "toolsListChanged": True}) as frames:
        acknowledged, *_ = await upto(frames, says("input_required"))
        await modern.call("test_trigger_tool_change")
        await upto(frames, is_method("notifications/tools/list_changed"))
        await modern.update(task_id, {"confirm": YES})
        await upto(frames, says("completed"))
        await modern.call("test_trigger_tool_change")
        await upto(frames, is_method("notifications/tools/list_changed"))

    assert acknowledged["method"] == ACKNOWLEDGED
    assert acknowledged["params"]["notifications"] == {"taskIds": [task_id], "toolsListChanged": True}


async def test_neither_progress_nor_log_messages_are_sent_of_a_task(modern: Recorded) -> None:
    meta: Json = {"progressToken": "p", "io.modelcontextprotocol/logLevel": "debug"}
    call: Json = {"name": "slow_compute", "arguments": {"seconds": 0.5, "label": "x"}, "_meta": meta}
    created = await modern.send("tools/call", call)

    async with modern.listen({"taskIds": [created.result["taskId"]]}) as frames:
        *seen, _ = await rest_of(frames)

    assert created.frames == ()
    assert {frame["method"] for frame in seen} == {ACKNOWLEDGED, CHANGED}
    reported = [frame["params"] for frame in seen if "perdure/progress" in frame["params"]["_meta"]]
    assert reported, "the tool reports progress, which is to be seen in the task"


# Who is told


@pytest.mark.parametrize("also", [{}, {"toolsListChanged": True}])
async def test_an_undeclared_client_is_told_what_it_lacks(modern: Recorded, also: Json) -> None:
    params: Json = {"notifications": {"taskIds": [NOBODYS], **also}}

    async with asyncio.timeout(15):  # what is not refused is a stream without end
        error = (await modern.send("subscriptions/listen", params, declared=False)).error

    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


@pytest.mark.parametrize("task_ids", [5, "text", [5], {"a": 1}])
@once
async def test_what_are_no_ids_is_refused_by_name(modern: Recorded, task_ids: Any) -> None:
    params: Json = {"notifications": {"taskIds": task_ids}}

    error = (await modern.send("subscriptions/listen", params)).error

    assert error["code"] == -32602
    assert "taskIds" in error["message"]


@row(33)
@pytest.mark.parametrize("also", [{}, {"toolsListChanged": True}])
async def test_nobody_is_told_of_the_task_of_another(where: str, published: Published, also: Json) -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(listened_to(where, Tokens()))
        ada, bob = [
            await stack.enter_async_context(Recorded(url, published, token=name)) for name in ("ada", "bob")
        ]
        adas, bobs = await waiting(ada), await waiting(bob)

        frames = await stack.enter_async_context(bob.listen({"taskIds": [adas, bobs], **also}))
        seen = await upto(frames, says("input_required"))
        await ada.update(adas, {"confirm": YES})
        await ada.until(adas, "completed")
        await bob.update(bobs, {"confirm": YES})
        seen += await upto(frames, says("completed"))

    assert seen[0]["params"]["notifications"] == {"taskIds": [bobs], **also}
    assert {frame["params"]["taskId"] for frame in seen[1:]} == {bobs}


@row(33)
@pytest.mark.parametrize("also", [{}, {"toolsListChanged": True}])
async def test_nothing_is_told_after_the_token_has_run_out(
    where: str, published: Published, set_ahead: Callable[[float], None], also: Json
) -> None:
    tokens = Tokens()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(listened_to(where, tokens))
        ada, again = [
            await stack.enter_async_context(Recorded(url, published, token=token))
            for token in ("ada/first", "ada/second")
        ]
        task_id = await waiting(ada)
        tokens.expiring["ada/first"] = int(time.time()) + 60

        frames = await stack.enter_async_context(ada.listen({"taskIds": [task_id], **also}))
        heard = await upto(frames, says("input_required"))
        set_ahead(61)
        await again.update(task_id, {"confirm": YES})
        await again.until(task_id, "completed")
        if also:  # the stream stays for the other kinds; whatever was told came before what comes now
            await again.call("test_trigger_tool_change")
            heard += await upto(frames, is_method("notifications/tools/list_changed"))
        else:
            heard += await rest_of(frames)

    assert [frame["params"]["status"] for frame in heard if frame.get("method") == CHANGED] == [
        "input_required"
    ]


# What is left behind


def count_beside_runs() -> int:
    """Of all that goes on, less what a run of a tool begins for itself, which may be late."""
    return sum("Run." not in repr(doing.get_coro()) for doing in asyncio.all_tasks())


@pytest.mark.parametrize("also", [{}, {"toolsListChanged": True}])
async def test_nothing_is_left_of_streams_whose_clients_went_away(
    modern: Recorded, url: str, published: Published, also: Json
) -> None:
    task_id = await waiting(modern)
    before = count_beside_runs()

    async with AsyncExitStack() as streams:
        for _ in range(8):
            client = await streams.enter_async_context(Recorded(url, published))
            frames = await streams.enter_async_context(client.listen({"taskIds": [task_id], **also}))
            await upto(frames, says("input_required"))
        assert count_beside_runs() >= before + 8

    async with asyncio.timeout(15):
        while count_beside_runs() > before:  # noqa: ASYNC110, nothing tells of the end of all tasks
            await asyncio.sleep(0.02)
    assert (await modern.get(task_id))["status"] == "input_required"


class DamagedEngine(ForwardingEngine):
    """Reads damaged records from some moment on."""

    is_damaged = False

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        if self.is_damaged:
            raise StorageCorrupt("the record is damaged")
        return await super().get(addresses, now=now)


async def test_a_task_that_can_no_longer_be_read_is_logged_once_and_ends_its_stream(
    published: Published, caplog: pytest.LogCaptureFixture
) -> None:
    engine = DamagedEngine()
    engine.storage = await open_storage("memory:")
    tasks = Tasks(Storage(engine), runtime=RuntimeConfig(drain_timeout=0, queue_poll_interval=0.05))
    server: MCPServer[object] = MCPServer("listened to", **tasks.attach())
    add_task_fixtures(server, tasks)
    async with serving(server.streamable_http_app()) as url, Recorded(url, published) as client:
        task_id = await waiting(client)
        async with client.listen({"taskIds": [task_id]}) as frames:
            await upto(frames, says("input_required"))
            engine.is_damaged = True
            *_, last = await rest_of(frames)
            assert last["result"]["resultType"] == "complete"
        engine.is_damaged = False
    logged = [each.getMessage() for each in caplog.records if "subscription" in each.getMessage()]
    expected = f"a subscription no longer receives changes to task {task_id}: the record is damaged"
    assert logged == [expected]
