"""The short way of a request to DynamoDB: what the driver would send, without most of its work for each.

The driver sends the first request of each operation. What its requests have in common is learned from that
one: address, headers, and the scope of the signature. The next are written, signed and read here, and go out
by the driver's own HTTP session: connections, time limits, certificates, proxies, and errors on the way are
the driver's.

A way is taken only if the driver's own signature can be made again on it, byte for byte, and only with the
credentials that it was learned with. Whatever is not understood is left to the driver, request by request.
"""

from __future__ import annotations

import re
from asyncio import timeout
from collections.abc import Mapping
from hashlib import sha256
from hmac import digest
from io import BytesIO
from time import gmtime, strftime
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import quote, urlsplit
from zlib import crc32

import msgspec
from aiobotocore.httpsession import AIOHTTPSession  # pyright: ignore[reportMissingTypeStubs]
from botocore.awsrequest import AWSPreparedRequest  # pyright: ignore[reportMissingTypeStubs]
from botocore.exceptions import ClientError, ReadTimeoutError  # pyright: ignore[reportMissingTypeStubs]
from botocore.parsers import (  # pyright: ignore[reportMissingTypeStubs]
    ResponseParserError,
    create_parser,  # pyright: ignore[reportUnknownVariableType]
)

if TYPE_CHECKING:
    from types_aiobotocore_dynamodb.client import DynamoDBClient

MOST_SENT_AT_ONCE = 2**20
"""Bytes; of more than that the HTTP library warns."""
TIMES_THE_TIMEOUT = 4
"""The driver bounds a connection, and each piece of an answer; this bounds all that a request takes."""
_JSON = "application/x-amz-json-1.0"
_SAME = {"amz-sdk-request", "content-type", "user-agent", "x-amz-target"}
"""Headers that all requests of an operation share."""
_OWN = {"amz-sdk-invocation-id", "authorization", "content-length", "x-amz-date", "x-amz-security-token"}
"""Headers of one request: made anew, or for the service's records only."""
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([^/]+/[^/]+)/aws4_request, "
    r"SignedHeaders=([^,]+), Signature=[0-9a-f]+"
)


class Keys(Protocol):
    """Credentials as they are at one moment."""

    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...
    @property
    def token(self) -> str | None: ...


class Credentials(Protocol):
    """The driver's, which may renew themselves."""

    async def get_frozen_credentials(self) -> Keys: ...


class Way:
    """How requests of one operation go out with some credentials, signed as AWS publishes it (version 4)."""

    def __init__(self, url: str, same: Mapping[str, str], keys: Keys, scope: str, signed: str) -> None:
        """`scope` is region and service; `signed` are the names of the signed headers, in their order."""
        self.url = url
        self.keys = keys
        self._same = dict(same)
        if keys.token:
            self._same["x-amz-security-token"] = keys.token
        self._scope = f"{scope}/aws4_request"
        self._signed = signed
        told = {**self._same, "host": _host(url)}
        before, _, after = signed.partition("x-amz-date")
        self._before = f"POST\n{quote(urlsplit(url).path, safe='/~')}\n\n{_lines(told, before)}"
        self._after = f"{_lines(told, after)}\n{signed}\n"
        self._day = ""
        self._key = b""

    @property
    def operation(self) -> str:
        return self._same["x-amz-target"].rpartition(".")[2]

    def headers(self, body: bytes, stamp: str) -> dict[str, str]:
        """All that a request needs, at a time written as 20261116T060647Z."""
        day = stamp[:8]
        if day != self._day:
            self._day, self._key = day, self._key_of(day)
        scope = f"{day}/{self._scope}"
        asked = f"{self._before}x-amz-date:{stamp}\n{self._after}{sha256(body).hexdigest()}"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(asked.encode()).hexdigest()}"
        signature = digest(self._key, text.encode(), "sha256").hex()
        credential = f"Credential={self.keys.access_key}/{scope}"
        authorization = f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={self._signed}, Signature={signature}"
        return {**self._same, "x-amz-date": stamp, "authorization": authorization}

    def _key_of(self, day: str) -> bytes:
        key = f"AWS4{self.keys.secret_key}".encode()
        for word in (day, *self._scope.split("/")):
            key = digest(key, word.encode(), "sha256")
        return key


def _host(url: str) -> str:
    """As HTTP names it: with the port only where that is not the usual one."""
    parts = urlsplit(url)
    name = parts.netloc.lower().rpartition("@")[2]
    usual = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    return name.removesuffix(usual)


def _lines(headers: Mapping[str, str], names: str) -> str:
    """Signed headers in the form in which they are signed."""
    return "".join(f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in names.split(";") if name)


def learned(request: AWSPreparedRequest, keys: Keys) -> Way | None:
    """The way of a request that the driver has signed with these keys, or None if it is not understood."""
    given = cast("Any", request)
    headers = {name.lower(): _text(value) for name, value in given.headers.items()}
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if found is None or headers.get("content-type") != _JSON or not headers.keys() <= _SAME | _OWN:
        return None
    scope, signed = found.groups()
    if given.method != "POST" or not isinstance(given.body, bytes):
        return None
    same = {name: headers[name] for name in _SAME & headers.keys()}
    way = Way(given.url, same, keys, scope, signed)
    again = way.headers(given.body, headers.get("x-amz-date", ""))
    return way if again["authorization"] == headers["authorization"] else None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class Http(AIOHTTPSession):
    """The driver's HTTP session, which lets a sender see what the driver sends."""

    sender: Sender

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - the driver's own
        cast("Any", super()).__init__(**given)
        self._longest = TIMES_THE_TIMEOUT * max(given["timeout"])
        self.sender.http = self

    async def send(self, request: AWSPreparedRequest) -> Any:  # noqa: ANN401
        await self.sender.learn(request)
        return await self.pass_on(request)

    async def pass_on(self, request: AWSPreparedRequest) -> Any:  # noqa: ANN401
        """A large request goes out piece by piece, so that the event loop has its turn in between.

        The driver compares checksums only to decide about a repetition, which is none of its business here.
        """
        given = cast("Any", request)
        if len(given.body) > MOST_SENT_AT_ONCE:
            given.body = BytesIO(given.body)
        try:
            async with timeout(self._longest):
                response = await cast("Any", super()).send(given)
        except TimeoutError as error:
            raise ReadTimeoutError(endpoint_url=given.url, error=error) from error
        checksum = response.headers.get("x-amz-crc32")
        if checksum is not None and checksum != str(crc32(await response.content)):
            raise ResponseParserError("the answer was damaged on its way: its checksum is another")
        return response


class Sender:
    """Requests and answers of one client. Belongs to one event loop, and ends with the client."""

    http: Http

    def __init__(self) -> None:
        self._db: Any = None
        self._credentials: Credentials | None = None
        self._ways: dict[str, Way] = {}

    @property
    def http_session_cls(self) -> type[Http]:
        """For the configuration of the client."""
        return type("HttpOfSender", (Http,), {"sender": self})

    def begin(self, db: DynamoDBClient, credentials: Credentials | None) -> None:
        """With the client that was made, and what its session signs with."""
        self._db = db
        self._credentials = credentials

    async def ask(self, operation: str, question: Mapping[str, Any]) -> dict[str, Any]:
        """What the client's method of this name answers, without ResponseMetadata; or the error it raises.

        Binary values are sent, but come back as they are on the wire, in base 64.
        """
        name: str = self._db.meta.method_to_api_mapping[operation]
        way = self._ways.get(name)
        if way is None or self._credentials is None:
            return await self._ask_driver(operation, question)
        if await self._credentials.get_frozen_credentials() != way.keys:
            return await self._ask_driver(operation, question)
        body = msgspec.json.encode(question)
        headers = way.headers(body, strftime("%Y%m%dT%H%M%SZ", gmtime()))
        request = AWSPreparedRequest("POST", way.url, headers, body, stream_output=False)
        response = await self.http.pass_on(request)
        return self._read(name, response, await response.content)

    async def learn(self, request: AWSPreparedRequest) -> None:
        """From a request that the driver is about to send."""
        if self._credentials is None:
            return
        way = learned(request, await self._credentials.get_frozen_credentials())
        if way is not None:
            self._ways[way.operation] = way

    async def _ask_driver(self, operation: str, question: Mapping[str, Any]) -> dict[str, Any]:
        answer = await getattr(self._db, operation)(**question)
        del answer["ResponseMetadata"]
        return answer

    def _read(self, name: str, response: Any, body: bytes) -> dict[str, Any]:  # noqa: ANN401
        if response.status_code >= 300:
            raise self._error(name, response, body)
        try:
            return _ANSWER.decode(body)
        except msgspec.DecodeError as error:
            raise ResponseParserError(f"the answer is not what DynamoDB writes: {error}") from error

    def _error(self, name: str, response: Any, body: bytes) -> ClientError:  # noqa: ANN401
        """As the driver makes it, by its own description of the service."""
        model = self._db.meta.service_model
        parser = cast("Any", create_parser)(model.resolved_protocol)
        told = {
            "headers": response.headers,
            "status_code": response.status_code,
            "body": body,
            "context": {"operation_name": name},
        }
        said = parser.parse(told, model.operation_model(name).output_shape)
        code = said.get("Error", {}).get("Code")
        shape = model.shape_for_error_code(code)
        if shape is not None:
            said.update(parser.parse(told, shape))
        return self._db.exceptions.from_code(code)(said, name)


_ANSWER: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])
