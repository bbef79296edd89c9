"""Security of the dashboard: an ASGI middleware in front of all pages, and the cookies that it checks.

- The Host header must contain an allowed name, to prevent DNS rebinding attacks.
- Without a token, only this machine has access. With a token, all pages except the login page require
  either the token in the Authorization header or a session cookie, which the login form sets.
- Other sites can link to pages, but requests from their images, scripts and forms are refused.
- Forms must come from pages of this dashboard and contain a CSRF token, unless the request contains the
  access token (see `forms`). In read-only mode, only the forms for login and logout are accepted.

The server stores no sessions. One cookie contains a random browser id; session cookies and CSRF tokens are
signed with a key. The key is derived from the token, so a login survives a restart and works on all servers
with the same token. The derivation uses scrypt, so guessing the token from a signature is slow. Without a
token, the key is random.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Collection
from urllib.parse import quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..operating.access import MIN_TOKEN_LENGTH
from ..storage import Micros
from ..storage.loopback_address import is_loopback
from ..storage.time_types import DAY

BROWSER_COOKIE = "perdure_browser"
SESSION_COOKIE = "perdure_session"
READ_ONLY_EXEMPT_PATHS = ("/login", "/logout")
"""Paths that accept POST requests in read-only mode, because they only change a cookie."""
SESSION_LIFETIME = 7 * DAY

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # with `no-referrer`, browsers would send `Origin: null` for the forms of the dashboard
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

_BROWSER_ID = re.compile(r"[A-Za-z0-9_-]{16,64}")


class SessionSigner:
    """Checks the access token, and signs sessions and CSRF tokens.

    If there is no access token, no login is needed.
    """

    def __init__(self, token: str | None) -> None:
        if token is not None and len(token.strip()) < MIN_TOKEN_LENGTH:
            raise ValueError(
                f"the token must have at least {MIN_TOKEN_LENGTH} characters; "
                "generate one with secrets.token_urlsafe(), or use None to disable authentication"
            )
        self._token = token
        if token is None:
            self._key = secrets.token_bytes(32)
        else:
            self._key = hashlib.scrypt(token.encode(), salt=b"perdure-web", n=2**14, r=8, p=1, dklen=32)

    @property
    def is_enabled(self) -> bool:
        return self._token is not None

    def check_token(self, given: str) -> bool:
        """Return whether `given` is the token. The comparison takes constant time."""
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())

    def sign_session(self, browser: str, *, now: Micros) -> str:
        """Return the value of the session cookie for a browser that has sent the correct token."""
        until = str(now + SESSION_LIFETIME)
        return f"{until}.{self._mac('session', browser, until)}"

    def is_valid_session(self, browser: str, session: str, *, now: Micros) -> bool:
        until, _, mac = session.partition(".")
        if not hmac.compare_digest(mac.encode(), self._mac("session", browser, until).encode()):
            return False
        return now < int(until)

    def csrf_token(self, browser: str) -> str:
        """Return the CSRF token for the forms of a browser. Other sites can neither read nor compute it."""
        return self._mac("form", browser)

    def check_csrf_token(self, browser: str, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.csrf_token(browser).encode())

    def _mac(self, *parts: str) -> str:
        return hmac.new(self._key, "\0".join(parts).encode(), hashlib.sha256).hexdigest()


class SecurityMiddleware:
    """Refuses requests that are not allowed, and adds security headers and cookies to responses."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        signer: SessionSigner,
        hosts: Collection[str] | None,
        read_only: bool,
        clock: Callable[[], Micros],
    ) -> None:
        self._app = app
        self._signer = signer
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._read_only = read_only
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        cookie = request.cookies.get(BROWSER_COOKIE, "")
        browser = cookie if _BROWSER_ID.fullmatch(cookie) else secrets.token_urlsafe(24)
        has_token = self._has_token(request)
        is_authenticated = has_token or self._is_authenticated(request, browser)
        state = {"browser": browser, "has_token": has_token, "is_authenticated": is_authenticated}
        scope.setdefault("state", {}).update(state)
        respond = self._check(request, is_authenticated=is_authenticated) or self._app
        new_cookie = (
            None
            if browser == cookie
            else set_cookie_header(request, BROWSER_COOKIE, browser, SESSION_LIFETIME)
        )
        await respond(scope, receive, _with_headers(send, relative_path(request), new_cookie))

    def _check(self, request: Request, *, is_authenticated: bool) -> Response | None:
        if not self._is_allowed_host(request):
            return _refuse(
                421, "Unknown host name. Allow it with --allowed-host, or with Dashboard(hosts=...)."
            )
        if not self._signer.is_enabled and not _is_loopback_client(request):
            return _refuse(403, "Access from other machines requires a token. Start the server with --token.")
        if not is_authenticated and not _is_public_path(request):
            return _require_login(request)
        if request.method in ("GET", "HEAD"):
            return None if _is_allowed_navigation(request) else _refuse(403, "Cross-site request refused.")
        if not _is_same_origin(request):
            return _refuse(403, "Cross-site form refused.")
        if self._read_only and relative_path(request) not in READ_ONLY_EXEMPT_PATHS:
            return _refuse(403, "This dashboard is read-only.")
        return None

    def _is_allowed_host(self, request: Request) -> bool:
        if self._hosts is None:
            return True
        try:
            host = urlsplit(f"//{request.headers.get('host', '')}").hostname
        except ValueError:
            return False
        return host in self._hosts

    def _has_token(self, request: Request) -> bool:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self._signer.check_token(given.strip())

    def _is_authenticated(self, request: Request, browser: str) -> bool:
        if not self._signer.is_enabled:
            return True
        session = request.cookies.get(SESSION_COOKIE, "")
        return self._signer.is_valid_session(browser, session, now=self._clock())


def _is_public_path(request: Request) -> bool:
    """Return whether a path can be requested without authentication."""
    path = relative_path(request)
    return path == "/login" or path.startswith("/static/")


def _is_loopback_client(request: Request) -> bool:
    """Return whether the request comes from this machine. Behind a local proxy, this is always true."""
    return request.client is not None and is_loopback(request.client.host)


def relative_path(request: Request) -> str:
    """Return the path of a request, relative to the path at which the dashboard is mounted."""
    return request.scope["path"].removeprefix(mount_path(request)) or "/"


def mount_path(request: Request) -> str:
    """Return the path at which the dashboard is mounted."""
    return request.scope.get("root_path", "").rstrip("/")


def set_cookie_header(request: Request, name: str, value: str, lifetime: Micros) -> str:
    """Return a Set-Cookie header. Scripts cannot read the cookie, and forms on other sites do not send it.

    Links on other sites do send it (`Lax`), so that users who follow a link need not log in again.
    """
    path, age = mount_path(request) or "/", lifetime // 1_000_000
    secure = "; Secure" if request.url.scheme == "https" else ""
    return f"{name}={value}; Path={path}; Max-Age={age}; HttpOnly; SameSite=Lax{secure}"


def _is_allowed_navigation(request: Request) -> bool:
    """Return whether a request comes from a page of this dashboard, or from a link that the user followed."""
    is_own = request.headers.get("sec-fetch-site", "none") in ("same-origin", "none")
    return is_own or request.headers.get("sec-fetch-dest") == "document"


def _is_same_origin(request: Request) -> bool:
    """Return whether a request comes from this site, as far as its headers show."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host")


def _require_login(request: Request) -> Response:
    if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
        sentence = (
            "Authentication required: send the dashboard token in the header Authorization: Bearer TOKEN."
        )
        return _refuse(401, sentence, {"www-authenticate": "Bearer"})
    target = relative_path(request) + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{mount_path(request)}/login?next={quote(target)}", status_code=303)


def _refuse(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{sentence}\n", status, headers)


def _with_headers(send: Send, path: str, cookie: str | None) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(SECURITY_HEADERS)
            headers["cache-control"] = "no-cache" if path.startswith("/static/") else "no-store"
            if cookie is not None:
                headers.append("set-cookie", cookie)
        await send(message)

    return sending
