"""The short way of requests: the same bytes signed the same way, the same answers, the same errors."""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import pytest
from aiobotocore.config import AioConfig  # pyright: ignore[reportMissingTypeStubs]
from aiobotocore.credentials import AioRefreshableCredentials  # pyright: ignore[reportMissingTypeStubs]
from aiobotocore.session import AioSession  # pyright: ignore[reportMissingTypeStubs]
from botocore.auth import SigV4Auth  # pyright: ignore[reportMissingTypeStubs]
from botocore.awsrequest import AWSRequest  # pyright: ignore[reportMissingTypeStubs]
from botocore.credentials import ReadOnlyCredentials  # pyright: ignore[reportMissingTypeStubs]
from botocore.exceptions import HTTPClientError  # pyright: ignore[reportMissingTypeStubs]
from botocore.loaders import Loader  # pyright: ignore[reportMissingTypeStubs]
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from perdure.storage.dynamodb.failures import DriverError, is_lost, is_passing
from perdure.storage.dynamodb.sending import Keys, Sender, Way, learned
from perdure.storage.kit.servers import CREDENTIALS, Dynoxide
from perdure.storage.kit.servers.dynamodb import REGION

from .. import servers
from .dynamodb_helpers import PATIENCE, client_of
from .dynamodb_proxy import Error, Fault, Loss, conflict, proxy_to

pytestmark = pytest.mark.anyio

TABLE = "perdure-sending"
TARGET = "DynamoDB_20120810.PutItem"
MODELS = Loader()
"""Read once for all clients."""
STAMP = "%Y%m%dT%H%M%SZ"
GOOD = (CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"], "")
SERVERS = pytest.mark.parametrize("start", [servers.dynoxide, servers.extenddb], ids=["dynoxide", "extenddb"])


class Pair:
    """A client of the driver, and the sender that has learned from it."""

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
        """Fails if it went the long way."""
        before = self.driven
        outcome = await outcome_of(self.sender.ask(operation, question))
        assert self.driven == before
        return outcome

    async def put(self, key: str = "k") -> object:
        question = {"TableName": self.table, "Item": item(key)}
        return await self.sender.ask("put_item", question)

    async def learn_to_put(self) -> None:
        await self.put()
        assert await self.by_sender("put_item", {"TableName": self.table, "Item": item("k")}) == {}


class Refusal(NamedTuple):
    kind: str
    operation: str
    status: int
    said: Mapping[str, Any]


async def outcome_of(asking: Any) -> object:  # noqa: ANN401 - an awaitable of the driver's
    """An answer, or an error of DynamoDB, without what was only of this request."""
    try:
        answer = await asking
    except DriverError as error:
        response = cast("Any", error).response
        said = {name: value for name, value in response.items() if name != "ResponseMetadata"}
        status = response["ResponseMetadata"]["HTTPStatusCode"]
        return Refusal(type(error).__name__, cast("Any", error).operation_name, status, said)
    return {name: value for name, value in answer.items() if name != "ResponseMetadata"}


class Rotating:
    """A source of credentials that hands out others when it is told to."""

    def __init__(self) -> None:
        self.now: tuple[str, str, str] = GOOD

    async def load_credentials(self) -> object:
        create = cast("Any", AioRefreshableCredentials).create_from_metadata
        return create(self._metadata(), self._renew, "rotating")

    async def _renew(self) -> dict[str, str]:
        return self._metadata()

    def _metadata(self) -> dict[str, str]:
        """Valid for so short that they are asked for anew each time."""
        access_key, secret_key, token = self.now
        until = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
        return {"access_key": access_key, "secret_key": secret_key, "token": token, "expiry_time": until}


@asynccontextmanager
async def pair_on(
    endpoint: str, *, source: Rotating | None = None, patience: float = PATIENCE, connections: int = 10
) -> AsyncGenerator[Pair]:
    """Set up as the engine does it, on a table of its own."""
    sender = Sender()
    config = AioConfig(
        connect_timeout=patience,
        read_timeout=patience,
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
        sender.begin(db, await session.get_credentials())
        async with client_of(endpoint) if patience < PATIENCE else nullcontext(db) as maker:
            table = await new_table(maker)
        yield Pair(db, sender, table)


async def new_table(db: Any) -> str:  # noqa: ANN401
    names = [each async for page in db.get_paginator("list_tables").paginate() for each in page["TableNames"]]
    name = f"{TABLE}-{len(names)}"
    await db.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in ("pk", "sk")],
        KeySchema=[
            {"AttributeName": "pk", "KeyType": "HASH"},
            {"AttributeName": "sk", "KeyType": "RANGE"},
        ],
    )
    async with asyncio.timeout(PATIENCE):
        while (await db.describe_table(TableName=name))["Table"]["TableStatus"] != "ACTIVE":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return name


def key_of(key: str) -> dict[str, Any]:
    return {"pk": {"S": "p"}, "sk": {"S": key}}


def item(key: str, body: str = "{}") -> dict[str, Any]:
    return {**key_of(key), "body": {"S": body}, "version": {"N": "1"}}


# Answers

ODD = 'ключ "quoted" \\ \x01\x7f\u2028 \U0001f600'
LARGE = "é" * 190_000
MISSING = {"ConditionExpression": "attribute_not_exists(pk)"}
TELL = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
OF_PARTITION = {
    "KeyConditionExpression": "pk = :pk",
    "ExpressionAttributeValues": {":pk": {"S": "p"}},
    "ConsistentRead": True,
}
NOBODY = {**OF_PARTITION, "ExpressionAttributeValues": {":pk": {"S": "nobody"}}}


def puts(table: str, *items: Mapping[str, Any], **more: object) -> dict[str, Any]:
    return {"TransactItems": [{"Put": {"TableName": table, "Item": each, **more}} for each in items]}


def questions(table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each may be asked twice: the second time nothing new comes of it."""
    named: dict[str, Any] = {"TableName": table}
    yield "put_item", {**named, "Item": item("k")}
    yield "put_item", {**named, "Item": item(ODD, ODD)}
    yield "put_item", {**named, "Item": item("large", LARGE)}
    yield "put_item", {**named, "Item": item("k"), **MISSING, **TELL}
    yield "put_item", {**named, "Item": item(ODD), **MISSING, **TELL}
    yield "put_item", {**named, "Item": item("k"), **MISSING}
    yield "put_item", {**named, "Item": {"pk": {"S": "p"}}}
    yield "put_item", {"TableName": "nowhere", "Item": item("k")}
    yield "transact_write_items", puts(table, item("t1"), item(ODD, ODD), item("t3"))
    yield "transact_write_items", puts(table, *[item(f"large{n}", LARGE) for n in range(4)])
    yield "transact_write_items", puts(table, item("new"), item("k"), item(ODD), **MISSING, **TELL)
    yield "transact_write_items", puts(table, item("new"), item("k"), **MISSING)
    yield "transact_write_items", puts(table, item("same"), item("same"))
    for keys in (["k"], ["absent"], ["k", ODD, "large", "absent"]):
        asked = {"ConsistentRead": True, "Keys": [key_of(key) for key in keys]}
        yield "batch_get_item", {"RequestItems": {table: asked}}
    yield "query", {**named, **OF_PARTITION}
    yield "query", {**named, **OF_PARTITION, "Limit": 2, "ProjectionExpression": "sk"}
    yield "query", {**named, **OF_PARTITION, "Select": "COUNT"}
    yield "query", {**named, **NOBODY}
    yield "query", {**named, "KeyConditionExpression": "nonsense"}
    yield "scan", {**named, "ConsistentRead": True}
    yield "scan", {**named, "Limit": 1}
    yield "get_item", {**named, "Key": key_of(ODD)}
    yield "get_item", {**named, "Key": key_of("absent")}
    deletes = [{"DeleteRequest": {"Key": key_of(key)}} for key in ("t1", "absent")]
    yield "batch_write_item", {"RequestItems": {table: deletes}}
    yield (
        "update_item",
        {
            **named,
            "Key": key_of("k"),
            "UpdateExpression": "SET version = :two",
            "ExpressionAttributeValues": {":two": {"N": "2"}},
            "ReturnValues": "ALL_NEW",
        },
    )
    yield "delete_item", {**named, "Key": key_of("t3")}


@SERVERS
async def test_every_request_is_answered_as_the_driver_is(start: Callable[[], Any]) -> None:
    async with pair_on(start().endpoint) as pair:
        refused = 0
        for operation, question in questions(pair.table):
            told = await pair.by_driver(operation, question)
            assert await pair.by_sender(operation, question) == told
            refused += isinstance(told, Refusal)
        assert refused == 9


async def test_binary_values_go_in_and_come_back_in_base_64() -> None:
    async with pair_on(servers.extenddb().endpoint) as pair:
        put = {"TableName": pair.table, "Item": {**item("k"), "raw": {"B": b"\x00\xff"}}}
        get = {"TableName": pair.table, "Key": key_of("k")}
        await pair.learn_to_put()
        assert await pair.by_sender("put_item", put) == {}
        assert cast("Any", await pair.by_driver("get_item", get))["Item"]["raw"] == {"B": b"\x00\xff"}
        assert cast("Any", await pair.by_sender("get_item", get))["Item"]["raw"] == {"B": "AP8="}


INJECTED: list[Fault] = [
    Error("ProvisionedThroughputExceededException"),
    Error("RequestLimitExceeded"),
    Error("ThrottlingException"),
    Error("TransactionInProgressException"),
    Error("TransactionConflictException"),
    Error("AccessDeniedException"),
    Error("ExpiredTokenException"),
    Error("NobodyKnowsThisException"),
    Error("InternalServerError", status=500),
    Error("ServiceUnavailable", status=503),
]


@pytest.mark.parametrize("fault", INJECTED, ids=str)
async def test_errors_that_only_aws_gives_are_the_drivers(fault: Fault) -> None:
    async with proxy_to(servers.dynoxide().port) as proxy, pair_on(proxy.endpoint) as pair:
        await pair.learn_to_put()
        proxy.fail("PutItem", fault, fault)
        question = {"TableName": pair.table, "Item": item("k")}
        told = await pair.by_driver("put_item", question)
        assert isinstance(told, Refusal)
        assert await pair.by_sender("put_item", question) == told


async def test_a_transaction_that_met_another_is_told_as_the_driver_does() -> None:
    async with proxy_to(servers.dynoxide().port) as proxy, pair_on(proxy.endpoint) as pair:
        question = puts(pair.table, item("a"), item("b"))
        await pair.by_driver("transact_write_items", question)
        proxy.rule = lambda operation, asked: conflict(operation, asked) if "TransactItems" in asked else None
        told = await pair.by_driver("transact_write_items", question)
        assert cast("Refusal", told).said["CancellationReasons"][0]["Code"] == "TransactionConflict"
        assert await pair.by_sender("transact_write_items", question) == told


# A front: a server before the server


Bend: TypeAlias = Callable[[bytes, bytes], bytes]
"""What a client gets instead of the head and the body that were answered."""


class Front:
    """Passes requests on to the byte, and answers through `bend`. Also a forwarding proxy of HTTP."""

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
    """A proxy is told the whole address; a server wants the path."""
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


def rewritten(head: bytes, body: bytes, more: bytes = b"") -> bytes:
    first, *rest = head.strip().split(b"\r\n")
    kept = [line for line in rest if not line.lower().startswith((b"content-length", b"x-amz-crc32"))]
    return b"\r\n".join(
        [first, *kept, b"Content-Length: %d" % len(body), *([more] if more else []), b"", body]
    )


DAMAGES: Mapping[str, Bend] = {
    "checksum": lambda head, body: rewritten(head, body, b"x-amz-crc32: 1"),
    "page": lambda head, _: rewritten(head, b"<html>a page of somebody between</html>"),
    "list": lambda head, _: rewritten(head, b"[]"),
    "cut": lambda head, body: rewritten(head, body[:-1]),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_answer_is_a_lost_answer(damage: str) -> None:
    async with front_of(servers.dynoxide().port) as front, pair_on(f"http://127.0.0.1:{front.port}") as pair:
        await pair.learn_to_put()
        front.bend = DAMAGES[damage]
        with pytest.raises(DriverError) as raised:
            await pair.put()
        assert is_lost(raised.value)


async def test_the_drivers_own_requests_have_their_checksums_compared_too() -> None:
    async with front_of(servers.dynoxide().port) as front, pair_on(f"http://127.0.0.1:{front.port}") as pair:
        front.bend = DAMAGES["checksum"]
        told = await failure_of(pair.db.put_item(TableName=pair.table, Item=item("k")))
        assert told == Told("ResponseParserError", is_lost=True, is_passing=True)


async def test_a_checksum_that_is_right_is_accepted() -> None:
    async with front_of(servers.dynoxide().port) as front, pair_on(f"http://127.0.0.1:{front.port}") as pair:
        await pair.learn_to_put()
        front.bend = lambda head, _: rewritten(head, b"{}", b"x-amz-crc32: 2745614147")
        assert await pair.put() == {}


# Signatures

WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/,"), min_size=1)
KEYS = st.builds(
    ReadOnlyCredentials, access_key=WORDS, secret_key=WORDS, token=st.none() | WORDS, account_id=st.none()
)
URLS = st.sampled_from(
    [
        "http://localhost:8000/",
        "http://127.0.0.1/",
        "http://[::1]:8000/",
        "http://Somewhere.Example:80/",
        "https://dynamodb.eu-west-1.amazonaws.com/",
        "https://123456789012.ddb.eu-west-1.amazonaws.com/",
        "https://vpce-1.dynamodb.us-east-1.vpce.amazonaws.com:443/",
        "https://gateway.example:8443/some/path~x/",
        "https://gateway.example/with space/",
    ]
)
TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(lambda time: time.strftime(STAMP))
BODIES = st.binary(min_size=1)
REGIONS = st.sampled_from(["us-east-1", "eu-west-1", "local"])


def by_driver(url: str, keys: Any, region: str, body: bytes, stamp: str) -> Any:  # noqa: ANN401
    """A request that the driver has signed as if it were that time."""
    auth = cast("Any", SigV4Auth(keys, "dynamodb", region))
    headers = {"X-Amz-Target": TARGET, "Content-Type": "application/x-amz-json-1.0", "User-Agent": "a  b"}
    request = cast("Any", AWSRequest("POST", url, headers=headers, data=body))
    request.headers["X-Amz-Date"] = request.context["timestamp"] = stamp
    if keys.token:
        request.headers["X-Amz-Security-Token"] = keys.token
    signed = auth.signed_headers(auth.headers_to_sign(request))
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    told = f"Credential={auth.scope(request)}, SignedHeaders={signed}, Signature={signature}"
    request.headers["Authorization"] = f"AWS4-HMAC-SHA256 {told}"
    return request.prepare()


@given(URLS, KEYS, REGIONS, BODIES, TIMES, st.lists(st.tuples(BODIES, TIMES), min_size=1))
def test_a_signature_is_the_drivers(
    url: str, keys: Keys, region: str, body: bytes, stamp: str, more: list[tuple[bytes, str]]
) -> None:
    """Learned from one request, and right for others at other times."""
    way = learned(by_driver(url, keys, region, body, stamp), keys)
    assert isinstance(way, Way)
    assert (way.url, way.operation) == (url, "PutItem")
    for another, time in more:
        wanted = by_driver(url, keys, region, another, time).headers
        headers = way.headers(another, time)
        assert headers["authorization"] == wanted["Authorization"]
        assert headers.get("x-amz-security-token") == (keys.token or None)
        assert {name.lower() for name in wanted} - headers.keys() == {"content-length"}


@pytest.mark.parametrize("url", ["http://h/?x=1", "http://h/a//b/../c"])
def test_an_address_that_is_not_understood_is_left_to_the_driver(url: str) -> None:
    keys: Any = cast("Any", ReadOnlyCredentials)("key", "secret", None, None)
    assert learned(by_driver(url, keys, REGION, b"{}", "20261116T060647Z"), keys) is None


def test_a_request_that_was_signed_with_other_keys_teaches_nothing() -> None:
    make = cast("Any", ReadOnlyCredentials)
    for others in (make("key", "other", None, None), make("other", "secret", None, None)):
        request = by_driver("http://h/", make("key", "secret", None, None), REGION, b"{}", "20261116T060647Z")
        assert learned(request, others) is None


def add_before_signing(params: Any, **_: object) -> None:  # noqa: ANN401
    params["headers"]["X-Mine"] = str(len(params["body"]))


def add_after_signing(request: Any, **_: object) -> None:  # noqa: ANN401
    request.headers["X-Mine"] = str(len(request.body))


@pytest.mark.parametrize(
    ("event", "add"),
    [("before-call.dynamodb", add_before_signing), ("before-send.dynamodb", add_after_signing)],
    ids=["signed", "unsigned"],
)
async def test_a_client_whose_requests_carry_something_unknown_keeps_sending_them_itself(
    event: str, add: Callable[..., None]
) -> None:
    async with front_of(servers.dynoxide().port) as front, pair_on(f"http://127.0.0.1:{front.port}") as pair:
        pair.db.meta.events.register(event, add)
        for _ in range(3):
            before = pair.driven
            assert await pair.put() == {}
            assert pair.driven == before + 1
            assert header(front.heads[-1], "x-mine") == header(front.heads[-1], "content-length")


# Credentials, certificates, proxies


async def test_credentials_are_as_new_as_the_drivers() -> None:
    source = Rotating()
    async with pair_on(servers.extenddb().endpoint, source=source) as pair:
        question = {"TableName": pair.table, "Item": item("k")}
        for _ in range(2):
            await pair.learn_to_put()
            source.now = (GOOD[0], "another secret", "")
            told = await pair.by_driver("put_item", question)
            assert isinstance(told, Refusal)
            assert await pair.by_sender("put_item", question) == told
            source.now = GOOD


async def test_changed_credentials_are_used_from_the_next_request_on() -> None:
    """The one after a change goes by the driver, which may choose another address for another account."""
    source = Rotating()
    async with (
        front_of(servers.dynoxide().port) as front,
        pair_on(f"http://127.0.0.1:{front.port}", source=source) as pair,
    ):
        for access_key, token in (("one", ""), ("two", "token"), ("two", "other"), ("three", "")):
            source.now = (access_key, "secret", token)
            for is_short in (False, True, True):
                before = pair.driven
                await pair.put()
                assert (pair.driven == before) == is_short
                assert f"Credential={access_key}/" in header(front.heads[-1], "authorization")
                assert header(front.heads[-1], "x-amz-security-token") == token


@contextmanager
def certified(folder: Path) -> Generator[tuple[ssl.SSLContext, Path]]:
    """A server's side of TLS, and the file of who vouches for it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "both.pem"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(certificate.public_bytes(Encoding.PEM) + secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    yield context, file


async def test_the_certificates_of_the_environment_are_believed_and_no_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with certified(tmp_path) as (tls, file):
        async with front_of(servers.extenddb().port, tls) as front:
            endpoint = f"https://localhost:{front.port}"
            with pytest.raises(DriverError, match="CERTIFICATE_VERIFY_FAILED"):
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


# Failures on the way


class Told(NamedTuple):
    kind: str
    is_lost: bool
    is_passing: bool


async def failure_of(asking: Any) -> Told:  # noqa: ANN401
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(DriverError) as raised:
            await asking
    error = raised.value
    return Told(type(error).__name__, is_lost(error), is_passing(error))


async def learned_at_last(pair: Pair) -> None:
    """With little patience it may take more than one try."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(*DriverError):
                await pair.put()
                return


async def both_fail(pair: Pair) -> Told:
    """How a request fails by the driver; the short way fails alike."""
    question = {"TableName": pair.table, "Item": item("k")}
    told = await failure_of(pair.db.put_item(**question))
    driven = pair.driven
    assert await failure_of(pair.sender.ask("put_item", question)) == told
    assert pair.driven == driven
    return told


@pytest.mark.parametrize("loss", Loss)
async def test_a_cut_connection_is_a_lost_answer(loss: Loss) -> None:
    async with proxy_to(servers.dynoxide().port) as proxy, pair_on(proxy.endpoint) as pair:
        await pair.learn_to_put()
        proxy.fail("PutItem", loss, loss)
        assert await both_fail(pair) == Told("ConnectionClosedError", is_lost=True, is_passing=True)


async def test_a_server_that_stalls_has_lost_the_answer_and_one_that_is_gone_was_sent_nothing() -> None:
    with Dynoxide() as server:
        servers.dynoxide()  # for the credentials
        async with pair_on(server.endpoint, patience=1) as pair:
            await learned_at_last(pair)
            server.pause()
            stalled = await both_fail(pair)
            server.resume()
            assert stalled == Told("ReadTimeoutError", is_lost=True, is_passing=True)
            server.kill()
            await failure_of(pair.put())  # on a connection that it had
            gone = await both_fail(pair)
            assert gone == Told("EndpointConnectionError", is_lost=False, is_passing=True)
            with full(server.port):
                full_up = await both_fail(pair)
            assert full_up == Told("ConnectTimeoutError", is_lost=False, is_passing=True)


async def test_a_server_that_takes_no_more_of_a_large_request_has_lost_the_answer() -> None:
    with Dynoxide() as server:
        servers.dynoxide()  # for the credentials
        async with pair_on(server.endpoint, patience=1) as pair:
            await learned_at_last(pair)
            server.pause()
            more_than_the_system_buffers = {"TableName": pair.table, "Item": item("k", "x" * 30_000_000)}
            told = await failure_of(pair.sender.ask("put_item", more_than_the_system_buffers))
            server.kill()
            assert told == Told("ReadTimeoutError", is_lost=True, is_passing=True)


@contextmanager
def full(port: int) -> Generator[None]:
    """Somebody who listens there, takes nobody in, and has no more room for who waits."""
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


async def test_a_caller_that_stops_waiting_leaves_the_only_connection_usable() -> None:
    async with pair_on(servers.dynoxide().endpoint, connections=1) as pair:
        await pair.learn_to_put()
        for turns in range(12):
            task = asyncio.create_task(pair.put("cancelled"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            async with asyncio.timeout(PATIENCE):
                assert await pair.put() == {}


async def test_closing_the_client_ends_every_connection() -> None:
    async with front_of(servers.dynoxide().port) as front:
        async with pair_on(f"http://127.0.0.1:{front.port}", connections=5) as pair:
            await pair.learn_to_put()
            await asyncio.gather(*[pair.put(str(number)) for number in range(20)])
            assert 0 < front.open <= 5
        async with asyncio.timeout(PATIENCE):
            while front.open:  # noqa: ASYNC110 - a server tells nobody
                await asyncio.sleep(0.01)
        with pytest.raises(HTTPClientError):
            await pair.put()
        assert front.open == 0


async def test_many_requests_at_once_get_each_its_own_answer() -> None:
    async with pair_on(servers.extenddb().endpoint) as pair:
        await pair.learn_to_put()
        keys = [f"k{number}" for number in range(100)]
        await asyncio.gather(*[pair.put(key) for key in keys])
        asked = [{"TableName": pair.table, "Key": key_of(key)} for key in keys]
        answers = await asyncio.gather(*[pair.sender.ask("get_item", question) for question in asked])
        assert [answer["Item"]["sk"]["S"] for answer in answers] == keys
