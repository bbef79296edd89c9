"""Who may ask, and what every answer says to the browser: an ASGI middleware in front of all pages.

- The Host header names a host that we are (else a page elsewhere could point its own name at loopback).
- Without a token, only this machine may ask. With one, only who has it: in the Authorization header, or in a
  cookie that the login form sets.
- A page of another site may link here, and no more: its images and scripts are refused.
- A request that changes something comes from our own pages, and not at all in read-only mode. Its form is
  checked where it is read, in `forms`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Collection
from ipaddress import ip_address
from urllib.parse import quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..operating.token import MIN_TOKEN_LENGTH
from ..storage import Micros

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""The names of a server that is bound to loopback."""

BROWSER = "perdure_browser"
SESSION = "perdure_session"
ALWAYS_POSTED = ("/login", "/logout")
"""What read-only mode lets through: it changes nothing but the browser's own cookie."""

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # not `no-referrer`: a browser would then send the origin of our own forms as null
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

_NAME = re.compile(r"[A-Za-z0-9_-]{16,64}")


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        *,
        sessions: Sessions,
        hosts: Collection[str] | None,
        read_only: bool,
        clock: Callable[[], Micros],
    ) -> None:
        self._app = app
        self._sessions = sessions
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._read_only = read_only
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        known = request.cookies.get(BROWSER, "")
        browser = known if _NAME.fullmatch(known) else self._sessions.new_browser()
        has_token = self._has_token(request)
        is_known = has_token or self._is_known(request, browser)
        scope.setdefault("state", {}).update(browser=browser, has_token=has_token, is_known=is_known)
        answer = self._refusal(request, is_known=is_known) or self._app
        cookie = None if browser == known else cookie_of(request, BROWSER, browser, LASTS)
        await answer(scope, receive, _with_headers(send, path_of(request), cookie))

    def _refusal(self, request: Request, *, is_known: bool) -> Response | None:
        if not self._is_our_host(request):
            return _refused(421, "This server does not go by that name.")
        if not self._sessions.are_needed and not _is_near(request):
            return _refused(403, "Without a token this server answers its own machine alone.")
        if not is_known and not _is_way_in(request):
            return _to_login(request)
        if request.method in ("GET", "HEAD"):
            return None if _may_look(request) else _refused(403, "Another site asked for this page.")
        if not _is_from_here(request):
            return _refused(403, "This form was sent from another site.")
        if self._read_only and path_of(request) not in ALWAYS_POSTED:
            return _refused(403, "This dashboard is read-only.")
        return None

    def _is_our_host(self, request: Request) -> bool:
        if self._hosts is None:
            return True
        try:
            host = urlsplit(f"//{request.headers.get('host', '')}").hostname
        except ValueError:
            return False
        return host in self._hosts

    def _has_token(self, request: Request) -> bool:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self._sessions.is_token(given.strip())

    def _is_known(self, request: Request, browser: str) -> bool:
        if not self._sessions.are_needed:
            return True
        session = request.cookies.get(SESSION, "")
        return self._sessions.is_open(browser, session, now=self._clock())


def _is_way_in(request: Request) -> bool:
    """What is shown to everybody."""
    path = path_of(request)
    return path == "/login" or path.startswith("/static/")


def _is_near(request: Request) -> bool:
    """Whether it was sent from this machine. A proxy on it speaks for others: then there must be a token."""
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def path_of(request: Request) -> str:
    """The path below where the dashboard is mounted."""
    return request.scope["path"].removeprefix(base_of(request)) or "/"


def base_of(request: Request) -> str:
    """Where the dashboard is mounted."""
    return request.scope.get("root_path", "").rstrip("/")


def cookie_of(request: Request, name: str, value: str, lasts: Micros) -> str:
    """A Set-Cookie header of a plain value. No script reads it, and no other site's form carries it.

    A link of another site does: else who follows one would be a new browser, and logged out.
    """
    where, age = base_of(request) or "/", lasts // 1_000_000
    secure = "; Secure" if request.url.scheme == "https" else ""
    return f"{name}={value}; Path={where}; Max-Age={age}; HttpOnly; SameSite=Lax{secure}"


def _may_look(request: Request) -> bool:
    """Another site may link here. It may not make a browser ask for pages that nobody sees."""
    is_ours = request.headers.get("sec-fetch-site", "none") in ("same-origin", "none")
    return is_ours or request.headers.get("sec-fetch-dest") == "document"


def _is_from_here(request: Request) -> bool:
    """Whether the browser says, as far as it says anything, that one of our own pages sent this."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host")


def _to_login(request: Request) -> Response:
    if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
        return _refused(401, "This dashboard asks for its token.", {"www-authenticate": "Bearer"})
    wanted = path_of(request) + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{base_of(request)}/login?next={quote(wanted)}", status_code=303)


def _refused(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{sentence}\n", status, headers)


def _with_headers(send: Send, path: str, cookie: str | None) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            headers["cache-control"] = "no-cache" if path.startswith("/static/") else "no-store"
            if cookie is not None:
                headers.append("set-cookie", cookie)
        await send(message)

    return sending


LASTS: Micros = 7 * 24 * 3600 * 1_000_000
"""How long a login does."""


class Sessions:
    def __init__(self, token: str | None) -> None:
        if token is not None and len(token.strip()) < MIN_TOKEN_LENGTH:
            raise ValueError(
                f"the dashboard's token must have at least {MIN_TOKEN_LENGTH} characters; "
                "make one with secrets.token_urlsafe()"
            )
        self._token = token
        self._key = secrets.token_bytes(32) if token is None else _key_of(token)

    @property
    def are_needed(self) -> bool:
        return self._token is not None

    def is_token(self, given: str) -> bool:
        """Whether this is the token, in a time that does not tell how much of it is right."""
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())

    def new_browser(self) -> str:
        """A name for a browser that only it knows."""
        return secrets.token_urlsafe(24)

    def opened(self, browser: str, *, now: Micros) -> str:
        """The cookie of a browser that has shown the token."""
        until = str(now + LASTS)
        return f"{until}.{self._mac('session', browser, until)}"

    def is_open(self, browser: str, session: str, *, now: Micros) -> bool:
        until, _, mac = session.partition(".")
        if not hmac.compare_digest(mac.encode(), self._mac("session", browser, until).encode()):
            return False
        return now < int(until)

    def form_key(self, browser: str) -> str:
        """What every form of this browser carries. Another site can neither read nor compute it."""
        return self._mac("form", browser)

    def is_form_key(self, browser: str, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.form_key(browser).encode())

    def _mac(self, *parts: str) -> str:
        return hmac.new(self._key, "\0".join(parts).encode(), hashlib.sha256).hexdigest()


def _key_of(token: str) -> bytes:
    return hashlib.scrypt(token.encode(), salt=b"perdure-web", n=2**14, r=8, p=1, dklen=32)
