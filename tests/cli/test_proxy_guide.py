"""The nginx configuration of docs/guides/deployment.md works, and needs what the guide explains.

It runs in a real nginx with TLS, in front of a real `perdure serve`. What surrounds the block is as
unfavourable as nginx allows: all that the block does not set itself is set against it.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from perdure import ClientTasks
from perdure.mcp.client import ClientTask
from perdure.storage.kit.servers.process import free_port

from ..certificates import certified
from ..conditions import wait_until
from ..doc_pages.pages import DOCS, blocks_of
from ..mcp import nginx
from ..mcp.tool_helpers import text_of
from ..web.tool_dashboard import csrf_token_in, post
from .serve_process import TOKEN, Background, in_background

pytestmark = pytest.mark.anyio

UPSTREAM = "http://127.0.0.1:8000"
"""The server, as the guide names it."""
AROUND = """
proxy_read_timeout 1s;
proxy_ignore_headers X-Accel-Buffering;
proxy_buffer_size 64k;
proxy_buffers 8 64k;
server {{
  listen 127.0.0.1:{port} ssl;
  server_name localhost;
  ssl_certificate {certificate};
  ssl_certificate_key {certificate};
  {block}
}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Background]:
    with in_background(tmp_path_factory.mktemp("proxied"), "--token", TOKEN) as server:
        yield server


def block(without: str | None = None) -> str:
    """Return the configuration of the guide, or all of it but one directive."""
    (found,) = [
        each.text for each in blocks_of(DOCS / "guides" / "deployment.md") if each.language == "nginx"
    ]
    if without is None:
        return found
    kept = [line for line in found.splitlines() if not line.strip().startswith(without)]
    assert len(kept) == len(found.splitlines()) - 1
    return "\n".join(kept)


class ProxiedServer:
    """A server as its users reach it: by HTTPS, through nginx."""

    def __init__(self, port: int, certificate: Path) -> None:
        self.origin = f"https://localhost:{port}"
        self._tls = ssl.create_default_context(cafile=certificate)

    @asynccontextmanager
    async def program(self) -> AsyncGenerator[tuple[Client, ClientTasks]]:
        """The official client, with the token."""
        tasks, headers = ClientTasks(), {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(verify=self._tls, headers=headers, timeout=30) as http,
            Client(
                streamable_http_client(f"{self.origin}/mcp", http_client=http), extensions=[tasks]
            ) as client,
        ):
            yield client, tasks

    @asynccontextmanager
    async def browser(self) -> AsyncGenerator[tuple[httpx2.AsyncClient, httpx2.Response]]:
        """A browser that has sent the form of the login, and the answer to that form."""
        headers = {"Origin": self.origin, "Accept": "text/html"}
        async with httpx2.AsyncClient(
            base_url=self.origin, verify=self._tls, headers=headers, timeout=60
        ) as client:
            yield client, await post(client, "/login", "", token=TOKEN)


@asynccontextmanager
async def proxied(
    server: Background, folder: Path, without: str | None = None
) -> AsyncGenerator[ProxiedServer]:
    port, certificate, configured = free_port(), certified(folder.parent), block(without)
    assert configured.count(UPSTREAM) == 1
    http = AROUND.format(port=port, certificate=certificate, block=configured.replace(UPSTREAM, server.root))
    async with nginx.running(http, port, folder):
        yield ProxiedServer(port, certificate)


class Page:
    """The open list of tasks: what its event stream has brought so far."""

    def __init__(self, browser: httpx2.AsyncClient) -> None:
        self._reading = asyncio.create_task(self._read(browser))
        self.updates: list[str] = []

    async def _read(self, browser: httpx2.AsyncClient) -> None:
        with suppress(httpx2.HTTPError):
            async with browser.stream("GET", "/events/tasks") as answer:
                assert answer.status_code == 200
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        self.updates.append(json.dumps(json.loads(line.removeprefix("data: "))["fragments"]))

    @property
    def is_over(self) -> bool:
        return self._reading.done()

    def shows(self, text: str) -> bool:
        assert not self.is_over
        return any(text in update for update in self.updates)

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])


@asynccontextmanager
async def opened(site: ProxiedServer) -> AsyncGenerator[Page]:
    async with site.browser() as (browser, _):
        page = Page(browser)
        try:
            yield page
        finally:
            await page.close()


async def is_closed_by_the_proxy(site: ProxiedServer) -> None:
    """Open a page through a proxy that tolerates no second of silence, until that has closed it."""
    async with opened(site) as page:
        await wait_until(lambda: page.is_over)


async def test_calls_forms_and_open_pages_work_through_the_proxy(server: Background, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        site = await stack.enter_async_context(proxied(server, tmp_path / "guide"))
        brief = await stack.enter_async_context(proxied(server, tmp_path / "brief", "proxy_read_timeout"))
        browser, login = await stack.enter_async_context(site.browser())
        page = await stack.enter_async_context(opened(site))
        assert login.status_code == 303
        assert all("; Secure" in cookie for cookie in login.headers.get_list("set-cookie"))
        await wait_until(lambda: page.updates != [])

        client, tasks = await stack.enter_async_context(site.program())
        approval = await tasks.start(client, "approve_report", {"year": 2026})
        calling = asyncio.create_task(client.call_tool("approve_report", {"year": 2027}))
        await wait_until(lambda: page.shows(approval.id))
        for _ in range(2):  # each takes as long as nginx tolerates silence, where nothing else is configured
            await is_closed_by_the_proxy(brief)
        assert not calling.done()

        for _ in range(2):
            await approve_next(browser)
        assert text_of(await approval.wait(30)) == "the 2026 report is approved"
        assert text_of(await calling) == "the 2027 report is approved"
        await wait_until(lambda: page.shows("completed"))


async def approve_next(browser: httpx2.AsyncClient) -> None:
    """Answer a question as an operator, with the form on the page of its task."""
    waiting = (await browser.get("/tasks?status=input_required")).text
    found = re.search(r'href="(/tasks/[^/"]+/[^/"]+)"', waiting)
    assert found, waiting
    html = (await browser.get(found[1])).text
    key = re.search(r'name="key" value="([^"]+)"', html)
    assert key, html
    form = {"csrf_token": csrf_token_in(html), "key": key[1], "action": "accept", "field.approved": "true"}
    sent = await browser.post(f"{found[1]}/answer", data=form)
    assert sent.status_code == 303, sent.text


# What fails without each directive


async def test_without_the_host_a_form_is_refused(server: Background, tmp_path: Path) -> None:
    async with (
        proxied(server, tmp_path / "site", "proxy_set_header Host") as site,
        site.browser() as (_, login),
    ):
        assert login.status_code == 403
        assert "Cross-site form refused." in login.text


async def test_without_the_protocol_the_cookie_is_not_secure(server: Background, tmp_path: Path) -> None:
    async with (
        proxied(server, tmp_path / "site", "proxy_set_header X-Forwarded-Proto") as site,
        site.browser() as (_, login),
    ):
        assert login.status_code == 303
        assert not any("Secure" in cookie for cookie in login.headers.get_list("set-cookie"))


async def test_with_buffering_an_open_page_is_not_sent_what_changes(
    server: Background, tmp_path: Path
) -> None:
    async with (
        proxied(server, tmp_path / "guide") as site,
        proxied(server, tmp_path / "buffered", "proxy_buffering") as buffered,
        opened(buffered) as late,
        opened(site) as page,
        site.program() as (client, tasks),
    ):
        await wait_until(lambda: page.updates != [])
        task: ClientTask = await tasks.start(client, "sign_report", {"year": 2026})
        await wait_until(lambda: page.shows(task.id))
        await task.cancel()
        assert (late.updates, late.is_over) == ([], False)
