"""A dashboard over real tasks on SQLite that continue when a test says so; in process, or over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import uvicorn
from msgspec.structs import replace
from starlette.types import ASGIApp

from perdure.runtime import App, Runtime, Task, TaskFailed
from perdure.storage import Storage, open_storage
from perdure.tasks import Owner, Snapshot
from perdure.web import Dashboard

from ..runtime.replicas import QUICK

PAGES = 4
SLOW_HEARTBEAT = replace(QUICK, heartbeat_interval=3.0)
"""A lease outlasts a machine that stands still for a while: no worker is lost here."""
ME = Owner.user("https://id.example", "ana <secret>")
ORIGIN = "http://127.0.0.1"
FORM = {
    "type": "object",
    "required": ["name", "colour"],
    "properties": {
        "name": {"type": "string", "title": "Full name", "description": "As it is to be printed."},
        "colour": {"type": "string", "enum": ["ink", "teal"], "title": "Colour"},
        "copies": {"type": "integer", "minimum": 1, "title": "Copies"},
        "weight": {"type": "number", "title": "Weight"},
        "signed": {"type": "boolean", "title": "Signed"},
    },
}


class ToolDashboard:
    """What a test does: submit work, let it continue, check the result."""

    def __init__(self, storage: Storage, runtime: Runtime, pages: asyncio.Semaphore) -> None:
        self.storage = storage
        self.runtime = runtime
        self._pages = pages

    async def submit(self, function: str, year: int = 2026) -> str:
        return (await self.runtime.submit(function, {"year": year}, owner=ME)).task.task_id

    def turn_page(self) -> None:
        """Let a report continue by a page."""
        self._pages.release()

    async def until(self, task_id: str, *statuses: str) -> Snapshot:
        async for snapshot in self.runtime.watch(ME, task_id):
            if snapshot.task.status in statuses:
                return snapshot
        raise AssertionError(f"the task was never {statuses}")


@asynccontextmanager
async def open_tool_dashboard(folder: Path) -> AsyncGenerator[ToolDashboard]:
    pages = asyncio.Semaphore(0)
    async with (
        await open_storage(f"sqlite:///{folder / 'tasks.db'}") as storage,
        _app(storage, pages).open() as runtime,
    ):
        yield ToolDashboard(storage, runtime, pages)


def _app(storage: Storage, pages: asyncio.Semaphore) -> App:
    app = App(storage, runtime=SLOW_HEARTBEAT, application="tests")

    @app.function(retries=1)
    async def build_report(year: int, task: Task) -> str:
        for page in range(1, PAGES + 1):
            await task.report_progress(page, PAGES, f"page {page} of <{year}>")
            await task.set_variables({"page": page})
            await pages.acquire()
        return f"{PAGES} pages"

    @app.function
    async def sign_report(year: int, task: Task) -> dict[str, object]:
        answer = await task.elicit(f"Who signs <{year}>?", FORM)
        return {"action": answer.action, "content": answer.data or {}}

    @app.function
    async def print_report(year: int) -> str:
        raise TaskFailed(-32001, f"no paper for <{year}>", {"tray": 2})

    @app.function
    async def write_log(year: int, task: Task) -> None:
        for line in range(205):
            await task.log("warning", f"line {line} of <{year}>", logger="db")

    return app


@asynccontextmanager
async def visiting(dashboard: Dashboard) -> AsyncGenerator[httpx2.AsyncClient]:
    """A browser, as far as cookies go, that speaks to the application itself."""
    transport = httpx2.ASGITransport(app=dashboard.app)
    async with (
        dashboard.running(),
        httpx2.AsyncClient(transport=transport, base_url=ORIGIN, headers={"accept": "text/html"}) as client,
    ):
        yield client


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncGenerator[str]:
    """The address of a real server, which ends in good order."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done()
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, 20)


def csrf_token_in(html: str) -> str:
    found = re.search(r'name="csrf_token" value="([^"]+)"', html)
    assert found
    return found[1]


async def path_of(client: httpx2.AsyncClient, task_id: str) -> str:
    """The page of a task, as the list links to it."""
    found = re.search(rf'href="(/tasks/[^/"]+/{task_id})"', (await client.get("/tasks")).text)
    assert found
    return found[1]


async def post(client: httpx2.AsyncClient, page: str, below: str, /, **fields: str) -> httpx2.Response:
    """Send a form as the page has it."""
    key = csrf_token_in((await client.get(page)).text)
    return await client.post(page + below, data={"csrf_token": key, **fields})
