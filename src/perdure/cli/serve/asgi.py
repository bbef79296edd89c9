"""What stands at which path: the server at /mcp, /health for whoever watches over it, else the dashboard.
Clients look below /.well-known for how to be authorized, before they have a token.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from ...feeds.account import ACCOUNTS
from ...mcp.refusals import not_set_up
from ...storage import Storage
from ..errors import CannotDo
from .health import Health
from .plan import Plan
from .poller import FeedPoller
from .servers import PATH, Hosted

log = logging.getLogger("perdure.serve")

HEALTH = "/health"
WELL_KNOWN = "/.well-known/"
STOPPING = JSONResponse({"status": "stopping"}, 503)


class Site:
    """One application of two. It answers as long as it is `running`."""

    def __init__(self, hosted: Hosted, plan: Plan, poller: FeedPoller | None) -> None:
        self._hosted = hosted
        self._plan = plan
        self._poller = poller
        self._server: ASGIApp = Logged(hosted.app)
        self._dashboard: ASGIApp | None = None
        self._health: Health | None = None
        """None: it does not run."""

    @property
    def storage(self) -> Storage:
        """Where the tasks are, while it runs."""
        return self._hosted.service.runtime.store.storage

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """With the server's own lifespan, which opens the storage; the dashboard is of the same one."""
        app = self._hosted.app
        async with app.router.lifespan_context(app):
            if not self._hosted.service.is_joined:
                raise CannotDo(not_set_up("lifespan=tasks.lifespan").error.message)
            is_guarded = self._hosted.checks_callers and self._hosted.service.host.is_authenticated
            if self._plan.token is not None and not is_guarded:
                self._server = Gate(self._server, self._plan.token)
            async with self._shown(), self._polled():
                self._health = Health(self.storage, self._poller)
                try:
                    yield
                finally:
                    self._health = None

    @asynccontextmanager
    async def _shown(self) -> AsyncGenerator[None]:
        if not self._plan.dashboard:
            yield
            return
        from ...web import Dashboard  # noqa: PLC0415 (the extra may be missing)

        dashboard = Dashboard(
            self.storage,
            feeds=self._poller is not None or await self._has_feeds(),
            token=self._plan.visitors_token,
            read_only=self._plan.read_only,
            hosts=self._plan.names,
            config=self._hosted.service.runtime.store.config,
        )
        self._dashboard = dashboard.app
        async with dashboard.running():
            yield

    @asynccontextmanager
    async def _polled(self) -> AsyncGenerator[None]:
        if self._poller is None:
            yield
            return
        async with self._poller.running(self.storage):
            yield

    async def _has_feeds(self) -> bool:
        return self._hosted.is_sample or any((await self.storage.counts(ACCOUNTS, now=0)).values())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answering(scope)(scope, receive, send)

    def _answering(self, scope: Scope) -> ASGIApp:
        """Who answers. A path that the user's own server has is the server's."""
        if self._health is None:
            return STOPPING
        path: str = scope["path"]
        if _serves(self._hosted.app, scope) or path == f"{PATH}/":
            return self._server
        if path == HEALTH:
            return self._answer_health
        if path.startswith(WELL_KNOWN):
            return self._hosted.app  # which has nothing there, and says so to everybody
        return self._server if self._dashboard is None else self._dashboard

    async def _answer_health(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = STOPPING if self._health is None else await self._health.answer()
        await answer(scope, receive, send)


def _serves(app: Starlette, scope: Scope) -> bool:
    return any(route.matches(scope)[0] is not Match.NONE for route in app.routes)


class Logged:
    """Logs every exception of the user's own routes.

    uvicorn would do that too, but it is silenced: it also logs each connection that is cut at the end.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception:
            log.exception("%s %r raised an exception", scope.get("method", scope["type"]), scope["path"])
            raise


class Gate:
    """Lets in only those who know the token, as `Authorization: Bearer`."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._knows(scope):
            await self._app(scope, receive, send)
            return
        refusal = JSONResponse({"error": "unauthorized"}, 401, {"WWW-Authenticate": "Bearer"})
        await refusal(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given: bytes = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        return hmac.compare_digest(scheme.lower() + b" " + token.strip(), self._wanted)


def check_dashboard() -> None:
    """Say what is missing before anything is opened."""
    try:
        from ... import web  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport]
    except ModuleNotFoundError as error:
        raise CannotDo(
            f"{error.name} is not installed; install the dashboard with: pip install 'perdure[web]', "
            "or leave it out with --no-dashboard"
        ) from error
