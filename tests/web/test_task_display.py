"""What the pages show beside the status of tasks: server, times, workers, reasons, results, first steps."""

from __future__ import annotations

import re

import httpx2
import pytest
from playwright.async_api import Browser, expect

from perdure.operating.encryption_keys import MissingKeys
from perdure.runtime import App, Retry
from perdure.storage import open_storage
from perdure.tasks import Json, NewTask, StoreConfig, Success, TaskId, TaskStore
from perdure.tasks.encryption import Keyring, Place, new_key
from perdure.tasks.errors import KeyMissing
from perdure.web import Dashboard
from perdure.web.results import Block, result_blocks

from .. import task_edits
from .browser import is_live
from .tool_dashboard import ME, SLOW_HEARTBEAT, ToolDashboard, path_of, served, visiting

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("drawn_often")]

PAGES = ("/", "/tasks", "/workers")
FIRST_TASK = 'import tea\ncall_tool("<brew>", {...})'


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """All tests of this file run in one event loop, so that they can share a browser."""
    return "asyncio"


# The server


async def test_every_page_shows_the_name_of_the_server(desk: ToolDashboard) -> None:
    async with visiting(Dashboard(desk.storage, name="shop & <co>")) as client:
        for path in (*PAGES, "/nothing"):
            page = (await client.get(path)).text
            assert page.count("shop &amp; &lt;co&gt;") == 2, path  # in the title and in the header


async def test_the_login_page_does_not_show_the_name(desk: ToolDashboard) -> None:
    dashboard = Dashboard(desk.storage, name="secret shop", token="a-token-that-is-long")  # noqa: S106
    async with visiting(dashboard) as client:
        assert "secret shop" not in (await client.get("/login")).text


# The first task


async def test_an_empty_list_shows_how_to_create_the_first_task_until_there_is_one(
    desk: ToolDashboard,
) -> None:
    async with visiting(Dashboard(desk.storage, first_task=FIRST_TASK)) as client:
        empty, filtered = (await client.get("/tasks")).text, (await client.get("/tasks?name=x")).text
        await desk.submit("build_report")
        listed = (await client.get("/tasks")).text
    shown = "call_tool(&#34;&lt;brew&gt;&#34;, {...})"
    assert (shown in empty, shown in filtered, shown in listed) == (True, False, False)
    assert "No tasks yet." in empty
    assert "<code>python -m asyncio</code>" in empty


async def test_a_single_line_that_creates_the_first_task_is_a_shell_command(desk: ToolDashboard) -> None:
    async with visiting(Dashboard(desk.storage, first_task="perdure samples")) as client:
        assert "To create the first task, run this in another terminal:" in (await client.get("/tasks")).text


# Why a task waits, and who ran it


async def test_a_task_that_waits_for_its_next_attempt_shows_until_when_and_why(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    app = App(desk.storage, runtime=SLOW_HEARTBEAT, application="mail")

    @app.function(retries=1)
    async def mail_report(year: int) -> str:
        raise Retry(f"no server for <{year}>", after=600)

    async with app.open() as runtime:
        task_id = (await runtime.submit("mail_report", {"year": 2026}, owner=ME)).task.task_id
        async for snapshot in runtime.watch(ME, task_id):
            if snapshot.task.run_at is not None:
                break
        listed = (await client.get("/tasks")).text
        page = (await client.get(await path_of(client, task_id))).text
    assert '<span class="status waiting_to_retry">waiting to retry</span>' in listed
    assert re.search(
        r"next attempt at <time [^>]+>[^<]+</time>; last failure: no server for &lt;2026&gt;", listed
    )
    assert "<dt>Next attempt</dt><dd><time " in page
    assert "The last attempt ended: no server for &lt;2026&gt;" in page
    assert f"<dt>Last worker</dt><dd><code>{runtime.name}</code>" in page


async def test_a_finished_task_shows_the_worker_that_ran_it_and_when_it_was_created(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    task_id = await desk.submit("print_report")
    await desk.runtime.wait(ME, task_id, 10)
    page = (await client.get(await path_of(client, task_id))).text
    assert f"<dt>Last worker</dt><dd><code>{desk.runtime.name}</code>" in page
    assert re.search(r'<dt>Created</dt><dd><time [^>]*data-mode="moment"', page)


async def test_the_workers_page_names_the_tasks_that_run(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    task_id = await desk.submit("build_report")
    await desk.until(task_id, "working")
    page = (await client.get("/workers")).text
    assert f'build_report</a> <code class="id">{task_id[:8]}</code>' in page


# Results


@pytest.mark.parametrize(
    ("result", "blocks"),
    [
        ("two\nlines", [Block(text="two\nlines", is_text=True)]),
        ({"pages": 12}, [Block(text='{\n  "pages": 12\n}')]),
        (
            {"content": [{"type": "text", "text": "done"}], "structuredContent": {"result": "done"}},
            [Block(text="done", is_text=True)],
        ),
        (
            {"content": [{"type": "text", "text": '{"n": 1}'}], "structuredContent": {"n": 1}},
            [Block(text='{"n": 1}', is_text=True)],
        ),
        (
            {"content": [{"type": "text", "text": "done"}], "structuredContent": {"n": 1}},
            [
                Block(text="done", is_text=True),
                Block(text='{\n  "n": 1\n}', heading="Structured content"),
            ],
        ),
        (
            {"content": [{"type": "image", "data": "AA=="}]},
            [Block(text='[\n  {\n    "type": "image",\n    "data": "AA=="\n  }\n]', heading="Other content")],
        ),
        ({"content": []}, [Block(text='{\n  "content": []\n}')]),
        ({"content": [{"type": "text"}, 3]}, None),
    ],
)
def test_text_is_shown_as_text_and_once(result: Json, blocks: list[Block] | None) -> None:
    found = result_blocks(result)
    assert found == blocks if blocks is not None else [each.heading for each in found] == ["Other content"]


async def test_the_page_shows_the_text_of_a_tool_result_without_its_json(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    store = TaskStore(desk.storage, application="tests")
    made = await store.create(ME, NewTask(method="tools/call", params={"name": "brew", "arguments": {}}))
    text = "two\n<cups>"
    value = {"content": [{"type": "text", "text": text}], "structuredContent": {"result": text}}
    await task_edits.finish(store, made, Success.of(value))
    page = (await client.get(await path_of(client, made.task.task_id))).text
    assert '<pre tabindex="0" class="text" aria-label="Result">two\n&lt;cups&gt;</pre>' in page
    assert page.count("cups") == 1
    assert "structuredContent" not in page


async def test_a_failure_is_shown_once_at_the_top_of_its_page(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    store = TaskStore(desk.storage, application="tests")
    made = await store.create(ME, NewTask(method="tools/call", params={"name": "brew", "arguments": {}}))
    claimed = await task_edits.claim(store, made)
    released = await task_edits.release(store, claimed, reason="OSError: no water")
    result = {"isError": True, "content": [{"type": "text", "text": "Error executing tool brew"}]}
    await task_edits.finish(
        store, released, Success.of(result, error="Error executing tool brew", cause="OSError: no water")
    )
    page = (await client.get(await path_of(client, made.task.task_id))).text
    assert page.partition('<ol class="timeline">')[0].count("no water") == 1


async def test_a_cancelled_task_has_no_error(desk: ToolDashboard, client: httpx2.AsyncClient) -> None:
    task_id = await desk.submit("build_report")
    await desk.runtime.cancel_now(ME, TaskId(task_id))
    page = (await client.get(await path_of(client, task_id))).text
    assert "-32800" not in page
    assert ">Error<" not in page


async def test_the_first_page_of_an_empty_dashboard_shows_how_to_create_a_task() -> None:
    async with await open_storage("memory:") as storage:
        async with visiting(Dashboard(storage, first_task=FIRST_TASK)) as client:
            assert "import tea" in (await client.get("/")).text
        async with visiting(Dashboard(storage)) as client:
            assert "How to create the first task" not in (await client.get("/")).text


# Keys

EVERYTHING = StoreConfig(encrypt="everything")
WITHOUT_KEY = "cannot run on this server"


async def test_the_overview_names_a_key_that_is_missing(desk: ToolDashboard) -> None:
    place = Place("shop", ME, "t", "call", "arguments", 1)
    ciphertext = Keyring([new_key()]).encrypt(b"{}", place)
    keys = Keyring([new_key()])
    async with visiting(Dashboard(desk.storage, keys=keys)) as client:
        before = (await client.get("/")).text
        with pytest.raises(KeyMissing):
            keys.decrypt(ciphertext, place)
        after = (await client.get("/")).text
    assert WITHOUT_KEY not in before
    assert "Some tasks of shop cannot run on this server" in after
    assert f"<code>{ciphertext.partition('.')[0]}</code>" in after
    keys.missing_keys["shop"].clear()  # its tasks are gone
    async with visiting(Dashboard(desk.storage, keys=keys)) as client:
        assert WITHOUT_KEY not in (await client.get("/")).text


async def test_the_overview_names_a_missing_key_that_this_process_has_not_met(desk: ToolDashboard) -> None:
    store = TaskStore(desk.storage, EVERYTHING, application="tests", keys=Keyring([new_key()]))
    without_key = TaskStore(desk.storage, EVERYTHING, application="tests", keys=Keyring([new_key()]))
    await store.create(ME, NewTask(method="tools/call", params={"name": "brew", "arguments": {}}))
    dashboard = Dashboard(desk.storage, keys=without_key.keys, missing_keys=MissingKeys.of(without_key))
    async with visiting(dashboard) as client:
        page = (await client.get("/")).text
    assert "Some tasks of tests cannot run on this server" in page
    assert f"<code>{store.keys.key_ids[0]}</code>" in page
    async with visiting(
        Dashboard(desk.storage, keys=store.keys, missing_keys=MissingKeys.of(store))
    ) as client:
        assert WITHOUT_KEY not in (await client.get("/")).text


# Words


async def test_the_pages_say_which_tasks_are_working(desk: ToolDashboard, client: httpx2.AsyncClient) -> None:
    explained = "A working task is queued, running, waiting to retry, or being cancelled."
    task_id = await desk.submit("build_report")
    await desk.until(task_id, "working")
    assert explained in (await client.get("/tasks?status=working")).text
    assert explained not in (await client.get("/tasks")).text
    assert explained not in (await client.get("/tasks?status=failed")).text
    assert (
        'working</span> <span class="aside">queued, running or waiting to retry</span>'
        in (await client.get("/")).text
    )
    page = (await client.get(await path_of(client, task_id))).text
    assert re.search(r">running</span>\s+<span class=\"aside\">status working</span>", page)


async def test_the_duration_of_a_task_has_one_name_in_the_list_and_on_its_page(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    running, printed = await desk.submit("build_report"), await desk.submit("print_report")
    await desk.runtime.wait(ME, printed, 10)
    assert "<dt>Duration so far</dt>" in (await client.get(await path_of(client, running))).text
    page = (await client.get(await path_of(client, printed))).text
    assert "<dt>Duration</dt>" in page
    assert ">status " not in page  # its status is what is shown


async def test_a_task_that_asks_is_claimed_and_not_called_running(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    await desk.until(await desk.submit("sign_report"), "input_required")
    for path in ("/", "/workers"):
        page = (await client.get(path)).text
        assert "Claimed tasks" in page
        assert "Running" not in page


# Columns


@pytest.mark.parametrize("width", [1280, 800, 390])
async def test_a_long_name_leaves_the_id_of_a_task_on_one_line(
    desk: ToolDashboard, browser: Browser, width: int
) -> None:
    app = App(desk.storage, application="reports of the northern region")

    async def copy_all_pages_of_the_quarterly_report_into_the_archive() -> None: ...

    app.function(copy_all_pages_of_the_quarterly_report_into_the_archive)
    async with app.open(work=False) as runtime:
        await runtime.submit("copy_all_pages_of_the_quarterly_report_into_the_archive", owner=ME)
    async with (
        served(Dashboard(desk.storage, name="a server with quite a long name").app) as address,
        await browser.new_page(base_url=address, viewport={"width": width, "height": 800}) as page,
    ):
        await page.goto("/tasks")
        await is_live(page)
        cell = await page.locator("#rows .c-task").first.bounding_box()
        assert cell is not None
        assert cell["width"] > 200
        shown = page.locator("#rows .c-task .id").first
        lines = await shown.evaluate("each => each.getClientRects().length && each.offsetHeight")
        assert 0 < lines < 24
        header = [await page.locator(each).bounding_box() for each in (".server-name", ".live")]
        assert None not in header
        name, live = (each for each in header if each is not None)
        assert abs(name["y"] + name["height"] / 2 - live["y"] - live["height"] / 2) < 4  # in one line


async def test_a_time_of_another_day_is_shown_with_its_date(desk: ToolDashboard, browser: Browser) -> None:
    await desk.submit("build_report")
    async with (
        served(Dashboard(desk.storage).app) as address,
        await browser.new_page(base_url=address) as page,
    ):
        await page.goto("/tasks")
        created = page.locator("#rows .c-created time").first
        await expect(created).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
        await created.evaluate("element => { element.dateTime = '2020-02-03T12:00:00Z' }")
        await expect(created).to_have_text(re.compile(r"^2020-02-0\d \d\d:\d\d:\d\d$"))
