"""The sender's connections: they are opened, fail and are closed like those of the driver."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import HTTPClientError  # pyright: ignore[reportMissingTypeStubs]

from perdure.storage.dynamodb.errors import DRIVER_ERRORS, is_transient, may_have_been_applied
from perdure.storage.kit.servers import Dynoxide

from .. import servers
from ..certificates import certified
from .dynamodb_helpers import TEST_TIMEOUT
from .dynamodb_proxy import Loss, proxy_to
from .dynamodb_signing import Bend, Pair, front_of, item, pair_on

pytestmark = pytest.mark.anyio


class Outcome(NamedTuple):
    kind: str
    may_have_been_applied: bool
    is_transient: bool


async def failure_of(asking: Any) -> Outcome:  # noqa: ANN401
    async with asyncio.timeout(TEST_TIMEOUT):
        with pytest.raises(DRIVER_ERRORS) as raised:
            await asking
    error = raised.value
    return Outcome(type(error).__name__, may_have_been_applied(error), is_transient(error))


# Certificates and proxies


async def test_the_certificates_of_the_environment_are_believed_and_no_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = certified(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    async with front_of(servers.extenddb().port, tls) as front:
        endpoint = f"https://localhost:{front.port}"
        with pytest.raises(DRIVER_ERRORS, match="CERTIFICATE_VERIFY_FAILED"):
            async with pair_on(endpoint):
                pass
        monkeypatch.setenv("AWS_CA_BUNDLE", str(file))
        async with pair_on(endpoint) as pair:
            await pair.learn_to_put()


async def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    server = servers.extenddb()
    async with front_of(server.port) as front:
        for name in ("no_proxy", "NO_PROXY", "http_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{front.port}")
        async with pair_on(f"http://localhost:{server.port}") as pair:
            await pair.learn_to_put()
            front.heads.clear()
            await pair.put()
            assert [head.split()[1] for head in front.heads] == [f"http://localhost:{server.port}/"]


# Damaged responses


def rewritten(head: bytes, body: bytes, more: bytes = b"") -> bytes:
    first, *rest = head.strip().split(b"\r\n")
    kept = [line for line in rest if not line.lower().startswith((b"content-length", b"x-amz-crc32"))]
    return b"\r\n".join(
        [first, *kept, b"Content-Length: %d" % len(body), *([more] if more else []), b"", body]
    )


DAMAGES: Mapping[str, Bend] = {
    "checksum": lambda head, body: rewritten(head, body, b"x-amz-crc32: 1"),
    "page": lambda head, _: rewritten(head, b"<html>a page of a proxy</html>"),
    "list": lambda head, _: rewritten(head, b"[]"),
    "cut": lambda head, body: rewritten(head, body[:-1]),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_answer_is_a_lost_answer(damage: str) -> None:
    async with front_of(servers.dynoxide().port) as front, pair_on(f"http://127.0.0.1:{front.port}") as pair:
        await pair.learn_to_put()
        front.bend = DAMAGES[damage]
        with pytest.raises(DRIVER_ERRORS) as raised:
            await pair.put()
        assert may_have_been_applied(raised.value)


async def test_the_drivers_own_requests_have_their_checksums_compared_too() -> None:
    async with front_of(servers.dynoxide().port) as front, pair_on(f"http://127.0.0.1:{front.port}") as pair:
        front.bend = DAMAGES["checksum"]
        failure = await failure_of(pair.db.put_item(TableName=pair.table, Item=item("k")))
        assert failure == Outcome("ResponseParserError", may_have_been_applied=True, is_transient=True)


async def test_a_checksum_that_is_right_is_accepted() -> None:
    async with front_of(servers.dynoxide().port) as front, pair_on(f"http://127.0.0.1:{front.port}") as pair:
        await pair.learn_to_put()
        front.bend = lambda head, _: rewritten(head, b"{}", b"x-amz-crc32: 2745614147")
        assert await pair.put() == {}


# Failed requests


async def learned_at_last(pair: Pair) -> None:
    """Let the sender derive a signing context. With a short timeout, this may take several attempts."""
    async with asyncio.timeout(TEST_TIMEOUT):
        while True:
            with suppress(*DRIVER_ERRORS):
                await pair.put()
                return


async def both_fail(pair: Pair) -> Outcome:
    """Return how a request of the driver fails, and check that the sender's request fails in the same way."""
    question = {"TableName": pair.table, "Item": item("k")}
    failure = await failure_of(pair.db.put_item(**question))
    driven = pair.driven
    assert await failure_of(pair.sender.send("put_item", question)) == failure
    assert pair.driven == driven
    return failure


@pytest.mark.parametrize("loss", Loss)
async def test_a_cut_connection_is_a_lost_answer(loss: Loss) -> None:
    async with proxy_to(servers.dynoxide().port) as proxy, pair_on(proxy.endpoint) as pair:
        await pair.learn_to_put()
        proxy.fail("PutItem", loss, loss)
        assert await both_fail(pair) == Outcome(
            "ConnectionClosedError", may_have_been_applied=True, is_transient=True
        )


async def test_a_server_that_stalls_has_lost_the_answer_and_one_that_is_gone_was_sent_nothing() -> None:
    with Dynoxide() as server:
        servers.dynoxide()  # sets the credentials
        async with pair_on(server.endpoint, driver_timeout=1) as pair:
            await learned_at_last(pair)
            server.pause()
            stalled = await both_fail(pair)
            server.resume()
            assert stalled == Outcome("ReadTimeoutError", may_have_been_applied=True, is_transient=True)
            server.kill()
            await failure_of(pair.put())  # on a connection that was open before
            gone = await both_fail(pair)
            assert gone == Outcome("EndpointConnectionError", may_have_been_applied=False, is_transient=True)
            with full(server.port):
                full_up = await both_fail(pair)
            assert full_up == Outcome("ConnectTimeoutError", may_have_been_applied=False, is_transient=True)


async def test_a_server_that_takes_no_more_of_a_large_request_has_lost_the_answer() -> None:
    with Dynoxide() as server:
        servers.dynoxide()  # sets the credentials
        async with pair_on(server.endpoint, driver_timeout=1) as pair:
            await learned_at_last(pair)
            server.pause()
            more_than_the_system_buffers = {"TableName": pair.table, "Item": item("k", "x" * 30_000_000)}
            failure = await failure_of(pair.sender.send("put_item", more_than_the_system_buffers))
            server.kill()
            assert failure == Outcome("ReadTimeoutError", may_have_been_applied=True, is_transient=True)


@contextmanager
def full(port: int) -> Generator[None]:
    """Listen on a port without accepting connections, with a backlog that is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)  # noqa: FBT003
            waiting.connect_ex(("127.0.0.1", port))
        yield


# Callers that stop waiting


async def test_a_caller_that_stops_waiting_leaves_the_only_connection_usable() -> None:
    async with pair_on(servers.dynoxide().endpoint, connections=1) as pair:
        await pair.learn_to_put()
        for turns in range(12):
            task = asyncio.create_task(pair.put("cancelled"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            async with asyncio.timeout(TEST_TIMEOUT):
                assert await pair.put() == {}


async def test_closing_the_client_ends_every_connection() -> None:
    async with front_of(servers.dynoxide().port) as front:
        async with pair_on(f"http://127.0.0.1:{front.port}", connections=5) as pair:
            await pair.learn_to_put()
            await asyncio.gather(*[pair.put(str(number)) for number in range(20)])
            assert 0 < front.open <= 5
        async with asyncio.timeout(TEST_TIMEOUT):
            while front.open:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
        with pytest.raises(HTTPClientError):
            await pair.put()
        assert front.open == 0
