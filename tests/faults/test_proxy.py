"""The proxy does what it says, as an echo server behind it shows."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from .proxy import HOST, KINDS, Kind, Proxy

pytestmark = pytest.mark.anyio

HELLO = b"hello, how are you?"
GOODBYE = b"goodbye"
ROUNDS = 40


class Echo:
    """A server that says what it hears, and remembers it, and has the last word."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.was_reset = False
        self.was_left = asyncio.Event()

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[Proxy]:
        """A proxy before it."""
        server = await asyncio.start_server(self._answer, HOST, 0)
        async with server, Proxy(server.sockets[0].getsockname()[1]) as proxy:
            yield proxy

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                self.heard.append(data)
                writer.write(data)
                await writer.drain()
            writer.write(GOODBYE)
        except ConnectionResetError:
            self.was_reset = True
        finally:
            self.was_left.set()
            writer.close()


@pytest.fixture
def echo() -> Echo:
    return Echo()


class Line:
    """A client's connection through the proxy."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, question: bytes = HELLO) -> bytes:
        self.writer.write(question)
        return await self.reader.read(65536)


@asynccontextmanager
async def line_to(proxy: Proxy) -> AsyncGenerator[Line]:
    reader, writer = await asyncio.open_connection(HOST, proxy.port)
    try:
        yield Line(reader, writer)
    finally:
        writer.close()


async def test_what_is_said_arrives_and_so_does_the_answer(echo: Echo) -> None:
    async with echo.serving() as proxy, line_to(proxy) as line:
        assert await line.ask() == HELLO
        large = HELLO * 50_000
        line.writer.write(large)
        assert await line.reader.readexactly(len(large)) == large
        assert not proxy.met


async def test_the_end_of_one_direction_is_passed_on_and_the_answer_still_comes(echo: Echo) -> None:
    async with echo.serving() as proxy, line_to(proxy) as line:
        line.writer.write(HELLO)
        line.writer.write_eof()
        assert await line.reader.read() == HELLO + GOODBYE


async def test_a_cut_loses_the_request_and_closes_both_sides(echo: Echo) -> None:
    async with echo.serving() as proxy, line_to(proxy) as line:
        proxy.start_faults(1, ["cut"], often=1)
        assert await line.ask() == b""
        await echo.was_left.wait()
        assert echo.heard == []
        assert proxy.met == {"cut": 1}


async def test_a_tear_lets_half_of_it_through(echo: Echo) -> None:
    async with echo.serving() as proxy, line_to(proxy) as line:
        proxy.start_faults(1, ["tear"], often=1)
        await line.ask()
        await echo.was_left.wait()
        assert echo.heard == [HELLO[: len(HELLO) // 2]]


async def test_a_reset_is_one_on_both_sides(echo: Echo) -> None:
    async with echo.serving() as proxy, line_to(proxy) as line:
        await line.ask()
        proxy.start_faults(1, ["reset"], often=1)
        with pytest.raises(ConnectionResetError):
            await line.ask()
        await echo.was_left.wait()
        assert echo.was_reset
        assert echo.heard == [HELLO]


async def test_a_half_close_ends_one_direction_only(echo: Echo) -> None:
    async with echo.serving() as proxy, line_to(proxy) as line:
        await line.ask()
        proxy.start_faults(1, ["half-close"], often=1)
        line.writer.write(HELLO)
        await echo.was_left.wait()
        proxy.stop_faults()
        assert await line.reader.read() == GOODBYE
        assert echo.heard == [HELLO]
        assert proxy.met == {"half-close": 1}


async def test_a_swallowed_answer_was_given_but_never_comes(echo: Echo) -> None:
    async with echo.serving() as proxy, line_to(proxy) as line:
        proxy.start_faults(1, ["swallow"], often=1)
        assert await line.ask() == b""
        assert echo.heard == [HELLO]
        assert proxy.met["swallow"] == 1


async def test_what_is_delayed_arrives_whole(echo: Echo) -> None:
    async with echo.serving() as proxy, line_to(proxy) as line:
        proxy.start_faults(1, ["delay"], often=1)
        assert await line.ask() == HELLO
        assert proxy.met == {"delay": 2}


async def test_new_connections_are_refused_and_open_ones_stay(echo: Echo) -> None:
    async with echo.serving() as proxy, line_to(proxy) as line:
        await line.ask()
        proxy.refuse(0.2)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HOST, proxy.port)
        assert await line.ask() == HELLO
        while not await is_let_in(proxy):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


async def is_let_in(proxy: Proxy) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, proxy.port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


async def test_once_calm_it_forwards_again(echo: Echo) -> None:
    async with echo.serving() as proxy:
        proxy.start_faults(1, ["cut"], often=1)
        async with line_to(proxy) as line:
            assert await line.ask() == b""
        proxy.stop_faults()
        async with line_to(proxy) as line:
            assert await line.ask() == HELLO


async def test_where_no_server_is_the_client_is_reset() -> None:
    async with Proxy(target=1) as proxy, line_to(proxy) as line:
        with pytest.raises(ConnectionResetError):
            await line.ask()


async def test_one_seed_is_one_plan_and_another_is_another(echo: Echo) -> None:
    first = await fates(seed=7)
    assert await fates(seed=7) == first
    assert await fates(seed=8) != first


async def test_every_kind_is_done_in_the_long_run(echo: Echo) -> None:
    async with echo.serving() as proxy:
        proxy.start_faults(3, often=0.5)
        while proxy.met.keys() < {*KINDS}:
            await one_round(proxy)


async def fates(seed: int, kinds: Sequence[Kind] = ("cut", "reset", "tear")) -> list[bool]:
    """Whether each of some conversations of one question goes well."""
    async with Echo().serving() as proxy:
        proxy.start_faults(seed, kinds, often=0.5)
        return [await one_round(proxy) for _ in range(ROUNDS)]


async def one_round(proxy: Proxy) -> bool:
    try:
        async with line_to(proxy) as line:
            return await line.ask() == HELLO
    except ConnectionError:
        return False
