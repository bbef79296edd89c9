"""Sessions: who has logged in, with tokens that run out."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable
from secrets import token_hex
from typing import Literal, TypeAlias

import msgspec

from perdure.storage import Micros

from ..simulation import Json, Refusal, World

Scope: TypeAlias = Literal["access", "refresh"]

ACCESS: Micros = 2 * 3600 * 1_000_000
REFRESH: Micros = 90 * 24 * 3600 * 1_000_000


class Token(msgspec.Struct, frozen=True):
    did: str
    scope: Scope
    until: Micros


class Sessions:
    def __init__(self, world: World, clock: Callable[[], Micros]) -> None:
        self.passwords: dict[str, str] = {}
        """By DID."""
        self.lasts: Micros = ACCESS
        """How long an access token is good for."""
        self._world = world
        self._clock = clock
        self._tokens: dict[str, Token] = {}

    def create(self, identifier: str, password: str) -> Json:
        try:
            account = self._world.find(identifier)
        except Refusal:
            account = None
        if account is None or self.passwords.get(account.did) != password:
            raise Refusal(401, "AuthenticationRequired", "Invalid identifier or password")
        return self._pair(account.did)

    def refresh(self, header: str | None) -> Json:
        """A new pair for a refresh token, which is good for this once."""
        token = self._token(header, "refresh")
        self._tokens = {name: each for name, each in self._tokens.items() if each is not token}
        return self._pair(token.did)

    def viewer(self, header: str | None) -> str | None:
        """Whose access token a request has. None: it has none."""
        return None if header is None else self._token(header, "access").did

    def expire(self, scope: Scope | None = None) -> None:
        """All tokens that there are have run out just now, or those of one kind."""
        for name, token in self._tokens.items():
            if scope in (None, token.scope):
                self._tokens[name] = msgspec.structs.replace(token, until=self._clock())

    def revoke(self) -> None:
        """Every token becomes unknown."""
        self._tokens.clear()

    def _token(self, header: str | None, scope: Scope) -> Token:
        if header is None:
            raise Refusal(401, "AuthMissing", "Authentication Required")
        token = self._tokens.get(header.removeprefix("Bearer "))
        if token is None or token.scope != scope:
            raise Refusal(400, "InvalidToken", "Token could not be verified")
        if self._clock() >= token.until:
            raise Refusal(400, "ExpiredToken", "Token has expired")
        return token

    def _pair(self, did: str) -> Json:
        now = self._clock()
        return {
            "did": did,
            "handle": self._world.accounts[did].handle,
            "accessJwt": self._new(Token(did, "access", now + self.lasts)),
            "refreshJwt": self._new(Token(did, "refresh", now + REFRESH)),
            "active": True,
        }

    def _new(self, token: Token) -> str:
        claims = {"scope": f"com.atproto.{token.scope}", "sub": token.did, "exp": token.until // 1_000_000}
        parts = ({"typ": "at+jwt", "alg": "HS256"}, claims)
        encoded = (urlsafe_b64encode(msgspec.json.encode(part)).decode().rstrip("=") for part in parts)
        name = ".".join([*encoded, token_hex(8)])
        self._tokens[name] = token
        return name
