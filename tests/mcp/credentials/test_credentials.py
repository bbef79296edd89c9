"""Tools read the access token and the headers of their caller, though they run outside of its request."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastmcp.server.auth import TokenVerifier
from mcp.client import Client
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer, Resolve
from pydantic import AnyHttpUrl

from perdure import Tasks, current_task
from perdure.mcp.client import ClientTasks
from perdure.runtime.errors import CredentialsNotStored
from perdure.tasks import NewTask, Owner, Snapshot
from perdure.tasks.encryption import new_key
from perdure.tasks.errors import InvalidValue
from perdure.tasks.task_snapshot import TASKS

from ...markers import row
from ..durable.tool_server import text_of
from ..raw_clients import Json, serving
from ..tokens import TokenClient2025, TokenClient2026
from ..tool_helpers import FAST_CONFIG
from .servers import FRAMEWORKS, ISSUER, CredentialServer, Framework, Verifier, claims_of

pytestmark = pytest.mark.anyio

KEY = new_key()
ADA = "ada"
HIDDEN = "a-secret-token"
ODD = "odd"
GENERATIONS = [TokenClient2026, TokenClient2025]
both_frameworks = pytest.mark.parametrize("framework", FRAMEWORKS)
both_generations = pytest.mark.parametrize("generation", GENERATIONS)


def make(
    framework: Framework, *, keys: Sequence[str] = (KEY,), authenticated: bool = True, **options: Any
) -> CredentialServer:
    given: Any = {"runtime": FAST_CONFIG, "encryption_keys": keys, **options}
    return CredentialServer(framework, "memory:", authenticated=authenticated, **given)


@asynccontextmanager
async def called(
    bench: CredentialServer,
    generation: type[TokenClient2026 | TokenClient2025] = TokenClient2026,
    token: str | None = ADA,
    **headers: str,
) -> AsyncGenerator[TokenClient2026 | TokenClient2025]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with serving(bench.app()) as url, generation(url, token, headers=sent) as client:
        yield client


async def ended(client: TokenClient2026 | TokenClient2025, tool: str) -> Json:
    task_id = await client.start(tool)
    task = await client.until(task_id, "completed", "failed")
    if isinstance(client, TokenClient2025):
        result = (await client.send("tasks/result", {"taskId": task_id})).result
        return {**task, "status": "completed", "result": result}
    return task


async def said(client: TokenClient2026 | TokenClient2025, tool: str) -> Any:
    return json.loads(text_of(await ended(client, tool)))


@row(122)
@both_frameworks
@both_generations
@pytest.mark.parametrize("tool", ["whoami", "whoami_in_a_thread"])
async def test_a_tool_reads_the_token_of_its_caller(
    framework: Framework, generation: type[TokenClient2026], tool: str
) -> None:
    async with called(make(framework), generation) as client:
        token = await said(client, tool)
    if framework == "fastmcp":
        assert token.pop("original_client_id") == "original"  # which only its own class has
    assert token == {**claims_of("ada"), "resource": None}


@row(122)
@both_generations
async def test_a_tool_of_a_low_level_server_reads_the_token_and_the_headers(
    generation: type[TokenClient2026],
) -> None:
    tasks = Tasks("memory:", encryption_keys=[KEY])

    @tasks.durable
    async def whoami(ctx: Context) -> str:
        token = get_access_token()
        assert token is not None
        return json.dumps([token.model_dump(), dict(ctx.headers or {})])

    server = Server[Any]("low")
    tasks.install(server, authenticated=True)
    settings = AuthSettings(issuer_url=AnyHttpUrl(ISSUER), resource_server_url=None)
    app = server.streamable_http_app(auth=settings, token_verifier=Verifier())
    async with serving(app) as url, generation(url, ADA) as client:
        token, headers = await said(client, "whoami")
    assert token == {**claims_of("ada"), "resource": None}
    assert headers == {"authorization": "Bearer ada"}


@row(122)
@both_frameworks
@both_generations
async def test_a_tool_reads_the_headers_on_the_list_and_no_others(
    framework: Framework, generation: type[TokenClient2026]
) -> None:
    sent = {"X_Request_Id": "r1", "X_Tenant": "acme", "Cookie": "session=secret", "X_Other": "o"}
    async with called(make(framework), generation, **sent) as client:
        assert await said(client, "headers") == {"authorization": "Bearer ada", "x-request-id": "r1"}
    async with called(make(framework, stored_headers=["X-Tenant"]), generation, **sent) as client:
        assert await said(client, "headers") == {"x-tenant": "acme"}


@row(122)
@both_frameworks
async def test_without_a_key_the_accessors_say_what_to_do(
    framework: Framework, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(framework, keys=())
    async with called(bench) as client:
        for tool in ("whoami", "whoami_in_a_thread", "headers"):
            caplog.clear()
            task = await ended(client, tool)
            assert task["result"]["isError"]
            assert "set PERDURE_ENCRYPTION_KEY to a key from `perdure key`" in caplog.text, tool
            assert CredentialsNotStored.__name__ in caplog.text
        records = await bench.tasks.runtime.store.storage.page(TASKS, limit=10, now=0)
        assert len(records) == 3
        assert all("Bearer" not in record.body and "only:ada" not in record.body for record in records)


@row(122)
@both_frameworks
@pytest.mark.parametrize(
    ("keys", "authenticated", "lines"), [((), True, 1), ((KEY,), True, 0), ((), False, 0)]
)
async def test_a_server_with_authentication_and_no_key_says_at_its_start_what_to_do(
    framework: Framework,
    caplog: pytest.LogCaptureFixture,
    keys: Sequence[str],
    authenticated: bool,  # noqa: FBT001
    lines: int,
) -> None:
    caplog.set_level(logging.INFO, "perdure")
    async with called(make(framework, keys=keys, authenticated=authenticated)):
        pass
    assert caplog.text.count("without an encryption key, tools cannot read the access token") == lines


@row(122)
@both_frameworks
async def test_an_expired_token_is_not_returned(framework: Framework) -> None:
    token = f"ada@{int(time.time()) + 2}"
    async with called(make(framework), token=token) as client:
        assert text_of(await ended(client, "until_expired")) == f"{token}, then none"


@row(122)
@both_frameworks
async def test_the_header_with_an_expired_token_is_not_returned(framework: Framework) -> None:
    token = f"ada@{int(time.time()) + 2}"
    async with called(make(framework), token=token, X_Request_Id="r1") as client:
        assert await said(client, "headers_after_expiry") == {"x-request-id": "r1"}


@row(122)
@both_frameworks
async def test_a_task_does_not_show_the_token_which_may_have_expired(framework: Framework) -> None:
    bench, token = make(framework), f"ada@{2**33}"

    @bench.tool()
    async def attributes() -> str:
        task = current_task()
        names = [name for name in dir(task) if not name.startswith("_")]
        return json.dumps({name: repr(getattr(task, name)) for name in names})

    async with called(bench, token=token) as client:
        shown = await said(client, "attributes")
    assert "arguments" in shown
    assert [name for name, text in shown.items() if token in text] == []


@row(122)
@both_frameworks
@pytest.mark.parametrize("keys", [(KEY,), ()], ids=["key", "no_key"])
async def test_a_caller_without_credentials_has_none(framework: Framework, keys: Sequence[str]) -> None:
    bench = make(framework, keys=keys, authenticated=False)
    async with called(bench, token=None) as client:
        assert await said(client, "whoami") is None
        assert await said(client, "headers") == (None if framework == "sdk" else {})
        records = await bench.tasks.runtime.store.storage.page(TASKS, limit=10, now=0)
        assert [Snapshot.head_of(record).task.ciphertexts for record in records] == [{}, {}]


@row(122)
@both_frameworks
async def test_without_a_key_the_id_of_a_request_is_not_missed(framework: Framework) -> None:
    bench = make(framework, keys=(), authenticated=False)
    async with called(bench, token=None, X_Request_Id="r1") as client:
        assert await said(client, "headers") == (None if framework == "sdk" else {})


@row(122)
@both_frameworks
@pytest.mark.parametrize("header", ["authorization", "x-tenant", "x-api-key"])
async def test_without_a_key_any_other_header_on_the_list_is_missed(
    framework: Framework, header: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(framework, keys=(), authenticated=False, stored_headers=["x-request-id", header])
    async with called(bench, TokenClient2026, None, **{"x-request-id": "r1", header: HIDDEN}) as client:
        assert (await ended(client, "headers"))["result"]["isError"]
        assert "set PERDURE_ENCRYPTION_KEY to a key from `perdure key`" in caplog.text
        records = await bench.tasks.runtime.store.storage.page(TASKS, limit=10, now=0)
        assert [HIDDEN in record.body for record in records] == [False]


@row(122)
@both_frameworks
async def test_a_caller_without_a_token_can_have_headers(framework: Framework) -> None:
    async with called(make(framework, authenticated=False), token=None, X_Request_Id="r1") as client:
        assert await said(client, "headers") == {"x-request-id": "r1"}
        assert await said(client, "whoami") is None


@row(122)
@both_frameworks
async def test_the_tokens_of_two_callers_are_not_mixed_up(framework: Framework) -> None:
    bench = make(framework)
    bench.go_on.clear()
    async with (
        serving(bench.app()) as url,
        TokenClient2026(url, "ada") as ada,
        TokenClient2026(url, "bob") as bob,
    ):
        ids = [(client, await client.start("whoami")) for client in (ada, bob) * 5]
        bench.go_on.set()
        tokens = [json.loads(text_of(await client.until(task, "completed")))["token"] for client, task in ids]
    assert tokens == ["ada", "bob"] * 5


class PlainVerifier(TokenVerifier):
    """Returns tokens of the SDK's class, without claims, to FastMCP."""

    async def verify_token(self, token: str) -> Any:
        return AccessToken(token=token, client_id="some-client", scopes=[])


@row(122)
async def test_a_token_of_the_sdk_is_read_by_a_tool_of_fastmcp() -> None:
    options: Any = {"runtime": FAST_CONFIG, "encryption_keys": [KEY]}
    bench = CredentialServer("fastmcp", "memory:", fast_verifier=PlainVerifier(), **options)
    async with called(bench) as client:
        token = await said(client, "whoami")
    assert (token["token"], token["claims"]) == (ADA, {})


@row(122)
async def test_a_stored_token_that_does_not_fit_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    bench = make("sdk")
    async with called(bench) as client:
        call: Json = {"name": "whoami", "arguments": {}}
        new = NewTask(
            method="tools/call", function="whoami", params=call, credentials={"token": {"token": [HIDDEN]}}
        )
        made = await bench.tasks.runtime.create(Owner.user(ISSUER, "ada"), new)
        ended = await client.until(made.task.task_id, "completed", "failed")
    assert (
        "the access token that was stored with the task is not a valid AccessToken"
        in ended["error"]["message"]
    )
    assert HIDDEN not in caplog.text + str(ended)


@row(122)
async def test_credentials_are_deleted_when_the_task_ends() -> None:
    bench = make("sdk")
    bench.go_on.clear()
    async with called(bench) as client:
        task_id = await client.start("whoami")
        store, owner = bench.tasks.runtime.store, Owner.user(ISSUER, "ada")
        record = (await store.get(owner, task_id)).record
        assert "Bearer" not in record.body
        assert Snapshot.head_of(record).task.ciphertexts.keys() == {"credentials"}
        bench.go_on.set()
        await client.until(task_id, "completed")
        assert "ciphertexts" not in (await store.get(owner, task_id)).record.body


def scopes(ctx: Context) -> list[str]:
    token = get_access_token()
    assert token is not None
    assert (ctx.headers or {})["authorization"] == "Bearer ada"
    return token.scopes


@row(122)
@both_generations
async def test_a_resolver_reads_the_token_too(generation: type[TokenClient2026]) -> None:
    """At 2025-11-25 it runs in the task, and at 2026-07-28 both in the request and in the task."""
    bench = make("sdk")

    @bench.tool()
    async def with_scopes(granted: Annotated[list[str], Resolve(scopes)]) -> str:
        return json.dumps(granted)

    async with called(bench, generation) as client:
        assert await said(client, "with_scopes") == ["read", "only:ada"]


@row(122)
@pytest.mark.parametrize("keys", [(KEY,), ()], ids=["key", "no_key"])
async def test_a_client_in_the_same_process_has_no_credentials(keys: Sequence[str]) -> None:
    bench, tasks = make("sdk", keys=keys), ClientTasks()
    async with Client(bench.server, extensions=[tasks]) as client:  # pyright: ignore[reportArgumentType]
        result = await tasks.call(client, "whoami")
    assert text_of({"status": "completed", "result": result.model_dump(by_alias=True)}) == "null"


async def test_a_task_without_credentials_can_call_its_own_server() -> None:
    """The call within the tool is identified without the credentials that were not stored."""
    bench = make("sdk", keys=())

    @bench.tool()
    async def nested() -> str:
        tasks = ClientTasks()
        async with Client(bench.server, extensions=[tasks]) as client:  # pyright: ignore[reportArgumentType]
            return str((await tasks.call(client, "quick")).is_error)

    @bench.tool()
    async def quick() -> str:
        return "quick"

    async with called(bench) as client:
        assert text_of(await ended(client, "nested")) == "False"


@pytest.mark.parametrize("names", [["cookie"], ["X-Tenant", "COOKIE"], ["Set-Cookie"], "authorization"])
def test_cookies_are_never_stored(names: Any) -> None:
    with pytest.raises(InvalidValue, match="stored_headers: must"):
        Tasks("memory:", stored_headers=names)


@row(122)
async def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEY", f"{KEY}, {new_key()}")
    bench = CredentialServer("sdk", "memory:", runtime=FAST_CONFIG, encrypt="everything")
    async with called(bench) as client:
        assert (await said(client, "whoami"))["token"] == ADA
        assert len(bench.tasks.runtime.store.keys.key_ids) == 2
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEY", "nonsense")
    with pytest.raises(InvalidValue, match="key 1 is not a valid perdure key"):
        Tasks("memory:")
    monkeypatch.delenv("PERDURE_ENCRYPTION_KEY")
    with pytest.raises(InvalidValue, match="'everything' needs a key"):
        Tasks("memory:", encrypt="everything")


class OddVerifier(TokenVerifier):
    """Returns tokens with a claim that is not JSON, or with scopes of another type."""

    async def verify_token(self, token: str) -> Any:
        claims: Json = {"iss": ISSUER, "user": object()} if token == ODD else {"iss": ISSUER}
        found = AccessToken(
            token=token, client_id="some-client", scopes=[HIDDEN], subject="ada", claims=claims
        )
        return found if token == ODD else found.model_copy(update={"scopes": (HIDDEN,)})


@asynccontextmanager
async def with_odd_tokens(keys: Sequence[str], token: str) -> AsyncGenerator[TokenClient2026]:
    """Yield a client of a server whose verifier is odd, and whose durable tool is `nap`."""
    tasks = Tasks("memory:", runtime=FAST_CONFIG, encryption_keys=keys)
    auth = AuthSettings(issuer_url=AnyHttpUrl(ISSUER), resource_server_url=None)
    server = MCPServer("odd", token_verifier=OddVerifier(), auth=auth, **tasks.attach())

    @server.tool()
    @tasks.durable
    async def nap() -> str:
        return "slept"

    async with serving(server.streamable_http_app()) as url, TokenClient2026(url, token) as client:
        yield client


@row(122)
@pytest.mark.parametrize("keys", [(KEY,), ()], ids=["key", "no_key"])
async def test_a_claim_that_is_not_json_matters_only_if_it_must_be_stored(keys: Sequence[str]) -> None:
    async with with_odd_tokens(keys, ODD) as client:
        if not keys:
            assert text_of(await ended(client, "nap")) == "slept"
            return
        refused = await client.call("nap")
    assert "has a claim that is not JSON" in refused.error["message"]
    assert HIDDEN not in str(refused.message)


@row(122)
async def test_a_token_that_is_stored_appears_in_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    async with with_odd_tokens([KEY], ADA) as client:
        assert text_of(await ended(client, "nap")) == "slept"
    assert [each for each in recwarn if HIDDEN in str(each.message)] == []


@row(122)
async def test_the_headers_of_a_task_are_read_like_those_of_a_request() -> None:
    bench = make("sdk")

    @bench.tool()
    async def read(ctx: Context) -> str:
        request: Any = ctx.request_context.request
        return json.dumps([request.headers.getlist("Authorization"), request.cookies])

    async with called(bench, Cookie="session=secret") as client:
        assert await said(client, "read") == [["Bearer ada"], {}]
