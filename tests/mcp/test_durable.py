"""`@tasks.durable`: what a function must be, what clients see of it, and what becomes of all it may do."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import threading
import typing
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, cast

import anyio.from_thread
import msgspec
import pytest
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context, Elicit, Image, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, EmbeddedResource, TextContent, TextResourceContents
from msgspec import UNSET
from pydantic import AnyHttpUrl, BaseModel, Field

from perdure import Task, Tasks
from perdure.runtime import Again, Failed, Pause, RuntimeConfig
from perdure.storage.errors import PerdureError
from perdure.tasks import InputKind, InputRequest, Owner, StoreConfig
from perdure.tasks.errors import InvalidValue

from ..rows import row
from ..runtime.replicas import until
from .wire import Core, Json, Modern, serving

pytestmark = pytest.mark.anyio

BRISK = RuntimeConfig(drain=0.2, cancel_grace=10.0, report_interval=0.05, poll_interval=0.2, heartbeat=0.5)
NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ADA: Json = {"action": "accept", "content": {"name": "Ada"}}
NO: Json = {"action": "decline"}
Request = ServerRequestContext[Any, Any]


class Bench:
    """A server to register tools on, which runs within `running`."""

    url: str
    modern: Modern
    core: Core

    def __init__(self, **options: Any) -> None:
        self.tasks = Tasks("memory:", runtime=BRISK)
        self.server: MCPServer[Any] = MCPServer(
            "bench", log_level="CRITICAL", **self.tasks.attach(), **options
        )

    def tool(self, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a durable tool, as users do."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            return self.server.tool()(self.tasks.durable(**options)(function))

        return register

    @asynccontextmanager
    async def running(self, **client: Any) -> AsyncGenerator[Bench]:
        async with (
            serving(self.server.streamable_http_app()) as self.url,
            Modern(self.url, **client) as self.modern,
            Core(self.url, **client) as self.core,
        ):
            yield self

    async def ended(self, tool: str, **arguments: Any) -> Json:
        """What became of a call."""
        return await self.end_of(await self.modern.start(tool, arguments))

    async def end_of(self, task_id: str) -> Json:
        return await self.modern.until(task_id, "completed", "failed", "cancelled")

    async def said(self, tool: str, **arguments: Any) -> str:
        """The text that a call ended with."""
        return text_of(await self.ended(tool, **arguments))


def text_of(task: Json) -> str:
    assert task["status"] == "completed", task
    assert not task["result"].get("isError"), task
    return str(task["result"]["content"][0]["text"])


@pytest.fixture
def bench(anyio_backend: str) -> Bench:
    return Bench()


# What clients see of the function


class Shown(msgspec.Struct):
    """A durable function with its task, and its twin that has none."""

    durable: Callable[..., Any]
    plain: Callable[..., Any]


def pair(durable: Callable[..., Any], plain: Callable[..., Any]) -> Shown:
    plain.__name__ = durable.__name__
    plain.__doc__ = durable.__doc__
    return Shown(durable, plain)


async def first(task: Task, year: int) -> str:
    """Takes the task first."""
    return f"{year} {task.attempt}"


async def first_twin(year: int) -> str:
    return ""


Title = Annotated[str, Field(description="on the cover")]
Parts = Annotated[list[int], Field(max_length=3)]


async def between(year: int, task: Task, title: Title = "x") -> str:
    """Takes the task between others, of which one is described and has a default."""
    return f"{year} {title} {task.attempt}"


async def between_twin(year: int, title: Title = "x") -> str:
    return ""


async def keyword_only(year: int, *, note: str | None = None, task: Task) -> str:
    """Takes the task by its name."""
    return f"{year} {note} {task.attempt}"


async def keyword_only_twin(year: int, *, note: str | None = None) -> str:
    return ""


async def annotated(year: Annotated[int, Field(ge=1900)], task: Annotated[Task, "the task"]) -> str:
    """Takes a task that says more than its type."""
    return f"{year} {task.attempt}"


async def annotated_twin(year: Annotated[int, Field(ge=1900)]) -> str:
    return ""


async def optional(year: int, task: Task | None = None) -> str:
    """Can be called by hand too, without a task."""
    assert task is not None
    return f"{year} {task.attempt}"


async def optional_twin(year: int) -> str:
    return ""


async def none_at_all(kind: Literal["a", "b"], parts: Parts) -> list[int]:
    """Takes no task."""
    return parts


async def none_at_all_twin(kind: Literal["a", "b"], parts: Parts) -> list[int]:
    return []


SHOWN = {
    "first": pair(first, first_twin),
    "between": pair(between, between_twin),
    "keyword-only": pair(keyword_only, keyword_only_twin),
    "annotated": pair(annotated, annotated_twin),
    "optional": pair(optional, optional_twin),
    "none": pair(none_at_all, none_at_all_twin),
}


async def listed(*functions: Callable[..., Any], server: MCPServer[Any]) -> list[Json]:
    for function in functions:
        server.add_tool(function)
    return [tool.model_dump(by_alias=True, exclude_none=True) for tool in await server.list_tools()]


def unstrung(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function as if its module had no `from __future__ import annotations`."""

    @wraps(function)
    async def same(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    same.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    same.__annotations__ = typing.get_type_hints(function, include_extras=True)
    return same


@pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN)
@pytest.mark.parametrize("spelled", ["as text", "as types"])
async def test_a_tool_is_listed_as_its_twin_without_a_task(bench: Bench, shown: Shown, spelled: str) -> None:
    durable = shown.durable if spelled == "as text" else unstrung(shown.durable)
    tools = await listed(bench.tasks.durable()(durable), server=bench.server)
    assert tools == await listed(shown.plain, server=MCPServer("plain"))
    assert tools[0]["description"] == shown.durable.__doc__


@pytest.mark.parametrize(
    ("shown", "arguments", "said"),
    [
        ("first", {"year": 2026}, "2026 1"),
        ("between", {"year": 2026}, "2026 x 1"),
        ("between", {"year": 2026, "title": "y"}, "2026 y 1"),
        ("keyword-only", {"year": 2026}, "2026 None 1"),
        ("annotated", {"year": 2026}, "2026 1"),
        ("optional", {"year": 2026}, "2026 1"),
    ],
)
async def test_a_function_is_given_its_task_wherever_it_takes_it(
    bench: Bench, shown: str, arguments: Json, said: str
) -> None:
    function = SHOWN[shown].durable
    bench.tool()(function)
    async with bench.running():
        assert await bench.said(function.__name__, **arguments) == said


async def test_a_client_cannot_bring_a_task_of_its_own(bench: Bench) -> None:
    bench.tool()(first)
    async with bench.running():
        assert await bench.said("first", year=2026, task="mine") == "2026 1"


async def test_a_task_that_only_type_checkers_can_see_is_known_by_its_text(
    bench: Bench, tmp_path: Path
) -> None:
    module = tmp_path / "tools.py"
    module.write_text(
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from perdure import Task\n"
        "async def work(year: int, task: Task) -> str:\n"
        "    return f'{year} {task.attempt}'\n"
    )
    spec = importlib.util.spec_from_file_location("tools", module)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    bench.tool()(loaded.work)
    async with bench.running():
        assert await bench.said("work", year=2026) == "2026 1"


def test_a_decorated_function_keeps_its_name_its_words_and_itself(bench: Bench) -> None:
    durable = bench.tasks.durable()(between)
    assert (durable.__name__, durable.__doc__) == (between.__name__, between.__doc__)
    assert durable.__module__ == between.__module__
    assert inspect.unwrap(durable) is between
    assert list(inspect.signature(durable).parameters) == ["year", "title"]


async def test_a_decorated_function_can_be_tested_as_the_plain_function_that_it_was(bench: Bench) -> None:
    durable = bench.tasks.durable()(none_at_all)
    assert await inspect.unwrap(durable)("a", [2]) == [2]


@row(89)
async def test_tools_say_how_they_may_be_called_where_they_are_durable_and_only_in_2025(bench: Bench) -> None:
    bench.tool(mode="required")(first)
    bench.tool()(between)
    bench.server.add_tool(none_at_all)
    async with bench.running():
        core = (await bench.core.send("tools/list")).result["tools"]
        modern = (await bench.modern.send("tools/list")).result["tools"]
    assert {tool["name"]: tool.get("execution") for tool in core} == {
        "first": {"taskSupport": "required"},
        "between": {"taskSupport": "optional"},
        "none_at_all": None,
    }
    assert not any("execution" in tool for tool in modern)


# What is refused when it is declared


def refused(bench: Bench, function: Callable[..., Any], **options: Any) -> PerdureError:
    with pytest.raises(InvalidValue) as raised:
        bench.tasks.durable(**options)(function)
    return raised.value


async def takes_context(ctx: Context) -> None: ...
async def takes_a_context_of(year: int, ctx: Context[Any, Any]) -> None: ...
async def takes_a_context_or_not(ctx: Context | None = None) -> None: ...
async def takes_an_annotated_context(ctx: Annotated[Context[Any, Any], "ours"]) -> None: ...


@pytest.mark.parametrize(
    "function", [takes_context, takes_a_context_of, takes_a_context_or_not, takes_an_annotated_context]
)
def test_a_function_that_takes_a_context_is_refused_and_told_why(
    bench: Bench, function: Callable[..., Any]
) -> None:
    said = str(refused(bench, function))
    assert "'ctx'" in said
    assert "outside of any request" in said
    assert "Task" in said


async def takes_two(task: Task, other: Task) -> None: ...


def test_a_function_that_takes_two_tasks_is_refused(bench: Bench) -> None:
    assert "task and other" in str(refused(bench, takes_two))


DAY = 24 * 3600 * 1000


@row(88)
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mode", "sometimes"),
        ("mode", None),
        ("ttl", 0),
        ("ttl", -1),
        ("ttl", 1.5),
        ("ttl", "1h"),
        ("ttl", True),
        ("ttl", DAY + 1),
        ("ttl", None),
        ("poll_interval", 49),
        ("poll_interval", 30_001),
        ("poll_interval", "1s"),
        ("retries", -1),
        ("retries", 1.5),
        ("retries", "2"),
        ("backoff", -1.0),
        ("timeout", 0.0),
        ("concurrency", 0),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(bench: Bench, option: str, value: object) -> None:
    assert cast("Any", refused(bench, first, **{option: value})).field == option


def test_what_the_store_was_told_to_allow_is_not_refused() -> None:
    tasks = Tasks("memory:", store=StoreConfig(max_ttl_ms=None))
    tasks.durable(ttl=None)(first)
    tasks.durable(ttl=2 * DAY)(between)
    tasks.durable(ttl=UNSET, poll_interval=50, retries=0)(annotated)


def test_a_name_is_taken_once(bench: Bench) -> None:
    bench.tasks.durable()(first)
    assert "first" in str(refused(bench, first))
    assert "first" in str(refused(bench, between, name="first"))


async def test_what_was_refused_leaves_its_name_free(bench: Bench) -> None:
    for options in ({"mode": "sometimes"}, {"poll_interval": 1}, {"retries": -1}, {"ttl": -1}):
        refused(bench, first, **options)
    bench.tool()(first)
    async with bench.running():
        assert await bench.said("first", year=2026) == "2026 1"


async def test_functions_of_one_name_are_told_apart_by_the_name_they_are_given(bench: Bench) -> None:
    def namesake(number: int) -> Callable[..., Any]:
        async def work() -> int:
            return number

        return work

    bench.server.add_tool(bench.tasks.durable()(namesake(1)), name="one")
    bench.server.add_tool(bench.tasks.durable(name="work_of_two")(namesake(2)), name="two")
    async with bench.running():
        assert [await bench.said("one"), await bench.said("two")] == ["1", "2"]
        made = await bench.modern.start("two")
        stored = await bench.tasks.runtime.get(Owner.anonymous(), made)
    assert stored.task.function == "work_of_two"


@pytest.mark.parametrize("how", ["by name", "by position"])
async def test_a_durable_function_that_is_called_by_hand_says_that_it_needs_a_server(
    bench: Bench, how: str
) -> None:
    durable = bench.tasks.durable()(first)
    with pytest.raises(MCPError, match="server"):
        await (durable(year=2026) if how == "by name" else durable(2026))


# Where it runs


async def test_a_plain_function_runs_in_a_thread_and_the_server_goes_on(bench: Bench) -> None:
    go_on, threads = threading.Event(), list[threading.Thread]()

    @bench.tool()
    def block(task: Task) -> str:
        threads.append(threading.current_thread())
        anyio.from_thread.run(task.set_variables, {"is": "blocked"})
        assert go_on.wait(10)
        return f"attempt {task.attempt}"

    async with bench.running():
        task_id = await bench.modern.start("block")
        await until(lambda: bool(threads))
        assert (await bench.modern.get(task_id))["status"] == "working"
        go_on.set()
        done = await bench.end_of(task_id)
    assert text_of(done) == "attempt 1"
    assert done["_meta"]["perdure/variables"] == {"is": "blocked"}
    assert threads != [threading.main_thread()]


async def test_a_plain_function_can_look_whether_it_was_cancelled(bench: Bench) -> None:
    looked = threading.Event()

    @bench.tool()
    def work(task: Task) -> None:
        for _ in range(1000):
            task.check_cancelled()
            looked.set()
            threading.Event().wait(0.01)

    async with bench.running():
        task_id = await bench.modern.start("work")
        await until(looked.is_set)
        await bench.modern.cancel(task_id)
        assert (await bench.end_of(task_id))["status"] == "cancelled"


async def test_a_coroutine_that_is_cancelled_may_clean_up(bench: Bench) -> None:
    events: list[str] = []

    @bench.tool()
    async def work(task: Task) -> None:
        try:
            events.append("began")
            await asyncio.Event().wait()
        finally:
            await task.set_variables({"cleaned": True})

    async with bench.running():
        task_id = await bench.modern.start("work")
        await until(lambda: bool(events))
        await bench.modern.cancel(task_id)
        done = await bench.end_of(task_id)
    assert done["status"] == "cancelled"
    assert done["_meta"]["perdure/variables"] == {"cleaned": True}


IN_REQUEST: ContextVar[str] = ContextVar("in_request", default="nothing")


class Verifier:
    """Every token is that of one user."""

    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id="tests", scopes=[], subject="ada")


def behind_authentication() -> Bench:
    """A server whose requests have an environment: a token, and a variable that middleware sets."""
    here = AnyHttpUrl("http://127.0.0.1:1")
    auth = AuthSettings(issuer_url=here, resource_server_url=here, validate_token_resource=False)
    bench = Bench(auth=auth, token_verifier=Verifier())

    async def setting(ctx: Request, call_next: CallNext) -> HandlerResult:
        IN_REQUEST.set("the request's")
        return await call_next(ctx)

    bench.server.middleware.insert(0, setting)
    return bench


def environment() -> list[object]:
    token = get_access_token()
    return [IN_REQUEST.get(), token and token.subject]


async def test_a_run_sees_nothing_of_the_request_the_first_time_as_later() -> None:
    bench, seen = behind_authentication(), list[list[object]]()

    @bench.tool(retries=1, backoff=0.0)
    async def work(task: Task) -> int:
        seen.append(environment())
        if task.attempt == 1:
            raise Again("once more")
        return task.attempt

    @bench.tool()
    def in_thread() -> None:
        seen.append(environment())

    @bench.server.tool()
    async def plain() -> None:
        seen.append(environment())

    async with bench.running(token="secret"):  # noqa: S106
        await bench.modern.call("plain")
        assert await bench.said("work") == "2"
        await bench.ended("in_thread")
        await bench.core.call("work")
    assert seen == [["the request's", "ada"], *[["nothing", None]] * 5]


async def test_a_task_knows_its_id_its_owner_and_its_arguments() -> None:
    bench = behind_authentication()

    @bench.tool()
    async def work(year: int, task: Task) -> list[Any]:
        return [task.id, task.owner.subject, task.params]

    async with bench.running(token="secret"):  # noqa: S106
        done = await bench.ended("work", year=2026)
    call = {"name": "work", "arguments": {"year": 2026}}
    assert done["result"]["structuredContent"]["result"] == [done["taskId"], "ada", call]


# What it returns


class Sum(BaseModel):
    total: int
    of: list[int] = Field(alias="parts")
    note: str | None = None


class Pair(TypedDict):
    left: int
    right: int | None


def says() -> str:
    return "grüß"


def counts() -> int:
    return 7


def divides() -> float:
    return 1.5


def agrees() -> bool:
    return True


def gives_nothing() -> None:
    return None


def gives_a_model() -> Sum:
    return Sum(total=3, parts=[1, 2])


def gives_a_pair() -> Pair:
    return {"left": 1, "right": None}


def gives_a_dict() -> dict[str, int | None]:
    return {"a": 1, "b": None}


def gives_a_list() -> list[str]:
    return ["a", "b"]


def gives_models() -> list[Sum]:
    return [Sum(total=1, parts=[1])]


def says_nothing_of_what_it_gives():  # noqa: ANN201  # pyright: ignore
    return {"a": [1, None]}


def gives_content() -> list[TextContent | EmbeddedResource]:
    resource = TextResourceContents(uri="memo://1", text="x", mime_type="text/plain")
    return [TextContent(text="a"), EmbeddedResource(resource=resource)]


def gives_an_image() -> Image:
    return Image(data=b"\x89PNG", format="png")


def gives_a_whole_result() -> CallToolResult:
    return CallToolResult(
        content=[TextContent(text="x")], structured_content={"a": None}, _meta={"my/key": 1}
    )


def gives_an_error() -> CallToolResult:
    return CallToolResult(content=[TextContent(text="no")], is_error=True)


def gives_what_it_did_not_say() -> int:
    return cast("int", "many")


def raises() -> str:
    raise ValueError("secret")


def raises_for_the_model() -> str:
    raise ToolError("try a smaller number")


RETURNING = [
    says, counts, divides, agrees, gives_nothing, gives_a_model, gives_a_pair, gives_a_dict, gives_a_list,
    gives_models, says_nothing_of_what_it_gives, gives_content, gives_an_image, gives_a_whole_result,
    gives_an_error, gives_what_it_did_not_say, raises, raises_for_the_model,
]  # fmt: skip


@row(19)
@pytest.mark.parametrize("function", RETURNING, ids=lambda function: function.__name__)
async def test_a_durable_tool_returns_what_the_plain_one_does(
    bench: Bench, function: Callable[..., Any]
) -> None:
    name, plain = function.__name__, Bench()
    plain.server.add_tool(function)
    bench.tool()(function)
    async with plain.running(), bench.running():
        expected = (await plain.modern.call(name)).result
        core_expected = (await plain.core.call(name)).result
        done = await bench.ended(name)
        waited = (await bench.modern.call(name, declared=False)).result
        core_waited = (await bench.core.call(name)).result
        task_id = await bench.core.start(name)
        result = (await bench.core.send("tasks/result", {"taskId": task_id})).result
    assert done["status"] == "completed"
    assert without_metadata(done["result"]) == without_metadata(waited) == without_metadata(expected)
    assert without_metadata(core_waited) == without_metadata(result) == without_metadata(core_expected)


def without_metadata(result: Json) -> Json:
    """Less what says of which server and of which task it is; what the tool itself says stays."""
    mine = {key: value for key, value in result.get("_meta", {}).items() if key.startswith("my/")}
    return {**{key: value for key, value in result.items() if key != "_meta"}, "mine": mine}


# How it ends otherwise


async def test_an_error_of_the_protocol_fails_the_task_to_the_letter(bench: Bench) -> None:
    @bench.tool()
    async def work() -> None:
        raise MCPError(-32050, "not today", {"why": [1, None]})

    @bench.tool()
    async def without_data() -> None:
        raise MCPError(-32051, "not at all")

    async with bench.running():
        failed, bare = await bench.ended("work"), await bench.ended("without_data")
        waited = await bench.core.call("work")
    error = {"code": -32050, "message": "not today", "data": {"why": [1, None]}}
    assert (failed["status"], failed["error"], failed["statusMessage"]) == ("failed", error, "not today")
    assert waited.error == error
    assert bare["error"] == {"code": -32051, "message": "not at all"}


async def test_a_tool_may_fail_its_task_with_an_error_of_its_own(bench: Bench) -> None:
    @bench.tool(retries=3)
    async def work() -> None:
        raise Failed(-32050, "not today", {"why": None})

    async with bench.running():
        failed = await bench.ended("work")
    assert failed["error"] == {"code": -32050, "message": "not today", "data": {"why": None}}


@pytest.mark.parametrize(
    ("retries", "said"), [(0, "no luck"), (2, "no luck (attempt 3 of 3)")], ids=["none", "two"]
)
async def test_a_tool_that_wants_to_be_run_again_is_until_it_has_had_its_retries(
    bench: Bench, retries: int, said: str
) -> None:
    attempts: list[int] = []

    @bench.tool(retries=retries, backoff=0.0)
    async def work(task: Task) -> None:
        attempts.append(task.attempt)
        raise Again("no luck")

    async with bench.running():
        failed = await bench.ended("work")
    assert attempts == list(range(1, retries + 2))
    assert (failed["status"], failed["statusMessage"]) == ("failed", said)
    assert failed["error"] == {"code": -32603, "message": said}


async def test_a_tool_that_is_run_again_goes_on_from_its_variables(bench: Bench) -> None:
    @bench.tool(retries=1)
    def work(task: Task) -> str:
        if "reached" not in task.variables:
            anyio.from_thread.run(task.set_variables, {"reached": 3})
            raise Again("half way", after=0.0)
        return f"from {task.variables['reached']} after {task.last_failure}"

    async with bench.running():
        assert await bench.said("work") == "from 3 after half way"


async def test_an_exception_of_the_tool_is_no_reason_to_run_it_again(bench: Bench) -> None:
    runs: list[int] = []

    @bench.tool(retries=3)
    async def work(task: Task) -> None:
        runs.append(task.attempt)
        raise ValueError

    async with bench.running():
        done = await bench.ended("work")
    assert (done["status"], done["result"]["isError"], runs) == ("completed", True, [1])


async def test_a_tool_that_pauses_is_run_again_when_it_is_answered(bench: Bench) -> None:
    question = InputRequest(
        kind=InputKind.ELICITATION, params={"mode": "form", "message": "Who?", "requestedSchema": NAMED}
    )
    runs: list[int] = []

    @bench.tool()
    async def work(task: Task) -> str:
        runs.append(task.attempt)
        if "who" not in task.inputs:
            raise Pause({"who": question}, variables={"asked": True})
        return f"{cast('Any', task.inputs['who'].answer).values['name']} {task.variables['asked']}"

    async with bench.running():
        task_id = await bench.modern.start("work")
        asked = await bench.modern.until(task_id, "input_required")
        await bench.modern.update(task_id, {"who": ADA})
        assert text_of(await bench.end_of(task_id)) == "Ada True"
    assert asked["inputRequests"]["who"]["params"]["message"] == "Who?"
    assert runs == [1, 1]


@pytest.mark.parametrize("how", ["in a coroutine", "in a thread"])
async def test_a_tool_that_calls_exit_ends_its_task_and_not_the_server(bench: Bench, how: str) -> None:
    async def in_a_coroutine() -> None:
        raise SystemExit(3)

    def in_a_thread() -> None:
        raise SystemExit(3)

    function = in_a_coroutine if how == "in a coroutine" else in_a_thread
    bench.tool()(function)
    bench.tool()(first)
    async with bench.running():
        failed = await bench.ended(function.__name__)
        assert (failed["status"], failed["statusMessage"]) == ("failed", "the function called exit(3)")
        assert await bench.said("first", year=1) == "1 1"


async def test_a_tool_that_cancels_itself_fails_its_task(bench: Bench) -> None:
    @bench.tool()
    async def work() -> None:
        raise asyncio.CancelledError

    async with bench.running():
        failed = await bench.ended("work")
    assert (failed["status"], failed["statusMessage"]) == ("failed", "the function was cancelled from within")


async def test_a_result_that_is_too_large_fails_the_task_and_says_so(bench: Bench) -> None:
    @bench.tool()
    async def work() -> str:
        return "x" * 3_000_000

    async with bench.running():
        failed = await bench.ended("work")
    assert failed["status"] == "failed"
    assert "result" in failed["statusMessage"]


async def test_a_tool_that_takes_too_long_is_stopped_and_its_task_says_so(bench: Bench) -> None:
    begun: list[bool] = []
    cleaned: list[bool] = []

    @bench.tool(timeout=0.1)
    async def work() -> None:
        begun.append(True)
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async with bench.running():
        failed = await bench.ended("work")
    assert failed["status"] == "failed"
    assert failed["statusMessage"] == "the function took longer than 0.1 seconds"
    assert cleaned == begun  # where a busy machine takes the time away, it was stopped before it began


async def test_no_more_runs_of_a_tool_than_it_allows_are_under_way_at_once(bench: Bench) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    begun: list[int] = []

    @bench.tool(concurrency=1)
    async def work(number: int) -> int:
        begun.append(number)
        await gates[number].wait()
        return number

    async with bench.running():
        task_ids = [await bench.modern.start("work", {"number": number}) for number in range(3)]
        for count in (1, 2, 3):
            await until(lambda count=count: len(begun) == count)
            assert (await bench.modern.get(task_ids[begun[-1]]))["status"] == "working"
            assert len(begun) == count
            gates[begun[-1]].set()
        ends = [text_of(await bench.end_of(task_id)) for task_id in task_ids]
    assert ends == ["0", "1", "2"]


# What it tells and asks


async def test_what_a_tool_reports_is_the_message_and_the_progress_of_its_task(bench: Bench) -> None:
    go_on = asyncio.Event()

    @bench.tool()
    async def work(task: Task) -> str:
        await task.report("collecting", done=3, total=12)
        await go_on.wait()
        await task.report("binding", done=12.5)
        return "bound"

    async def reported(task_id: str) -> bool:
        return "statusMessage" in await bench.modern.get(task_id)

    async with bench.running():
        task_id = await bench.modern.start("work")
        await until(lambda: reported(task_id))
        working, core = await bench.modern.get(task_id), await bench.core.get(task_id)
        go_on.set()
        done = await bench.end_of(task_id)
    for seen in (working, core):
        assert (seen["status"], seen["statusMessage"]) == ("working", "collecting")
        assert seen["_meta"]["perdure/progress"] == {"done": 3, "total": 12}
    assert (done["statusMessage"], done["_meta"]["perdure/progress"]["done"]) == ("binding", 12.5)


SAMPLE: Json = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "A title?"}}],
    "maxTokens": 20,
}
SAMPLED: Json = {"role": "assistant", "content": {"type": "text", "text": "Dawn"}, "model": "m-1"}
ROOTS: Json = {"roots": [{"uri": "file:///home", "name": "home"}, {"uri": "file:///tmp"}]}


def add_curious(bench: Bench) -> None:
    @bench.tool()
    async def curious(task: Task) -> str:
        """Asks everything that can be asked."""
        person = await task.elicit("Who?", NAMED, key="who")
        title = await task.sample(SAMPLE, key="title")
        roots = await task.roots(key="roots")
        said = msgspec.json.decode(title.content)["text"]
        where = [(root.uri, root.name) for root in roots.roots]
        return json.dumps([person.action, person.values, title.role, title.model, said, where])


CURIOUS = json.dumps(
    ["accept", {"name": "Ada"}, "assistant", "m-1", "Dawn", [["file:///home", "home"], ["file:///tmp", None]]]
)


async def test_what_a_tool_asks_is_answered_in_rounds_and_typed(bench: Bench) -> None:
    add_curious(bench)
    answers = {"who": ADA, "title": SAMPLED, "roots": ROOTS}
    asked: Json = {}
    async with bench.running():
        task_id = await bench.modern.start("curious")
        for key, answer in answers.items():

            async def is_asked(key: str = key) -> bool:
                asked.update((await bench.modern.get(task_id)).get("inputRequests", {}))
                return key in asked

            await until(is_asked)
            await bench.modern.update(task_id, {key: answer})
        assert text_of(await bench.end_of(task_id)) == CURIOUS
    form = {"mode": "form", "message": "Who?", "requestedSchema": NAMED}
    assert asked == {
        "who": {"method": "elicitation/create", "params": form},
        "title": {"method": "sampling/createMessage", "params": SAMPLE},
        "roots": {"method": "roots/list"},
    }


async def test_what_a_tool_asks_reaches_a_client_without_tasks_in_rounds_of_its_call(bench: Bench) -> None:
    add_curious(bench)
    answers = {"who": ADA, "title": SAMPLED, "roots": ROOTS}
    async with bench.running():
        call: Json = {"name": "curious", "arguments": {}}
        rounds: list[list[str]] = []
        result = (await bench.modern.send("tools/call", call, declared=False)).result
        while result["resultType"] == "input_required":
            rounds.append(list(result["inputRequests"]))
            given = {key: answers[key] for key in result["inputRequests"]}
            again = {**call, "inputResponses": given, "requestState": result["requestState"]}
            result = (await bench.modern.send("tools/call", again, declared=False)).result
    assert rounds == [["who"], ["title"], ["roots"]]
    assert result["content"][0]["text"] == CURIOUS


async def test_a_tool_hears_that_somebody_would_not_answer(bench: Bench) -> None:
    @bench.tool()
    async def work(task: Task) -> str:
        answer = await task.elicit("Who?", NAMED)
        return f"{answer.action} {answer.values}"

    async with bench.running():
        task_id = await bench.modern.start("work")
        asked = await bench.modern.until(task_id, "input_required")
        await bench.modern.update(task_id, dict.fromkeys(asked["inputRequests"], NO))
        assert text_of(await bench.end_of(task_id)) == "decline {}"


# Resolvers


class Person(BaseModel):
    name: str


class Size(BaseModel):
    pages: int


def who() -> Elicit[Person]:
    return Elicit("Who is asking?", Person)


async def how_long(year: int, person: Annotated[Person, Resolve(who)]) -> Elicit[Size]:
    return Elicit(f"How long, {person.name}, for {year}?", Size)


def previous(year: int) -> int:
    return year - 1


async def with_value(year: int, before: Annotated[int, Resolve(previous)], task: Task) -> str:
    return f"{before} and {year} in attempt {task.attempt}"


async def with_answers(
    year: int,
    person: Annotated[Person, Resolve(who)],
    size: Annotated[Size, Resolve(how_long)],
    before: Annotated[int, Resolve(previous)],
) -> str:
    return f"{size.pages} pages on {before} and {year} for {person.name}"


async def with_outcome(person: Annotated[ElicitationResult[Person], Resolve(who)]) -> str:
    return person.data.name if isinstance(person, AcceptedElicitation) else f"{person.action}d"


def answer_to(request: Json) -> Json:
    is_size = "How long" in request["params"]["message"]
    return {"action": "accept", "content": {"pages": 12}} if is_size else ADA


async def test_a_resolver_that_asks_nothing_gives_its_value_to_the_run(bench: Bench) -> None:
    bench.tool()(with_value)
    async with bench.running():
        assert await bench.said("with_value", year=2026) == "2025 and 2026 in attempt 1"
        listed = (await bench.modern.send("tools/list")).result["tools"]
    assert list(listed[0]["inputSchema"]["properties"]) == ["year"]


async def test_resolvers_ask_before_there_is_a_task_and_their_answers_reach_the_run(bench: Bench) -> None:
    bench.tool()(with_answers)
    call: Json = {"name": "with_answers", "arguments": {"year": 2026}}
    messages: list[str] = []
    async with bench.running():
        result = (await bench.modern.send("tools/call", call)).result
        while result["resultType"] == "input_required":
            asked = result["inputRequests"]
            messages += [each["params"]["message"] for each in asked.values()]
            given = {key: answer_to(each) for key, each in asked.items()}
            again = {**call, "inputResponses": given, "requestState": result["requestState"]}
            result = (await bench.modern.send("tools/call", again)).result
        done = await bench.end_of(result["taskId"])
    assert messages == ["Who is asking?", "How long, Ada, for 2026?"]
    assert text_of(done) == "12 pages on 2025 and 2026 for Ada"


async def test_resolvers_ask_a_client_of_2025_on_the_stream_of_its_call(bench: Bench) -> None:
    bench.tool()(with_answers)

    async def answering(request: Json) -> Json:
        return answer_to(request)

    async with bench.running(), Core(bench.url, answering=answering) as core:
        task_id = await core.start("with_answers", {"year": 2026})
        result = (await core.send("tasks/result", {"taskId": task_id})).result
    assert [each["params"]["message"] for each in core.asked] == [
        "Who is asking?",
        "How long, Ada, for 2026?",
    ]
    assert result["content"][0]["text"] == "12 pages on 2025 and 2026 for Ada"


async def test_a_resolver_that_is_declined_ends_the_call_before_there_is_a_task(bench: Bench) -> None:
    bench.tool()(with_answers)
    call: Json = {"name": "with_answers", "arguments": {"year": 2026}}
    async with bench.running():
        asked = (await bench.modern.send("tools/call", call)).result
        given = dict.fromkeys(asked["inputRequests"], NO)
        again = {**call, "inputResponses": given, "requestState": asked["requestState"]}
        refused = (await bench.modern.send("tools/call", again)).result
    assert refused["isError"] is True
    assert "taskId" not in refused


async def test_a_tool_may_take_the_outcome_of_what_a_resolver_asked(bench: Bench) -> None:
    bench.tool()(with_outcome)
    call: Json = {"name": "with_outcome", "arguments": {}}
    async with bench.running():
        asked = (await bench.modern.send("tools/call", call)).result
        given = dict.fromkeys(asked["inputRequests"], NO)
        again = {**call, "inputResponses": given, "requestState": asked["requestState"]}
        made = (await bench.modern.send("tools/call", again)).result
        assert text_of(await bench.end_of(made["taskId"])) == "declined"


async def test_a_run_that_is_begun_again_asks_nothing_that_resolvers_asked(bench: Bench) -> None:
    @bench.tool(retries=1, backoff=0.0)
    async def work(person: Annotated[Person, Resolve(who)], task: Task) -> str:
        if task.attempt == 1:
            raise Again("once more")
        return f"{person.name} in attempt {task.attempt}"

    call: Json = {"name": "work", "arguments": {}}
    async with bench.running():
        asked = (await bench.modern.send("tools/call", call)).result
        given = dict.fromkeys(asked["inputRequests"], ADA)
        again = {**call, "inputResponses": given, "requestState": asked["requestState"]}
        made = (await bench.modern.send("tools/call", again)).result
        assert text_of(await bench.end_of(made["taskId"])) == "Ada in attempt 2"


# One durable function within another


def nested(bench: Bench, *, fails: Exception | None = None) -> Callable[..., Any]:
    @bench.tasks.durable(name="inner", retries=1, backoff=0.0)
    async def inner(number: int, task: Task) -> str:
        await task.set_variables({"inner": number})
        if fails is not None:
            raise fails
        return f"{number} of {task.id}"

    return inner


@pytest.mark.parametrize("how", ["by name", "by position"])
async def test_a_durable_function_within_another_is_part_of_its_task(bench: Bench, how: str) -> None:
    inner = nested(bench)

    @bench.tool()
    async def outer() -> str:
        return await (inner(number=2) if how == "by name" else inner(2))

    async with bench.running():
        done = await bench.ended("outer")
    assert text_of(done) == f"2 of {done['taskId']}"
    assert done["_meta"]["perdure/variables"] == {"inner": 2}


@pytest.mark.parametrize(
    "error", [ValueError("no"), Again("no"), Failed(-32050, "no"), MCPError(-32050, "no")], ids=repr
)
async def test_what_a_durable_function_raises_within_another_can_be_caught_there(
    bench: Bench, error: Exception
) -> None:
    inner = nested(bench, fails=error)

    @bench.tool()
    async def outer(task: Task) -> str:
        try:
            await inner(number=2)
        except Exception as caught:
            return f"{type(caught).__name__} in attempt {task.attempt}"
        return "nothing was raised"

    async with bench.running():
        assert await bench.said("outer") == f"{type(error).__name__} in attempt 1"


async def test_what_a_durable_function_raises_within_another_is_raised_by_both(bench: Bench) -> None:
    inner = nested(bench, fails=Again("not yet"))

    @bench.tool(retries=1, backoff=0.0)
    async def outer() -> str:
        return await inner(number=2)

    async with bench.running():
        failed = await bench.ended("outer")
    assert (failed["status"], failed["statusMessage"]) == ("failed", "not yet (attempt 2 of 2)")
