"""`Dashboard` is a web application that shows the tasks of all owners.

Run it on its own, or mount it in another application:

    dashboard = Dashboard(storage, token="...")
    app = Starlette(routes=[Mount("/dashboard", dashboard.app)], lifespan=lambda _: dashboard.running())

If the other application already has a lifespan, as an MCP server does, enter both contexts.
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

from ..feeds import Feeds, FeedStore
from ..feeds.account import ACCOUNTS
from ..operating import Operator
from ..operating.encryption_keys import MissingKeys
from ..runtime.background import run_in_background
from ..storage import Micros, Storage
from ..storage.errors import StorageError
from ..storage.loopback_address import LOOPBACK_HOSTS
from ..storage.time_types import system_clock
from ..tasks import StoreConfig
from ..tasks.encryption import Keyring
from ..tasks.errors import TaskError
from ..tasks.task_snapshot import TASKS
from .charts import CountHistory
from .feeds import FeedPages
from .forms import Form, post_route
from .live import LiveUpdates
from .overview import OverviewPages
from .renderer import Renderer
from .security import (
    SESSION_COOKIE,
    SESSION_LIFETIME,
    SecurityMiddleware,
    SessionSigner,
    mount_path,
    set_cookie_header,
)
from .tasks import TaskPages


class Dashboard:
    """The dashboard for an open storage. It does not close the storage.

    Users log in with `token`, which must have at least 16 characters. Without a token, only this machine has
    access. `hosts` are the allowed host names. `None` allows all host names, and requires a token. `feeds`
    adds the feed pages, and `read_only` disables cancelling and answering.

    If the servers use a custom `config`, pass it here too. To cancel or answer encrypted tasks, pass the
    `keys` of the servers. With `missing_keys`, the overview warns about tasks that cannot be read for lack of
    a key. The pages show `name`, the name of the server. If there are no tasks, they also show `first_task`:
    commands or lines of code with which a user can create one.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        feeds: bool = False,
        token: str | None = None,
        read_only: bool = False,
        hosts: Collection[str] | None = LOOPBACK_HOSTS,
        config: StoreConfig = StoreConfig(),
        keys: Keyring | None = None,
        missing_keys: MissingKeys | None = None,
        name: str | None = None,
        first_task: str | None = None,
        clock: Callable[[], Micros] = system_clock,
    ) -> None:
        if hosts is None and token is None:
            raise ValueError(
                "hosts=None without a token allows DNS rebinding attacks; "
                "set a token, or list the host names of the server in hosts"
            )
        self._clock = clock
        self._signer = SessionSigner(token)
        self._operator = Operator(storage, clock, config=config, keys=keys)
        self._history = CountHistory(self._operator.counts, clock)
        self._live = LiveUpdates(storage, [TASKS, ACCOUNTS] if feeds else [TASKS])
        self._keys = Keyring() if keys is None else keys
        self._missing_keys = missing_keys
        self._renderer = Renderer(
            signer=self._signer,
            live=self._live,
            read_only=read_only,
            feeds=feeds,
            server_name=name,
            first_task=first_task,
        )
        self._feeds = Feeds(FeedStore(storage, clock=clock)) if feeds else None
        security = Middleware(
            SecurityMiddleware, signer=self._signer, hosts=hosts, read_only=read_only, clock=clock
        )
        self.app = Starlette(
            routes=self._routes(),
            middleware=[security],
            lifespan=lambda _: self.running(),
            exception_handlers=dict.fromkeys(
                (HTTPException, StorageError, TaskError, 500), self._renderer.error_page
            ),
        )
        """The ASGI application. If you mount it, enter `running` yourself: a mounted application does not run
        its own lifespan."""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Update open pages and collect data for the charts until the context exits."""
        async with run_in_background(self._history.sample_forever()), self._live.running():
            yield

    def _routes(self) -> list[BaseRoute]:
        static = Path(str(files("perdure.web") / "static"))
        return [
            Mount("/static", StaticFiles(directory=static), name="static"),
            Route("/login", self._login_form),
            post_route("/login", self._log_in, self._signer),
            post_route("/logout", self._log_out, self._signer),
            *self._overview().routes(),
            *TaskPages(self._renderer, self._operator).routes(),
            *([] if self._feeds is None else FeedPages(self._renderer, self._feeds).routes()),
        ]

    def _overview(self) -> OverviewPages:
        return OverviewPages(
            self._renderer, self._operator, self._history, self._keys, self._missing_keys, self._clock
        )

    async def _login_form(self, request: Request) -> Response:
        return self._login_page(request, request.query_params.get("next", "/"))

    async def _log_in(self, request: Request, form: Form) -> Response:
        target = form.get("next", "/")
        if not self._signer.check_token(form.get("token", "").strip()):
            return self._login_page(request, target, status=403, problem="Wrong token.")
        response = RedirectResponse(mount_path(request) + _local_path(target), 303)
        session = self._signer.sign_session(request.state.browser, now=self._clock())
        response.headers.append(
            "set-cookie", set_cookie_header(request, SESSION_COOKIE, session, SESSION_LIFETIME)
        )
        return response

    async def _log_out(self, request: Request, _form: Form) -> Response:
        response = RedirectResponse(f"{mount_path(request)}/login", 303)
        response.headers.append("set-cookie", set_cookie_header(request, SESSION_COOKIE, "", 0))
        return response

    def _login_page(self, request: Request, target: str, *, status: int = 200, problem: str = "") -> Response:
        if not self._signer.is_enabled:
            return RedirectResponse(mount_path(request) + "/", 303)
        return self._renderer.page(
            request, "login", status=status, context={"next": _local_path(target), "problem": problem}
        )


def _local_path(target: str) -> str:
    """Return the path to open after the login. It is `/` if the target could be on another site."""
    is_local = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_local and target.isprintable() else "/"
