"""What the pages show of real tasks, and what can be done through them."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

import httpx2
import pytest
from msgspec.structs import replace

from perdure.feeds import FeedStore
from perdure.feeds.item import ITEMS
from perdure.storage import Committed, Micros, Space, Storage
from perdure.storage.memory import MemoryEngine
from perdure.storage.time_types import HOUR
from perdure.tasks import InputKind, InputRequest, NewTask, Status, StoreConfig, Success, TaskStore
from perdure.tasks.inputs import ElicitationAnswer
from perdure.web import Dashboard

from .. import task_edits
from ..markers import row
from ..newer import newer, put, stored
from . import feed_data
from .tool_dashboard import FORM, ME, ORIGIN, ToolDashboard, csrf_token_in, path_of, post, visiting

pytestmark = pytest.mark.anyio


# The list


async def test_the_list_shows_each_task_and_not_whose_it_is(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    task_id = await desk.submit("print_report")
    await desk.runtime.wait(ME, task_id, 10)
    page = (await client.get("/tasks")).text
    assert "print_report" in page
    assert task_id[:8] in page
    assert ME.digest[:8] in page
    assert "no paper for &lt;2026&gt;" in page
    assert "secret" not in page
    assert "id.example" not in page


async def test_the_list_is_narrowed_by_status_and_by_name(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    printing, building = await desk.submit("print_report"), await desk.submit("build_report")
    await desk.runtime.wait(ME, printing, 10)
    failed = (await client.get("/tasks?status=failed")).text
    assert (printing in failed, building in failed) == (True, False)
    named = (await client.get("/tasks?name=build_report")).text
    assert (printing in named, building in named) == (False, True)
    assert (await client.get("/tasks?status=asleep")).status_code == 404


async def test_applications_are_listed_and_the_list_is_narrowed_to_one(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    own = await desk.submit("print_report")
    await desk.runtime.wait(ME, own, 10)
    store = TaskStore(desk.storage, application="a & <b>")
    foreign = (await store.create(ME, NewTask(method="tools/call"))).task.task_id
    overview = (await client.get("/")).text
    link = '<a href="/tasks?application=a+%26+%3Cb%3E">a &amp; &lt;b&gt;</a></th>'
    assert f'{link}<td class="num">1</td><td class="num">0</td>' in overview
    assert (
        '<a href="/tasks?application=tests">tests</a></th><td class="num">0</td><td class="num">1</td>'
        in overview
    )
    everything = (await client.get("/tasks")).text
    assert (own in everything, foreign in everything) == (True, True)
    assert everything.count("a &amp; &lt;b&gt;") == 1
    narrowed = (await client.get("/tasks?application=a%20%26%20%3Cb%3E&status=working")).text
    assert (own in narrowed, foreign in narrowed) == (False, True)
    assert "/tasks?application=a+%26+%3Cb%3E" in html.unescape(narrowed)  # the tabs keep the filter
    assert 'name="application" value="a &amp; &lt;b&gt;"' in narrowed
    assert "No matching tasks." in (await client.get("/tasks?application=nothing")).text
    assert "a &amp; &lt;b&gt;" in (await client.get(await path_of(client, foreign))).text


async def test_the_list_is_paged_by_a_cursor_without_missing_or_repeating(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    made = {await desk.submit("build_report", year) for year in range(60)}
    seen: list[str] = []
    path = "/tasks"
    while path:
        page = (await client.get(path)).text
        seen += re.findall(r'<tr id="task-(\w+)"', page)
        following = re.search(r'rel="next" href="([^"]+)"', page)
        path = following[1].replace("&amp;", "&") if following else ""
    assert (len(seen), set(seen)) == (60, made)
    assert (await client.get("/tasks?after=made-up")).status_code == 404


async def test_an_id_or_its_beginning_leads_to_its_task(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    task_id = await desk.submit("build_report")
    for text in (task_id, task_id[:8]):
        found = await client.get(f"/tasks/find?id={text}")
        assert found.headers["location"] == await path_of(client, task_id)
    for text in ("ffffffff", "abc", "", "<b>"):
        missed = await client.get(f"/tasks/find?id={text}")
        assert (missed.status_code, "<b>" in missed.text) == (404, False)


# One task


async def test_a_tasks_page_shows_its_arguments_variables_attempts_and_times(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    task_id = await desk.submit("build_report")
    async for snapshot in desk.runtime.watch(ME, task_id):
        if snapshot.task.variables.get_int("page", 0):
            break
    page = (await client.get(await path_of(client, task_id))).text
    assert "&#34;year&#34;: 2026" in page
    assert "&#34;page&#34;: 1" in page
    assert "<dt>Attempts</dt><dd>1</dd>" in page
    assert "page 1 of &lt;2026&gt;" in page
    assert '<progress max="1" value="0.2500"' in page
    assert 'class="created"' in page


async def test_a_tasks_page_shows_its_log(desk: ToolDashboard, client: httpx2.AsyncClient) -> None:
    task_id = await desk.submit("write_log")
    await desk.runtime.wait(ME, task_id, 10)
    page = (await client.get(await path_of(client, task_id))).text
    assert '<p class="aside">5 older entries removed</p>' in page
    assert '<li class="warning"><time' in page
    assert '<span class="aside">db</span> <span class="what">line 204 of &lt;2026&gt;</span>' in page
    assert "line 4 of" not in page


async def test_a_tasks_page_shows_its_error(desk: ToolDashboard, client: httpx2.AsyncClient) -> None:
    task_id = await desk.submit("print_report")
    await desk.runtime.wait(ME, task_id, 10)
    page = (await client.get(await path_of(client, task_id))).text
    assert 'no paper for &lt;2026&gt; <span class="aside">(JSON-RPC error -32001)</span>' in page
    assert page.count("no paper for") == 1
    assert "&#34;tray&#34;: 2" in page
    assert "/cancel" not in page


async def test_cancelling_from_the_page_ends_the_task(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    task_id = await desk.submit("build_report")
    page = await path_of(client, task_id)
    assert (await post(client, page, "/cancel")).headers["location"] == page
    assert (await desk.runtime.wait(ME, task_id, 10)).task.status == "cancelled"
    key = await client.get(page)
    assert "cancelled" in key.text


async def asked(desk: ToolDashboard, client: httpx2.AsyncClient) -> tuple[str, str, str]:
    """A task that waits for an answer, its page, and the key of its question."""
    task_id = await desk.submit("sign_report")
    snapshot = await desk.until(task_id, "input_required")
    return task_id, await path_of(client, task_id), next(iter(snapshot.task.outstanding))


async def test_a_question_is_answered_through_a_form_of_its_schema(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    task_id, page, key = await asked(desk, client)
    html = (await client.get(page)).text
    assert "Who signs &lt;2026&gt;?" in html
    assert "As it is to be printed." in html
    fields = {"field.name": "Ana", "field.colour": "teal", "field.copies": "3", "field.weight": "1.5"}
    sent = await post(client, page, "/answer", key=key, action="accept", **fields, **{"field.signed": "true"})
    assert sent.status_code == 303
    outcome = (await desk.runtime.wait(ME, task_id, 10)).task.outcome
    assert isinstance(outcome, Success)
    content = {"name": "Ana", "colour": "teal", "copies": 3, "weight": 1.5, "signed": True}
    assert outcome.value == {"action": "accept", "content": content}


async def test_a_question_is_declined(desk: ToolDashboard, client: httpx2.AsyncClient) -> None:
    task_id, page, key = await asked(desk, client)
    await post(client, page, "/answer", key=key, action="decline")
    outcome = (await desk.runtime.wait(ME, task_id, 10)).task.outcome
    assert isinstance(outcome, Success)
    assert outcome.value == {"action": "decline", "content": {}}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"field.name": "", "field.colour": "teal"}, "Full name is required"),
        ({"field.name": "Ana", "field.colour": "red"}, "Colour is not one of the choices"),
        (
            {"field.name": "Ana", "field.colour": "ink", "field.copies": "0"},
            "0 is less than the minimum of 1",
        ),
    ],
)
async def test_what_does_not_fit_the_schema_is_said_and_what_was_typed_stays(
    desk: ToolDashboard, client: httpx2.AsyncClient, fields: dict[str, str], problem: str
) -> None:
    task_id, page, key = await asked(desk, client)
    refused = await post(client, page, "/answer", key=key, action="accept", **fields)
    assert (refused.status_code, problem in refused.text) == (422, True)
    assert f'value="{fields["field.name"]}"' in refused.text
    assert (await desk.runtime.get(ME, task_id)).task.status == Status.INPUT_REQUIRED


async def asked_elsewhere(desk: ToolDashboard, url: str) -> str:
    """A task that waits for something that is done at this address."""
    store = TaskStore(desk.storage, application="tests")
    made = await store.create(ME, NewTask(method="tools/call"))
    params = {"mode": "url", "message": "Pay", "url": url, "elicitationId": "1"}
    await task_edits.ask(store, made, {"pay": InputRequest(kind=InputKind.ELICITATION, params=params)})
    return made.task.task_id


async def test_a_question_that_is_answered_elsewhere_links_there_and_is_only_confirmed(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    task_id = await asked_elsewhere(desk, "https://pay.example/1")
    page = await path_of(client, task_id)
    assert '<a href="https://pay.example/1" rel="noopener' in (await client.get(page)).text
    assert (await post(client, page, "/answer", key="pay", action="accept")).status_code == 303
    answered = (await desk.runtime.get(ME, task_id)).task.inputs["pay"]
    assert answered.answer == ElicitationAnswer(action="accept", content=None)


async def test_a_link_that_is_none_of_the_web_is_shown_and_not_linked(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    task_id = await asked_elsewhere(desk, "javascript:alert(1)")
    page = (await client.get(await path_of(client, task_id))).text
    assert "javascript:alert(1)" in page
    assert 'href="javascript' not in page


async def test_a_question_keeps_its_place_on_the_page_when_another_is_answered(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    """What is typed into it would be gone, or stand below another question."""
    store = TaskStore(desk.storage, application="tests")
    made = await store.create(ME, NewTask(method="tools/call"))
    question = InputRequest(kind=InputKind.ELICITATION, params={"message": "?", "requestedSchema": FORM})
    await task_edits.ask(store, made, {"first": question, "second": question})
    page = await path_of(client, made.task.task_id)
    before = re.findall(r'<section id="(question-[^"]+)"', (await client.get(page)).text)
    await post(client, page, "/answer", key="first", action="decline")
    after = re.findall(r'<section id="(question-[^"]+)"', (await client.get(page)).text)
    assert (len(set(before)), after) == (2, before[1:])


async def test_what_is_cancelled_here_is_kept_for_as_long_as_the_servers_keep_results(
    desk: ToolDashboard,
) -> None:
    config = StoreConfig(retention=14 * 86_400)
    made = await TaskStore(desk.storage, config, application="tests").create(ME, NewTask(method="tools/call"))
    async with visiting(Dashboard(desk.storage)) as client:
        await post(client, await path_of(client, made.task.task_id), "/cancel")
    ended = await TaskStore(desk.storage, application="tests").get(ME, made.task.task_id)
    assert ended.task.finished_at is not None
    assert ended.record.expires_at == ended.task.finished_at + 14 * 86_400_000_000


@pytest.mark.parametrize("value", ["NaN", "1e999", '"\\ud800"', "[" * 100_000])
async def test_what_cannot_be_stored_is_said_and_what_was_typed_stays(
    desk: ToolDashboard, client: httpx2.AsyncClient, value: str
) -> None:
    store = TaskStore(desk.storage, application="tests")
    made = await store.create(ME, NewTask(method="tools/call"))
    schema = {"type": "object", "properties": {"more": {"type": "object"}}}
    params = {"message": "?", "requestedSchema": schema}
    await task_edits.ask(store, made, {"q": InputRequest(kind=InputKind.ELICITATION, params=params)})
    page = await path_of(client, made.task.task_id)
    typed = f'{{"a": {value}}}'
    refused = await post(client, page, "/answer", key="q", action="accept", **{"field.more": typed})
    assert (refused.status_code, value[:20] in html.unescape(refused.text)) == (422, True)


async def test_a_question_that_does_not_exist_cannot_be_answered(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    _, page, _ = await asked(desk, client)
    assert (await post(client, page, "/answer", key="other", action="decline")).status_code == 409


async def test_a_task_that_is_not_there_is_a_page_that_is_not_there(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    page = await path_of(client, await desk.submit("build_report"))
    handle = page.split("/")[2]
    for path in (f"/tasks/{handle}/{'0' * 32}", f"/tasks/made-up/{page.split('/')[3]}", "/tasks/x/y", "/x"):
        missed = await client.get(path)
        assert (missed.status_code, "Not found" in missed.text) == (404, True)


@row(105)
async def test_a_task_of_a_newer_version_is_listed_its_page_says_so_and_it_is_not_cancelled(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    task_id = (await desk.runtime.store.create(ME, NewTask(method="tools/call"))).task.task_id
    page = await path_of(client, task_id)
    made = await desk.runtime.get(ME, task_id)
    now = desk.runtime.store.clock()
    record = await put(desk.storage, made.record, newer(made.record.body), now=now)
    other = await desk.submit("build_report")
    listed = (await client.get("/tasks")).text
    assert f'href="{page}">written by a newer version of perdure</a>' in listed
    assert listed.index(other[:8]) < listed.index(task_id[:8])  # the newest first
    shown = await client.get(page)
    assert (shown.status_code, "written by a newer version" in shown.text) == (409, True)
    key = csrf_token_in((await client.get(await path_of(client, other))).text)
    refused = await client.post(f"{page}/cancel", data={"csrf_token": key})
    assert (refused.status_code, "written by a newer version" in refused.text) == (409, True)
    assert await stored(desk.storage, record.address, now=now) == record


# How everything is


async def test_a_list_of_only_damaged_tasks_does_not_say_that_there_are_none(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    store = desk.runtime.store
    made = await store.create(ME, NewTask(method="tools/call"))
    await put(desk.storage, made.record, "{}", now=store.clock())
    for path in ("/tasks", "/tasks?status=working"):
        page = (await client.get(path)).text
        assert f"Task <code>{made.task.task_id}</code> is damaged" in page
        assert 'class="empty"' not in page, path


async def test_the_overview_counts_tasks_and_shows_those_that_ended(
    desk: ToolDashboard, client: httpx2.AsyncClient
) -> None:
    for _ in range(3):
        await desk.runtime.wait(ME, await desk.submit("print_report"), 10)
    await asked(desk, client)
    for span, words in (("10m", "10 minutes"), ("1h", "hour"), ("24h", "24 hours")):
        page = (await client.get(f"/?span={span}")).text
        assert f"Finished in the last {words}</dt>" in page
        assert '<span class="count">3</span> <span class="status failed">' in page
        columns = re.findall(r"</th><td>(\d+)</td><td>(\d+)</td><td>(\d+)</td></tr>", page)
        assert sum(int(failed) for _, failed, _ in columns) == 3
        assert re.search(r'with an open question</dt><dd><a href="/tasks/[^"]+">sign_report</a>', page)
    assert (await client.get("/?span=2y")).status_code == 404


async def test_workers_and_their_leases_are_shown(desk: ToolDashboard, client: httpx2.AsyncClient) -> None:
    task_id = await desk.submit("build_report")
    page = (await client.get("/workers")).text
    assert desk.runtime.name in page
    assert (await path_of(client, task_id)) in page


async def test_feeds_show_accounts_items_and_links_and_link_only_to_the_web(desk: ToolDashboard) -> None:
    await feed_data.insert_feed_data(FeedStore(desk.storage))
    async with visiting(Dashboard(desk.storage, feeds=True)) as client:
        accounts = (await client.get("/feeds")).text
        assert "the account was &lt;deactivated&gt;" in accounts
        (one,) = re.findall(r'href="(/feeds/accounts/[^"]+)">ben.example', accounts)
        assert "2026-01-01" in (await client.get(one)).text
        items = (await client.get("/feeds/items")).text
        assert "&lt;b&gt;what&lt;/b&gt;" in items
        assert "javascript:" not in items
        links = (await client.get("/feeds/links")).text
        shared = re.escape(feed_data.SHARED)
        assert re.search(rf'class="count"[^>]*>3</span>\s*<div><a href="{shared}"', links)
        assert re.search(rf'<a href="{shared}"', items)
        assert "First shared by anna.example" in links
        assert "Shared by 3 accounts in the last 24 hours, and by 0 in the 24 hours before that." in links
        assert "javascript:" not in links
        for unknown in ("did:plc:unknown", "%00", "x" * 3000):
            assert (await client.get(f"/feeds/accounts/{unknown}")).status_code == 404
            assert (await client.get(f"/feeds?after={unknown}")).status_code == 404


@row(130)
async def test_the_feeds_page_shows_that_nothing_polls_any_more(desk: ToolDashboard) -> None:
    store = FeedStore(desk.storage)
    await feed_data.insert_feed_data(store)
    async with visiting(Dashboard(desk.storage, feeds=True)) as client:
        assert 'role="alert"' not in (await client.get("/feeds")).text
    week = 7 * 24 * HOUR
    for name in ("anna.example", "ben.example"):
        await store.update(
            f"did:plc:{name}",
            lambda account: replace(account, next_poll_at=account.next_poll_at - week, last_polled_at=None),
        )
    async with visiting(Dashboard(desk.storage, feeds=True)) as client:
        (alarm,) = re.findall(r'role="alert">([^<]+)<', (await client.get("/feeds")).text)
    assert alarm.startswith("2 of 3 accounts (anna.example, ben.example) are overdue")


@row(130)
async def test_one_damaged_item_breaks_no_page(desk: ToolDashboard) -> None:
    store = FeedStore(desk.storage)
    await feed_data.insert_feed_data(store)
    (record,) = await desk.storage.page(ITEMS, limit=1, now=store.clock(), descending=True)
    damaged = record.replace_with(body='{"handle": 1}', tag=record.tag)
    assert isinstance(await desk.storage.commit([damaged], now=store.clock()), Committed)
    async with visiting(Dashboard(desk.storage, feeds=True)) as client:
        for path in ("/feeds", "/feeds/items", "/feeds/links", f"/feeds/accounts/{record.partition}"):
            page = await client.get(path)
            assert page.status_code == 200, path
            assert "example" in page.text


async def test_without_feeds_there_are_no_pages_of_them(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/feeds")).status_code == 404
    assert "Feeds" not in (await client.get("/")).text


async def test_a_storage_that_is_away_is_said_so_and_nothing_of_it_is_shown() -> None:
    storage = Storage(MemoryEngine())
    async with visiting(Dashboard(storage)) as client:
        await storage.close()
        for path in ("/", "/tasks", "/workers", "/tasks/x/y"):
            answer = await client.get(path)
            assert (answer.status_code, "unavailable" in answer.text) == (503, True)


class Broken(MemoryEngine):
    """Fails as no engine should."""

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[str, int]:
        raise ZeroDivisionError("a secret of the engine")


async def test_an_unexpected_error_is_a_page_without_a_traceback_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dashboard = Dashboard(Storage(Broken()))
    transport = httpx2.ASGITransport(app=dashboard.app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=ORIGIN) as client:
        answer = await client.get("/tasks")
    assert (answer.status_code, "secret" in answer.text) == (500, False)
    assert "a secret of the engine" in caplog.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
