"""Signs requests and sends them to DynamoDB. The driver (aiobotocore) would sign them much more slowly.

The driver sends the first request of each operation, such as PutItem. The URL, headers and signature scope of
that request become the signing context of later requests. This module encodes and signs the later requests,
and decodes their responses. The driver's HTTP session sends the requests, and handles connections, timeouts,
certificates and proxies.

A signing context is used only if it reproduces the signature of the driver byte for byte, and only while the
credentials stay the same. The driver signs and sends all other requests.
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

MAX_UNSTREAMED_BYTES = 2**20
"""Maximum size of a request body that is sent in one piece. The HTTP library warns about larger bodies."""
TOTAL_TIMEOUT_FACTOR = 4
"""Maximum duration of a whole request, as a multiple of the driver's longest timeout."""
_JSON = "application/x-amz-json-1.0"
_SHARED_HEADERS = {"amz-sdk-request", "content-type", "user-agent", "x-amz-target"}
"""Headers that are the same in all requests for one operation."""
_REQUEST_HEADERS = {
    "amz-sdk-invocation-id",
    "authorization",
    "content-length",
    "x-amz-date",
    "x-amz-security-token",
}
"""Headers that differ between requests. A signing context does not reuse their values."""
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([^/]+/[^/]+)/aws4_request, "
    r"SignedHeaders=([^,]+), Signature=[0-9a-f]+"
)


class FrozenCredentials(Protocol):
    """A copy of AWS credentials. It does not change when the credentials are renewed."""

    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...
    @property
    def token(self) -> str | None: ...


class Credentials(Protocol):
    """The driver's AWS credentials. The driver may renew the credentials at any time."""

    async def get_frozen_credentials(self) -> FrozenCredentials: ...


class SigningContext:
    """Signs the requests of one operation with AWS Signature Version 4."""

    def __init__(
        self, url: str, same: Mapping[str, str], keys: FrozenCredentials, scope: str, signed: str
    ) -> None:
        """Create a context for requests to `url` that are signed with the credentials `keys`.

        `same` contains the headers that are the same in all requests. `scope` is the region and the service,
        such as `eu-west-1/dynamodb`. `signed` lists the names of the signed headers, joined by semicolons.
        """
        self.url = url
        self.keys = keys
        self._same = dict(same)
        if keys.token:
            self._same["x-amz-security-token"] = keys.token
        self._scope = f"{scope}/aws4_request"
        self._signed = signed
        headers = {**self._same, "host": _host(url)}
        before, _, after = signed.partition("x-amz-date")
        self._before = f"POST\n{quote(urlsplit(url).path, safe='/~')}\n\n{_canonical_lines(headers, before)}"
        self._after = f"{_canonical_lines(headers, after)}\n{signed}\n"
        self._day = ""
        self._key = b""

    @property
    def operation(self) -> str:
        return self._same["x-amz-target"].rpartition(".")[2]

    def headers(self, body: bytes, stamp: str) -> dict[str, str]:
        """Return the headers of a request, with a signature. `stamp` is a time such as 20261116T060647Z."""
        day = stamp[:8]
        if day != self._day:
            self._day, self._key = day, self._key_of(day)
        scope = f"{day}/{self._scope}"
        canonical = f"{self._before}x-amz-date:{stamp}\n{self._after}{sha256(body).hexdigest()}"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
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
    """Return the Host header for `url`: the host name, and the port unless it is the default port."""
    parts = urlsplit(url)
    name = parts.netloc.lower().rpartition("@")[2]
    usual = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    return name.removesuffix(usual)


def _canonical_lines(headers: Mapping[str, str], names: str) -> str:
    """Return the headers whose names are in `names`, in the canonical form that is signed."""
    return "".join(f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in names.split(";") if name)


def signing_context_from(request: AWSPreparedRequest, keys: FrozenCredentials) -> SigningContext | None:
    """Return a context that signs `request` exactly as the driver did, or None if that is not possible."""
    given = cast("Any", request)
    headers = {name.lower(): _text(value) for name, value in given.headers.items()}
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if (
        found is None
        or headers.get("content-type") != _JSON
        or not headers.keys() <= _SHARED_HEADERS | _REQUEST_HEADERS
    ):
        return None
    scope, signed = found.groups()
    if given.method != "POST" or not isinstance(given.body, bytes):
        return None
    same = {name: headers[name] for name in _SHARED_HEADERS & headers.keys()}
    context = SigningContext(given.url, same, keys, scope, signed)
    again = context.headers(given.body, headers.get("x-amz-date", ""))
    return context if again["authorization"] == headers["authorization"] else None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class ObservedHttpSession(AIOHTTPSession):
    """An HTTP session of the driver.

    It passes each request to `Sender.observe` before it sends the request.
    """

    sender: Sender

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - the driver's own
        cast("Any", super()).__init__(**given)
        self._total_timeout = TOTAL_TIMEOUT_FACTOR * max(given["timeout"])
        self.sender.http = self

    async def send(self, request: AWSPreparedRequest) -> Any:  # noqa: ANN401
        await self.sender.observe(request)
        return await self.forward(request)

    async def forward(self, request: AWSPreparedRequest) -> Any:  # noqa: ANN401
        """Send a request and verify the checksum of the response.

        The driver verifies checksums only when it retries requests itself, which is disabled. A large request
        is sent in chunks, so that it does not block the event loop.
        """
        given = cast("Any", request)
        if len(given.body) > MAX_UNSTREAMED_BYTES:
            given.body = BytesIO(given.body)
        try:
            async with timeout(self._total_timeout):
                response = await cast("Any", super()).send(given)
        except TimeoutError as error:
            raise ReadTimeoutError(endpoint_url=given.url, error=error) from error
        checksum = response.headers.get("x-amz-crc32")
        if checksum is not None and checksum != str(crc32(await response.content)):
            raise ResponseParserError("the response does not match its checksum")
        return response


class Sender:
    """Sends the requests of one DynamoDB client. Use each instance in only one event loop."""

    http: ObservedHttpSession

    def __init__(self) -> None:
        self._db: Any = None
        self._credentials: Credentials | None = None
        self._contexts: dict[str, SigningContext] = {}

    @property
    def http_session_cls(self) -> type[ObservedHttpSession]:
        """The HTTP session class to set in the configuration of the client."""
        return type("SenderHttpSession", (ObservedHttpSession,), {"sender": self})

    def start(self, db: DynamoDBClient, credentials: Credentials | None) -> None:
        """Set the driver's client, which sends the first requests, and the credentials for later requests."""
        self._db = db
        self._credentials = credentials

    async def send(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request, and return the response without ResponseMetadata.

        `operation` is the name of a client method, such as `put_item`. Raise the same errors as that method.
        Binary values can be sent, but a response may contain binary values as base64 text.
        """
        name: str = self._db.meta.method_to_api_mapping[operation]
        context = self._contexts.get(name)
        if context is None or self._credentials is None:
            return await self._send_with_driver(operation, parameters)
        if await self._credentials.get_frozen_credentials() != context.keys:
            return await self._send_with_driver(operation, parameters)
        body = msgspec.json.encode(parameters)
        headers = context.headers(body, strftime("%Y%m%dT%H%M%SZ", gmtime()))
        request = AWSPreparedRequest("POST", context.url, headers, body, stream_output=False)
        response = await self.http.forward(request)
        return self._read(name, response, await response.content)

    async def observe(self, request: AWSPreparedRequest) -> None:
        """Derive a signing context from a request that the driver has signed, and store the context."""
        if self._credentials is None:
            return
        context = signing_context_from(request, await self._credentials.get_frozen_credentials())
        if context is not None:
            self._contexts[context.operation] = context

    async def _send_with_driver(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        response = await getattr(self._db, operation)(**parameters)
        del response["ResponseMetadata"]
        return response

    def _read(self, name: str, response: Any, body: bytes) -> dict[str, Any]:  # noqa: ANN401
        if response.status_code >= 300:
            raise self._error(name, response, body)
        try:
            return _RESPONSE_DECODER.decode(body)
        except msgspec.DecodeError as error:
            raise ResponseParserError(f"the response is not valid JSON: {error}") from error

    def _error(self, name: str, response: Any, body: bytes) -> ClientError:  # noqa: ANN401
        """Return the error that the driver would raise for `response`."""
        model = self._db.meta.service_model
        parser = cast("Any", create_parser)(model.resolved_protocol)
        raw = {
            "headers": response.headers,
            "status_code": response.status_code,
            "body": body,
            "context": {"operation_name": name},
        }
        parsed = parser.parse(raw, model.operation_model(name).output_shape)
        code = parsed.get("Error", {}).get("Code")
        shape = model.shape_for_error_code(code)
        if shape is not None:
            parsed.update(parser.parse(raw, shape))
        return self._db.exceptions.from_code(code)(parsed, name)


_RESPONSE_DECODER: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])
