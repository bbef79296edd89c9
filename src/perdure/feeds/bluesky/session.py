"""The reader's session: one pair of tokens for all requests, renewed by whoever is refused first.

A token lives for two hours, and then every request under way is refused at the same moment. One of them
renews it and the others wait; none of this is the fault of the account that was asked for.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

import anyio
import msgspec

from ..errors import NotAuthorized, RateLimited, SourceError, SourceUnavailable
from .answers import TokenRefused
from .client import Answer, Asked, Client
from .shapes import Tokens

T = TypeVar("T")

MOST_RENEWALS = 3
"""For one request. A server that refuses the tokens that it has just given is not to be talked to."""


class Session:
    """The tokens, and how to get new ones."""

    def __init__(self, client: Client, identifier: str, password: str) -> None:
        self._client = client
        self._identifier = identifier
        self._password = password
        self._tokens: Tokens | None = None
        self._renewing = anyio.Lock()
        self._refused: str | None = None
        """The last token that was. Nobody sends it again."""
        self._verdict: str | None = None

    @property
    def token(self) -> str | None:
        """None: there is none that may be good."""
        tokens = self._tokens
        return None if tokens is None or tokens.access_jwt == self._refused else tokens.access_jwt

    def refuse(self, token: str) -> None:
        """The server does not take this one. An earlier one says nothing about the one that we have."""
        if token == self.token:
            self._refused = token

    async def open(self) -> None:
        """Until there is a token that may be good. NotAuthorized: there will be none."""
        if self.token is not None:
            return
        async with self._renewing:
            if self.token is None:
                self._tokens = await self._renewed()
                self._refused = None

    async def _renewed(self) -> Tokens:
        if self._tokens is not None:
            try:
                return await self._refresh(self._tokens.refresh_jwt)
            except (SourceUnavailable, RateLimited):
                raise
            except SourceError:
                self._tokens = None  # too old as well, or revoked
        return await self._log_in()

    async def _refresh(self, token: str) -> Tokens:
        return await self._client.post("com.atproto.server.refreshSession", _tokens, token=token)

    async def _log_in(self) -> Tokens:
        """Once: who is told no, and asks again, gets locked out."""
        if self._verdict is not None:
            raise NotAuthorized(self._verdict)
        who = {"identifier": self._identifier, "password": self._password}
        try:
            return await self._client.post("com.atproto.server.createSession", _tokens, body=who)
        except (SourceUnavailable, RateLimited):
            raise
        except SourceError as error:
            self._verdict = f"{self._client.service} does not let {self._identifier} in: {error}"
            raise NotAuthorized(self._verdict) from error


class SignedIn:
    """A server, asked with the session's token."""

    def __init__(self, client: Client, session: Session) -> None:
        self._client = client
        self._session = session

    async def get(
        self, method: str, asked: Asked, decoder: msgspec.json.Decoder[T], *, etag: str | None = None
    ) -> Answer[T] | None:
        sent = ""

        def token() -> str:
            nonlocal sent
            sent = self._session.token or ""
            if not sent:
                raise TokenRefused("somebody else has been told that the token is no longer good")
            return sent

        for _ in range(MOST_RENEWALS):
            await self._session.open()
            with suppress(TokenRefused):
                return await self._client.get(method, asked, decoder, etag=etag, token=token)
            self._session.refuse(sent)
        await self._session.open()
        return await self._client.get(method, asked, decoder, etag=etag, token=token)


_tokens = msgspec.json.Decoder(Tokens)
