"""A login session at a Bluesky server: an access token for all requests, and a refresh token to renew it.

An access token is valid for about two hours. When it expires, the server rejects all running requests. One
of these requests then renews the token while the others wait. After that, all of them are sent again, so no
poll fails.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from tempfile import mkstemp
from typing import TypeVar

import anyio
import msgspec

from ..errors import AuthenticationFailed, RateLimited, SourceError, SourceUnavailable
from .errors import CHECK_CREDENTIALS, TokenRejected
from .lexicon import Tokens
from .xrpc import QueryParams, XrpcClient, XrpcResponse

log = logging.getLogger("perdure.feeds")

_PRIVATE_MODE = 0o700


class SessionFile:
    """A file that stores the tokens of one user at one server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_writable = True

    @classmethod
    def default(cls, service: str, identifier: str, environ: Mapping[str, str]) -> SessionFile | None:
        """Return the session file in the user's state directory.

        Return None if neither XDG_STATE_HOME nor HOME is set.
        """
        state = environ.get("XDG_STATE_HOME") or (
            f"{environ['HOME']}/.local/state" if environ.get("HOME") else ""
        )
        if not state:
            return None
        name = blake2b(f"{service} {identifier}".encode(), digest_size=12).hexdigest()
        return cls(Path(state, "perdure", f"bluesky-{name}.json"))

    def read(self) -> Tokens | None:
        """Return the stored tokens, or None if the file is missing or unusable."""
        try:
            with self.path.open("rb") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    log.warning("ignored the login tokens in %s: other users can read this file", self.path)
                    return None
                return _tokens.decode(file.read())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("cannot read the login tokens in %s: %s", self.path, error)
            return None

    def write(self, tokens: Tokens) -> None:
        """Replace the stored tokens atomically. If a write fails, log a warning and skip all later writes."""
        if not self._is_writable:
            return
        try:
            self.path.parent.mkdir(mode=_PRIVATE_MODE, parents=True, exist_ok=True)
            handle, name = mkstemp(dir=self.path.parent)  # only the owner can read the new file
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(msgspec.json.encode(tokens))
                os.replace(name, self.path)  # noqa: PTH105 - the name is a string
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            self._is_writable = False
            log.warning("cannot save the login tokens, so the next command must log in again: %s", error)


_tokens = msgspec.json.Decoder(Tokens)


T = TypeVar("T")

MAX_RENEWALS = 3
"""Maximum number of token renewals per request, in case the server rejects tokens that it has just issued."""


class Session:
    """Provides a user's access token, and renews it when necessary."""

    def __init__(
        self, client: XrpcClient, identifier: str, password: str, *, file: SessionFile | None = None
    ) -> None:
        """Create a session. Tokens are stored in `file`, which several processes can share.

        Processes that share tokens log in less often. Servers limit the number of logins.
        """
        self._client = client
        self._identifier = identifier
        self._password = password
        self._file = file
        self._tokens: Tokens | None = None if file is None else file.read()
        self._renewing = anyio.Lock()
        self._rejected_token: str | None = None
        """The access token that the server most recently rejected. It is not sent again."""
        self._login_error: str | None = None

    @property
    def token(self) -> str | None:
        """The current access token. None if there is no token or the server has rejected it."""
        tokens = self._tokens
        return None if tokens is None or tokens.access_jwt == self._rejected_token else tokens.access_jwt

    def invalidate(self, token: str) -> None:
        """Stop using a token that the server has rejected. Do nothing if the token was already replaced."""
        if token == self.token:
            self._rejected_token = token

    async def ensure_token(self) -> None:
        """Get a new token if there is no valid token. Raise AuthenticationFailed if the login is rejected."""
        if self.token is not None:
            return
        async with self._renewing:
            if self.token is None:
                self._tokens = await self._renew()
                self._rejected_token = None
                if self._file is not None:
                    self._file.write(self._tokens)

    async def _renew(self) -> Tokens:
        """Return tokens that another process has stored in the meantime or, if there are none, new tokens."""
        stored = None if self._file is None else self._file.read()
        if stored is not None and stored.access_jwt != self._rejected_token and stored != self._tokens:
            return stored
        if self._tokens is not None:
            try:
                token = self._tokens.refresh_jwt
                return await self._client.post("com.atproto.server.refreshSession", _tokens, token=token)
            except (SourceUnavailable, RateLimited):
                raise
            except SourceError:
                self._tokens = None  # the refresh token has expired or was revoked
        return await self._log_in()

    async def _log_in(self) -> Tokens:
        """Log in. After a rejected login, do not try again, because repeated failures lock the account."""
        if self._login_error is not None:
            raise AuthenticationFailed(self._login_error)
        credentials = {"identifier": self._identifier, "password": self._password}
        try:
            return await self._client.post("com.atproto.server.createSession", _tokens, body=credentials)
        except (SourceUnavailable, RateLimited):
            raise
        except SourceError as error:
            reason = str(error).removesuffix(f"; {CHECK_CREDENTIALS}")
            login = f"login to {self._client.service} as {self._identifier} failed"
            self._login_error = f"{login}: {reason}; {CHECK_CREDENTIALS}"
            raise AuthenticationFailed(self._login_error) from error


class AuthenticatedClient:
    """A client that sends the access token of a session with each request, and renews rejected tokens."""

    def __init__(self, client: XrpcClient, session: Session) -> None:
        self._client = client
        self._session = session

    async def get(
        self, method: str, params: QueryParams, decoder: msgspec.json.Decoder[T], *, etag: str | None = None
    ) -> XrpcResponse[T] | None:
        sent = ""

        def token() -> str:
            nonlocal sent
            sent = self._session.token or ""
            if not sent:
                raise TokenRejected("the access token is no longer valid")
            return sent

        for _ in range(1 + MAX_RENEWALS):
            await self._session.ensure_token()
            with suppress(TokenRejected):
                return await self._client.get(method, params, decoder, etag=etag, token=token)
            self._session.invalidate(sent)
        raise SourceUnavailable(f"{self._client.service} rejects access tokens that it has just issued")
