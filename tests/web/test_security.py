"""Who may see the dashboard, who may act through it, and what its answers forbid a browser to do."""

from __future__ import annotations

import secrets

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from perdure.storage import open_storage
from perdure.web import Dashboard
from perdure.web.security import SessionSigner

from .tool_dashboard import ME, ORIGIN, ToolDashboard, csrf_token_in, path_of, post, visiting

pytestmark = pytest.mark.anyio

TOKEN = secrets.token_urlsafe()
BEARER = {"authorization": f"Bearer {TOKEN}"}


def paths(dashboard: Dashboard, method: str) -> list[str]:
    """Of every route that answers to a method, with something in the place of its parameters."""
    return [
        route.path.replace("{handle}", "h").replace("{task_id}", "t" * 32).replace("{account_id:path}", "a")
        for route in dashboard.app.routes
        if isinstance(route, Route) and method in (route.methods or ())
    ]


async def test_with_a_token_every_page_needs_it(desk: ToolDashboard) -> None:
    dashboard = Dashboard(desk.storage, feeds=True, token=TOKEN)
    async with visiting(dashboard) as client:
        for path in set(paths(dashboard, "GET")) - {"/login"}:
            assert (await client.get(path)).headers["location"].startswith("/login?next=/")  # a browser
            assert (await client.get(path, headers={"accept": "*/*"})).status_code == 401
        for path in set(paths(dashboard, "POST")) - {"/login"}:
            assert (await client.post(path)).status_code == 401


async def test_the_token_opens_in_a_header_and_a_wrong_one_does_not(desk: ToolDashboard) -> None:
    async with visiting(Dashboard(desk.storage, token=TOKEN)) as client:
        assert (await client.get("/tasks", headers=BEARER)).status_code == 200
        for wrong in (f"Bearer {TOKEN}x", "Bearer ", f"Basic {TOKEN}", "Bearer \u00e9"):
            given = {b"authorization": wrong.encode(), b"accept": b"*/*"}
            assert (await client.get("/tasks", headers=given)).status_code == 401


async def test_the_login_form_sets_a_cookie_that_no_script_and_no_other_site_uses(
    desk: ToolDashboard,
) -> None:
    async with visiting(Dashboard(desk.storage, token=TOKEN)) as client:
        refused = await post(client, "/login", "", token=TOKEN[:-1])
        assert (refused.status_code, "perdure_session" in client.cookies) == (403, False)
        let_in = await post(client, "/login", "", token=TOKEN, next="/tasks?status=failed")
        assert (let_in.status_code, let_in.headers["location"]) == (303, "/tasks?status=failed")
        assert "HttpOnly; SameSite=Lax" in let_in.headers["set-cookie"]
        assert TOKEN not in let_in.headers["set-cookie"]
        assert (await client.get("/tasks")).status_code == 200


async def test_a_session_is_of_one_browser_and_ends(desk: ToolDashboard) -> None:
    now = [1_800_000_000_000_000]
    dashboard = Dashboard(desk.storage, token=TOKEN, clock=lambda: now[0])
    async with visiting(dashboard) as client:
        await post(client, "/login", "", token=TOKEN)
        stolen = {
            "cookie": f"perdure_browser={'x' * 32}; perdure_session={client.cookies['perdure_session']}"
        }
        transport = httpx2.ASGITransport(app=dashboard.app)
        async with httpx2.AsyncClient(transport=transport, base_url=ORIGIN, headers=stolen) as other:
            assert (await other.get("/tasks")).status_code == 401
        assert (await client.get("/tasks")).status_code == 200
        now[0] += 8 * 24 * 3600 * 1_000_000
        assert (await client.get("/tasks")).status_code == 303


@pytest.mark.parametrize("forged", ["", "x", "1.2", "9999999999999999.", "²."])
async def test_a_cookie_that_was_made_up_opens_nothing(desk: ToolDashboard, forged: str) -> None:
    async with visiting(Dashboard(desk.storage, token=TOKEN)) as client:
        cookie = f"perdure_session={forged}".encode()
        assert (await client.get("/tasks", headers={b"cookie": cookie})).status_code == 303


async def test_what_is_only_like_the_way_in_is_closed(desk: ToolDashboard) -> None:
    async with visiting(Dashboard(desk.storage, token=TOKEN)) as client:
        assert (await client.get("/loginx")).headers["location"] == "/login?next=/loginx"
        missed = await client.get("/static/nothing.css")
        assert (missed.status_code, "Log out" in missed.text) == (404, False)
        wrong = await client.put("/login", headers=BEARER)
        assert (wrong.status_code, "GET" in wrong.headers["allow"]) == (405, True)


async def test_logging_out_closes(desk: ToolDashboard) -> None:
    async with visiting(Dashboard(desk.storage, token=TOKEN)) as client:
        await post(client, "/login", "", token=TOKEN)
        key = csrf_token_in((await client.get("/tasks")).text)
        await client.post("/logout", data={"csrf_token": key})
        assert (await client.get("/tasks")).status_code == 303


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example", "//evil.example", "/\\evil.example", "x", "/\n"]
)
async def test_the_login_redirects_only_to_this_server(desk: ToolDashboard, elsewhere: str) -> None:
    async with visiting(Dashboard(desk.storage, token=TOKEN)) as client:
        let_in = await post(client, "/login", "", token=TOKEN, next=elsewhere)
        assert let_in.headers["location"] == "/"


async def test_every_form_needs_the_key_of_its_browser(desk: ToolDashboard) -> None:
    dashboard = Dashboard(desk.storage, feeds=True)
    async with visiting(dashboard) as client, visiting(dashboard) as other:
        foreign = csrf_token_in(
            (await other.get(await path_of(other, await desk.submit("build_report")))).text
        )
        for path in paths(dashboard, "POST"):
            for form in ({}, {"csrf_token": ""}, {"csrf_token": "x"}, {"csrf_token": foreign}):
                assert (await client.post(path, data=form)).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_a_form_from_another_site_changes_nothing(
    desk: ToolDashboard, client: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    task_id = await desk.submit("build_report")
    page = await path_of(client, task_id)
    key = csrf_token_in((await client.get(page)).text)
    answer = await client.post(f"{page}/cancel", data={"csrf_token": key}, headers=headers)
    assert answer.status_code == 403
    assert (await desk.runtime.get(ME, task_id)).task.cancel_requested_at is None
    ours = {"origin": ORIGIN, "sec-fetch-site": "same-origin"}
    assert (await client.post(f"{page}/cancel", data={"csrf_token": key}, headers=ours)).status_code == 303


async def test_read_only_refuses_every_form_and_shows_none(desk: ToolDashboard) -> None:
    dashboard = Dashboard(desk.storage, feeds=True, read_only=True, token=TOKEN)
    task_id = await desk.submit("sign_report")
    await desk.until(task_id, "input_required")
    async with visiting(dashboard) as client:
        client.headers.update(BEARER)
        page = await client.get(await path_of(client, task_id))
        assert "Who signs" in page.text
        assert "/cancel" not in page.text
        assert "/answer" not in page.text
        for path in set(paths(dashboard, "POST")) - {"/login", "/logout"}:
            assert (await client.post(path)).status_code == 403
    assert (await desk.runtime.get(ME, task_id)).task.status == "input_required"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "localhost@evil.example", "[::1"]
)
async def test_a_server_on_loopback_answers_to_no_other_name(client: httpx2.AsyncClient, host: str) -> None:
    for path in ("/", "/tasks", "/static/style.css", "/login"):
        assert (await client.get(path, headers={"host": host})).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000"])
async def test_a_server_on_loopback_answers_to_its_own_names(client: httpx2.AsyncClient, host: str) -> None:
    assert (await client.get("/", headers={"host": host})).status_code == 200


async def test_every_answer_keeps_the_browser_from_running_or_framing_anything(desk: ToolDashboard) -> None:
    async with visiting(Dashboard(desk.storage, token=TOKEN)) as client:
        asked: list[tuple[str, dict[str, str]]] = [
            ("/tasks", {}),
            ("/tasks", BEARER),
            ("/nothing", BEARER),
            ("/static/style.css", {}),
            ("/login", {}),
        ]
        for path, headers in [*asked, ("/", {"host": "evil.example"})]:
            answer = await client.get(path, headers=headers)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "same-origin"


async def test_a_form_that_is_too_large_is_not_read(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/logout", content=b"a=" + b"x" * 2_000_000)
    assert answer.status_code == 413


async def test_it_works_where_it_is_mounted(desk: ToolDashboard) -> None:
    dashboard = Dashboard(desk.storage, token=TOKEN)
    task_id = await desk.submit("build_report")
    outer = Starlette(routes=[Mount("/admin", dashboard.app)])
    transport = httpx2.ASGITransport(app=outer)
    headers = {"accept": "text/html"}
    async with (
        dashboard.running(),
        httpx2.AsyncClient(transport=transport, base_url=ORIGIN, headers=headers) as client,
    ):
        assert (await client.get("/admin/tasks")).headers["location"] == "/admin/login?next=/tasks"
        let_in = await post(client, "/admin/login", "", token=TOKEN)
        assert let_in.headers["location"] == "/admin/"
        page = (await client.get("/admin/tasks")).text
        assert f'/{task_id}"' in page
        assert 'href="/admin/static/style.css"' in page
        assert 'data-events="/admin/events/tasks' in page
        assert (await client.get("/admin/static/style.css")).status_code == 200


@pytest.mark.parametrize("token", ["", " " * 20, "a", "x" * 15])
async def test_a_token_that_could_be_guessed_is_refused(token: str) -> None:
    async with await open_storage("memory:") as storage:
        with pytest.raises(ValueError, match="at least 16 characters"):
            Dashboard(storage, token=token)


async def test_a_dashboard_of_any_name_needs_a_token() -> None:
    """Else a page elsewhere could point a name of its own at this machine, and read everything."""
    async with await open_storage("memory:") as storage:
        with pytest.raises(ValueError, match="set a token, or list the host names"):
            Dashboard(storage, hosts=None)
        Dashboard(storage, hosts=None, token=TOKEN)


async def test_an_error_of_the_application_leaves_a_running_dashboard_as_it_was_raised() -> None:
    async with await open_storage("memory:") as storage:
        with pytest.raises(KeyError):
            async with Dashboard(storage).running():
                raise KeyError


async def test_without_a_token_other_machines_are_refused_whatever_host_they_name(
    desk: ToolDashboard,
) -> None:
    dashboard = Dashboard(desk.storage)
    transport = httpx2.ASGITransport(app=dashboard.app, client=("192.0.2.7", 4711))
    async with dashboard.running(), httpx2.AsyncClient(transport=transport, base_url=ORIGIN) as stranger:
        assert (await stranger.get("/tasks")).status_code == 403
    with_token = httpx2.ASGITransport(
        app=Dashboard(desk.storage, token=TOKEN).app, client=("192.0.2.7", 4711)
    )
    async with httpx2.AsyncClient(transport=with_token, base_url=ORIGIN) as known:
        assert (await known.get("/tasks", headers=BEARER)).status_code == 200


def test_what_a_form_carries_follows_from_no_token_where_there_is_none() -> None:
    first, second = SessionSigner(None), SessionSigner(None)
    assert first.csrf_token("b") != second.csrf_token("b")
    assert SessionSigner(TOKEN).csrf_token("b") == SessionSigner(TOKEN).csrf_token("b")
