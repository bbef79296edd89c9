"""`Dashboard`: everybody's tasks in a browser. The one place where its parts are put together.

It is an application of its own, or mounted in another:

    dashboard = Dashboard(storage, token="...")
    app = Starlette(routes=[Mount("/dashboard", dashboard.app)], lifespan=lambda _: dashboard.running())

Another application's own lifespan, such as that of an MCP server, has to be entered beside `running`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from ..feeds import FeedStore
from ..feeds.account import ACCOUNTS
from ..operating import Operator
from ..storage import Micros, Storage
from ..storage.clock import system_clock
from ..storage.errors import StorageError
from ..tasks import StoreConfig
from ..tasks.errors import TaskError
from ..tasks.snapshot import TASKS
from .charts import Sampler
from .feeds import FeedPages
from .forms import Form, post
from .live import Live
from .overview import OverviewPages
from .renderer import Site
from .security import LASTS, LOOPBACK, SESSION, Guard, Sessions, base_of, cookie_of
from .tasks import ListPages, TaskPages


class Dashboard:
    """Takes a storage that is open, and leaves closing it to its owner.

    `token`: what every request must show, at least 16 characters. `hosts`: the names that the server goes by;
    None for any, which needs a token. `read_only`: nothing is cancelled or answered.
    `config`: that of the servers, where it is not the usual one.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        feeds: bool = False,
        token: str | None = None,
        read_only: bool = False,
        hosts: Collection[str] | None = LOOPBACK,
        config: StoreConfig = StoreConfig(),
        clock: Callable[[], Micros] = system_clock,
    ) -> None:
        if hosts is None and token is None:
            raise ValueError(
                "hosts=None lets any web page reach this dashboard under a name of its own; "
                "give a token, or the names that the server goes by"
            )
        self._clock = clock
        self._sessions = Sessions(token)
        self._operator = Operator(storage, clock, config=config)
        self._sampler = Sampler(self._operator.counts, clock)
        self._live = Live(storage, [TASKS, ACCOUNTS] if feeds else [TASKS])
        self._site = Site(sessions=self._sessions, live=self._live, read_only=read_only, feeds=feeds)
        self._feeds = FeedStore(storage, clock=clock) if feeds else None
        guard = Middleware(Guard, sessions=self._sessions, hosts=hosts, read_only=read_only, clock=clock)
        self.app = Starlette(
            routes=self._routes(),
            middleware=[guard],
            lifespan=lambda _: self.running(),
            exception_handlers=dict.fromkeys(
                (HTTPException, StorageError, TaskError, 500), self._site.failed
            ),
        )
        """Run it, or mount it and enter `running` yourself: what is mounted has no lifespan of its own."""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Open pages are kept up to date, and the charts are fed, until this is left."""
        async with self._sampler.running(), self._live.running():
            yield

    def _routes(self) -> list[BaseRoute]:
        static = Path(str(files("perdure.web") / "static"))
        return [
            Mount("/static", StaticFiles(directory=static), name="static"),
            Route("/login", self._ask_for_token),
            post("/login", self._log_in, self._sessions),
            post("/logout", self._log_out, self._sessions),
            *OverviewPages(self._site, self._operator, self._sampler, self._clock).routes(),
            *ListPages(self._site, self._operator).routes(),
            *TaskPages(self._site, self._operator).routes(),
            *([] if self._feeds is None else FeedPages(self._site, self._feeds).routes()),
        ]

    async def _ask_for_token(self, request: Request) -> Response:
        return self._login_page(request, request.query_params.get("next", "/"))

    async def _log_in(self, request: Request, form: Form) -> Response:
        wanted = form.get("next", "/")
        if not self._sessions.is_token(form.get("token", "").strip()):
            return self._login_page(request, wanted, status=403, problem="That is not the token.")
        answer = RedirectResponse(base_of(request) + _own_path(wanted), 303)
        session = self._sessions.opened(request.state.browser, now=self._clock())
        answer.headers.append("set-cookie", cookie_of(request, SESSION, session, LASTS))
        return answer

    async def _log_out(self, request: Request, _form: Form) -> Response:
        answer = RedirectResponse(f"{base_of(request)}/login", 303)
        answer.headers.append("set-cookie", cookie_of(request, SESSION, "", 0))
        return answer

    def _login_page(self, request: Request, wanted: str, *, status: int = 200, problem: str = "") -> Response:
        if not self._sessions.are_needed:
            return RedirectResponse(base_of(request) + "/", 303)
        return self._site.page(
            request, "login", status=status, context={"next": _own_path(wanted), "problem": problem}
        )


def _own_path(wanted: str) -> str:
    """Where to go after the login: nowhere but here."""
    is_ours = wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    return wanted if is_ours and wanted.isprintable() else "/"
