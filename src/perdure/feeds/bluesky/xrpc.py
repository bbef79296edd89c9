"""An HTTP client for XRPC, the API of Bluesky servers, with rate limits, retries and typed responses.

A request is retried if the server cannot be reached, does not respond in time, reports a temporary error, or
sends an invalid response. If all retries fail, the client raises SourceUnavailable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from http import HTTPStatus
from typing import Generic, Protocol, TypeAlias, TypeVar

import anyio
import httpx2
import msgspec

from ...storage.exception_text import text_of
from ..errors import AuthenticationFailed, SourceUnavailable
from ..rate_limit import Retrier
from . import errors

T = TypeVar("T")

QueryParams: TypeAlias = Mapping[str, str | int | Sequence[str]]

REQUEST_TIMEOUT = 30.0
"""Maximum number of seconds from the start of a request to the end of its response."""
OWN_ETAG_PREFIX = "perdure:"
"""The prefix of ETags that this client computes for responses without an ETag."""


class XrpcResponse(msgspec.Struct, Generic[T], frozen=True):
    """A decoded response and its ETag."""

    value: T
    etag: str


class XrpcReader(Protocol):
    """The interface of clients that send GET requests, with or without credentials."""

    async def get(
        self, method: str, params: QueryParams, decoder: msgspec.json.Decoder[T], *, etag: str | None = None
    ) -> XrpcResponse[T] | None:
        """Call an API method. Return None if the ETag of the response is still `etag`."""
        ...


class XrpcClient:
    """A client for one server. It sends an access token only if the caller passes a token."""

    def __init__(
        self, http: httpx2.AsyncClient, service: str, retrier: Retrier, *, timeout: float = REQUEST_TIMEOUT
    ) -> None:
        self.service = service.rstrip("/")
        self._http = http
        self._retrier = retrier
        self._timeout = timeout

    async def get(
        self,
        method: str,
        params: QueryParams,
        decoder: msgspec.json.Decoder[T],
        *,
        etag: str | None = None,
        token: Callable[[], str | None] = lambda: None,
    ) -> XrpcResponse[T] | None:
        """Call an API method. Return None if the ETag of the response is still `etag`.

        `token` is called just before each attempt, because a token can expire while the request waits.
        """
        actor = str(params.get("actor") or params.get("repo") or "")

        async def attempt() -> XrpcResponse[T] | None:
            request = self._request("GET", method, token=token(), etag=etag, params=dict(params))
            response = await self._send(request)
            if (limits := errors.parse_rate_limit(response.headers)) is not None:
                limit, remaining, resets_at = limits
                self._retrier.limiter.update(limit=limit, remaining=remaining, resets_at=resets_at)
            if response.status_code == HTTPStatus.NOT_MODIFIED and "if-none-match" in request.headers:
                return None
            if etag is not None and response.is_success and _etag_of(response) == etag:
                return None  # the response is unchanged, although the server sends no ETags
            return self._parse(request, response, decoder, actor)

        return await self._retrier.call(attempt)

    async def post(
        self,
        method: str,
        decoder: msgspec.json.Decoder[T],
        *,
        body: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> T:
        """Call an API method that creates or refreshes a session. Such methods have their own rate limits.

        A request that fails with status 401 is not sent again, because repeated logins with a wrong password
        lock the account.
        """

        async def attempt() -> T:
            request = self._request("POST", method, token=token, json=body)
            response = await self._send(request)
            try:
                return self._parse(request, response, decoder).value
            except SourceUnavailable as error:
                if response.status_code == HTTPStatus.UNAUTHORIZED:
                    raise AuthenticationFailed(str(error)) from error
                raise

        return await self._retrier.call(attempt)

    def _request(
        self,
        verb: str,
        method: str,
        *,
        token: str | None,
        etag: str | None = None,
        params: dict[str, str | int | Sequence[str]] | None = None,
        json: Mapping[str, str] | None = None,
    ) -> httpx2.Request:
        headers: dict[str, str] = {}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        if etag is not None and not etag.startswith(OWN_ETAG_PREFIX):
            headers["if-none-match"] = etag
        url = f"{self.service}/xrpc/{method}"
        return self._http.build_request(verb, url, params=params, headers=headers, json=json)

    def _parse(
        self,
        request: httpx2.Request,
        response: httpx2.Response,
        decoder: msgspec.json.Decoder[T],
        actor: str = "",
    ) -> XrpcResponse[T]:
        if not response.is_success:
            raise errors.error_from_response(
                response.status_code,
                response.headers,
                response.content,
                actor=actor,
                now=self._retrier.limiter.clock(),
                has_token="authorization" in request.headers,
            )
        try:
            return XrpcResponse(_decode(decoder, response.content), _etag_of(response))
        except (ValueError, RecursionError) as error:
            raise SourceUnavailable(f"{request.url.path}: invalid response: {error}") from error

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        try:
            with anyio.fail_after(self._timeout):
                return await self._http.send(request)
        except TimeoutError as error:
            raise SourceUnavailable(f"{self.service} did not respond within {self._timeout:g} s") from error
        except httpx2.RequestError as error:
            raise SourceUnavailable(f"the request to {self.service} failed: {text_of(error)}") from error


def _etag_of(response: httpx2.Response) -> str:
    """Return the ETag of a response. If the server sent no ETag, compute one from the content."""
    if (etag := response.headers.get("etag")) is not None:
        return etag
    return OWN_ETAG_PREFIX + blake2b(response.content, digest_size=12).hexdigest()


def _decode(decoder: msgspec.json.Decoder[T], content: bytes) -> T:
    """Decode a response. If that fails, replace lone surrogates, which the decoder rejects, and try again."""
    try:
        return decoder.decode(content)
    except ValueError:
        return decoder.decode(_LONE_SURROGATE.sub(rb"\\ufffd", content))


_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
