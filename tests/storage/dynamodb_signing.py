"""A driver's client and a sender to compare with each other, and a server that records what they send."""

from __future__ import annotations

import asyncio
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias, cast
from uuid import uuid4

from aiobotocore.config import AioConfig  # pyright: ignore[reportMissingTypeStubs]
from aiobotocore.credentials import AioRefreshableCredentials  # pyright: ignore[reportMissingTypeStubs]
from aiobotocore.session import AioSession  # pyright: ignore[reportMissingTypeStubs]
from botocore.loaders import Loader  # pyright: ignore[reportMissingTypeStubs]

from perdure.storage.dynamodb.errors import DRIVER_ERRORS
from perdure.storage.dynamodb.request_signer import Sender
from perdure.storage.kit.servers import CREDENTIALS
from perdure.storage.kit.servers.dynamodb import REGION

from .dynamodb_helpers import TEST_TIMEOUT, client_of

TABLE = "perdure-sending"
MODELS = Loader()
"""The service models, which are loaded once for all clients."""
GOOD = (CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"], "")


class Pair:
    """A client of the driver, and a sender with signing contexts from its requests."""

    def __init__(self, db: Any, sender: Sender, table: str) -> None:  # noqa: ANN401 - typed by another package
        self.db = db
        self.sender = sender
        self.table = table
        self.driven = 0
        db.meta.events.register("before-send.dynamodb", self._count)

    def _count(self, **_: object) -> None:
        self.driven += 1

    async def by_driver(self, operation: str, question: Mapping[str, Any]) -> object:
        return await outcome_of(getattr(self.db, operation)(**question))

    async def by_sender(self, operation: str, question: Mapping[str, Any]) -> object:
        """Return the outcome of a request. Fail if the driver sent it."""
        before = self.driven
        outcome = await outcome_of(self.sender.send(operation, question))
        assert self.driven == before
        return outcome

    async def put(self, key: str = "k") -> object:
        question = {"TableName": self.table, "Item": item(key)}
        return await self.sender.send("put_item", question)

    async def learn_to_put(self) -> None:
        await self.put()
        assert await self.by_sender("put_item", {"TableName": self.table, "Item": item("k")}) == {}


class Refusal(NamedTuple):
    kind: str
    operation: str
    status: int
    response: Mapping[str, Any]


async def outcome_of(asking: Any) -> object:  # noqa: ANN401 - an awaitable of the driver's
    """Return a response or an error of DynamoDB, without the metadata of the request."""
    try:
        answer = await asking
    except DRIVER_ERRORS as error:
        response = cast("Any", error).response
        status = response["ResponseMetadata"]["HTTPStatusCode"]
        rest = {name: value for name, value in response.items() if name != "ResponseMetadata"}
        return Refusal(type(error).__name__, cast("Any", error).operation_name, status, rest)
    return {name: value for name, value in answer.items() if name != "ResponseMetadata"}


class Rotating:
    """A source of credentials that tests can change."""

    def __init__(self) -> None:
        self.now: tuple[str, str, str] = GOOD

    async def load_credentials(self) -> object:
        create = cast("Any", AioRefreshableCredentials).create_from_metadata
        return create(self._metadata(), self._renew, "rotating")

    async def _renew(self) -> dict[str, str]:
        return self._metadata()

    def _metadata(self) -> dict[str, str]:
        """Return credentials with so short a lifetime that they are renewed each time."""
        access_key, secret_key, token = self.now
        until = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
        return {"access_key": access_key, "secret_key": secret_key, "token": token, "expiry_time": until}


@asynccontextmanager
async def pair_on(
    endpoint: str,
    *,
    source: Rotating | None = None,
    driver_timeout: float = TEST_TIMEOUT,
    connections: int = 10,
) -> AsyncGenerator[Pair]:
    """Create a pair like the engine does, with a new table."""
    sender = Sender()
    config = AioConfig(
        connect_timeout=driver_timeout,
        read_timeout=driver_timeout,
        max_pool_connections=connections,
        parameter_validation=False,
        retries={"total_max_attempts": 1, "mode": "standard"},
        http_session_cls=sender.http_session_cls,
    )
    session = cast("Any", AioSession())
    session.register_component("data_loader", MODELS)
    if source is not None:
        session.register_component("credential_provider", source)
    async with session.create_client(
        "dynamodb", region_name=REGION, endpoint_url=endpoint, config=config
    ) as db:
        sender.start(db, await session.get_credentials())
        async with client_of(endpoint) if driver_timeout < TEST_TIMEOUT else nullcontext(db) as maker:
            table = await new_table(maker)
        yield Pair(db, sender, table)


async def new_table(db: Any) -> str:  # noqa: ANN401
    name = f"{TABLE}-{uuid4().hex}"
    await db.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in ("pk", "sk")],
        KeySchema=[
            {"AttributeName": "pk", "KeyType": "HASH"},
            {"AttributeName": "sk", "KeyType": "RANGE"},
        ],
    )
    async with asyncio.timeout(TEST_TIMEOUT):
        while (await db.describe_table(TableName=name))["Table"]["TableStatus"] != "ACTIVE":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return name


def item_key(key: str) -> dict[str, Any]:
    return {"pk": {"S": "p"}, "sk": {"S": key}}


def item(key: str, body: str = "{}") -> dict[str, Any]:
    return {**item_key(key), "body": {"S": body}, "version": {"N": "1"}}


# A front: a server that forwards to the real one

Bend: TypeAlias = Callable[[bytes, bytes], bytes]
"""A function that returns the bytes to send instead of the head and body of a response."""


class Front:
    """Forwards requests unchanged, and responses through `bend`. It also works as an HTTP proxy."""

    def __init__(self, port: int) -> None:
        self.heads: list[str] = []
        self.bend: Bend = lambda head, body: head + body
        self.open = 0
        self.port = 0
        self._to = port

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._to)
        self.open += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head, body = await self._read(reader)
                    self.heads.append(head.decode())
                    to_server.write(_with_path_only(head) + body)
                    writer.write(self.bend(*await self._read(from_server)))
        finally:
            self.open -= 1
            writer.close()
            to_server.close()

    async def _read(self, reader: StreamReader) -> tuple[bytes, bytes]:
        head = await reader.readuntil(b"\r\n\r\n")
        return head, await reader.readexactly(int(header(head.decode(), "content-length")))


def _with_path_only(head: bytes) -> bytes:
    """Replace the address, which a proxy receives, by the path, which a server expects."""
    line, _, rest = head.partition(b"\r\n")
    method, target, version = line.split(b" ")
    return (
        b" ".join([method, b"/" + target.partition(b"://")[2].partition(b"/")[2], version]) + b"\r\n" + rest
    )


def header(head: str, name: str) -> str:
    pairs = (line.partition(":") for line in head.split("\r\n"))
    return next((value.strip() for key, _, value in pairs if key.lower() == name), "")


@asynccontextmanager
async def front_of(port: int, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Front]:
    front = Front(port)
    server = await asyncio.start_server(front.serve, "127.0.0.1", 0, limit=2**24, ssl=tls)
    front.port = server.sockets[0].getsockname()[1]
    try:
        yield front
    finally:
        server.close()
