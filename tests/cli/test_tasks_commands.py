"""`perdure tasks ...`, as real processes: what they say, what they do, and with what they end."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from perdure.runtime import Runtime
from perdure.storage import Delete, Insert, open_storage
from perdure.storage.time_types import SECOND, system_clock
from perdure.tasks import NewTask, Owner, Progress, Snapshot, Status, Success, TaskId, TaskStore, edits
from perdure.tasks.listing import MAX_RECORDS_EXAMINED
from perdure.tasks.task_log import log_entry

from .. import task_edits
from ..newer import changed, put
from ..storage.engines import new_url
from ..tasks.samples import CALL
from .command import HOSTILE, a_server, environment, folder_url, refused, run, terminal

pytestmark = pytest.mark.anyio

SUBJECT = "ana-of-the-token"
ANA = Owner.user("https://issuer.example", SUBJECT)
FILLED = {"name": "Ana", "pages": 3, "colour": "blue", "signed": True}


async def asking(runtime: Runtime) -> Snapshot:
    """A task that has asked."""
    made = await runtime.submit("sign", owner=ANA)
    async for state in runtime.watch(ANA, made.task.task_id):
        if state.task.outstanding:
            return state
    raise AssertionError("it never asked")


def is_harmless(text: str) -> bool:
    return all(letter.isprintable() or letter == "\n" for letter in text)


# Looking


async def test_tasks_are_listed_shown_and_counted_without_saying_whose_they_are(tmp_path: Path) -> None:
    url = folder_url(tmp_path)
    async with await open_storage(url) as storage:
        store = TaskStore(storage, application="tests")
        hostile = NewTask(
            method="tools/call",
            params={"name": f"t{HOSTILE}", "arguments": {"a": HOSTILE}},
            session_id=SUBJECT,
        )
        first = await store.create(ANA, hostile)
        done = await store.create(Owner.local(), CALL)
        await task_edits.finish(store, done, Success.of({"pages": 12}))
    listed = await run(url, "list")
    assert [line.split()[:2] for line in listed.out.splitlines()] == [
        [done.task.task_id, "completed"],
        [first.task.task_id, "queued"],
    ]
    page = (await run(url, "list", "--json", "--limit", "1")).document
    assert [each["task_id"] for each in page["tasks"]] == [done.task.task_id]
    rest = (await run(url, "list", "--json", "--after", page["next_cursor"])).document
    assert [each["task_id"] for each in rest["tasks"]] == [first.task.task_id]
    assert rest["next_cursor"] is None
    shown = await run(url, "show", first.task.task_id[:8])
    seen = await run(url, "show", first.task.task_id, "--json")
    assert seen.document["arguments"] == {"a": HOSTILE}
    assert seen.document["owner"] == ANA.digest
    ended = await run(url, "show", done.task.task_id)
    assert re.search(r'^result\n  \{\n    "pages": 12\n', ended.out, re.MULTILINE)
    counted = await run(url, "stats", "--json")
    assert (counted.document["counts"]["completed"], counted.document["unclaimed"]) == (1, 1)
    assert re.search(
        r"^tasks +2: 1 working \(queued, running or waiting to retry\), .* 1 completed",
        (await run(url, "stats")).out,
    )
    for each in (listed, shown, seen, ended, counted):
        assert SUBJECT not in each.out + each.err
        assert is_harmless(each.out), each.out


async def test_tasks_of_all_applications_are_listed_with_their_application(tmp_path: Path) -> None:
    url = folder_url(tmp_path)
    async with await open_storage(url) as storage:
        made = {
            name: (await TaskStore(storage, application=name).create(ANA, CALL)).task.task_id
            for name in ("shop", "my other")
        }
    listed = await run(url, "list")
    for name, task_id in made.items():
        assert re.search(rf"^{task_id} .* {name}  build_report$", listed.out, re.MULTILINE), listed.out
        assert re.search(rf"^application +{name}$", (await run(url, "show", task_id)).out, re.MULTILINE)
        page = (await run(url, "list", "--application", name, "--json")).document
        assert [(each["task_id"], each["application"]) for each in page["tasks"]] == [(task_id, name)]


async def test_only_a_complete_list_without_tasks_says_that_there_are_none(tmp_path: Path) -> None:
    url = folder_url(tmp_path)
    async with await open_storage(url) as storage:
        made = (await TaskStore(storage, application="tests").create(ANA, CALL)).record
        assert (await run(url, "list", "--name", "other")).err == "No tasks found.\n"
        damaged = await put(storage, made, "{}", now=system_clock())
        assert (await run(url, "list")).err == (
            f"Task {made.key} is damaged; check the storage with `perdure doctor`.\n"
        )
        for start in range(0, MAX_RECORDS_EXAMINED, 25):
            records = [
                replace(made, key=key, body=changed(made.body, task_id=key))
                for key in (f"{number:032}" for number in range(start, start + 25))
            ]
            await storage.commit([Insert(record=each) for each in records], now=system_clock())
        await storage.commit([Delete(before=damaged)], now=system_clock())
        await TaskStore(storage, application="other").create(ANA, CALL)
    page = await run(url, "list", "--application", "third")
    found, more = page.err.splitlines()
    assert found == "No matching tasks found so far."
    assert more.startswith("For more tasks, use --after ")
    rest = await run(url, "list", "--application", "third", "--after", more.split()[-1])
    assert rest.err == "No tasks found.\n"


async def test_a_storage_of_a_development_version_is_refused(tmp_path: Path) -> None:
    url = folder_url(tmp_path)
    async with await open_storage(url) as storage:
        made = (await TaskStore(storage, application="shop").create(ANA, CALL)).record
        await put(storage, made, changed(made.body, format=1), now=system_clock())
    output = await refused(url, "list", code=2)
    assert "its tasks have format 1, which only development versions of perdure wrote" in output


async def test_the_attempts_at_a_task_are_shown_and_what_they_say_is_harmless(tmp_path: Path) -> None:
    url = folder_url(tmp_path)
    async with await open_storage(url) as storage:
        store = TaskStore(storage, application="tests")
        held = await task_edits.claim(store, await store.create(ANA, CALL))
        made = await store.edit(
            held,
            lambda task, now, config: edits.release(task, reason=f"lost{HOSTILE}", now=now, config=config),
        )
    shown = await run(url, "show", made.task.task_id)
    assert re.search(r"created\n.* started\n.* released: lost", shown.out)
    assert is_harmless(shown.out), shown.out
    (attempt,) = (await run(url, "show", made.task.task_id, "--json")).document["history"]
    assert attempt["reason"] == f"lost{HOSTILE}"
    assert attempt["begun_at"] <= attempt["ended_at"]


async def test_the_log_of_a_task_is_shown_and_what_it_says_is_harmless(tmp_path: Path) -> None:
    url = folder_url(tmp_path)
    async with await open_storage(url) as storage:
        store = TaskStore(storage, application="tests")
        entries = [
            log_entry(store.clock(), "info", f"line {n}{HOSTILE}", "db", max_length=100) for n in range(201)
        ]
        made = await store.edit(
            await store.create(ANA, CALL), lambda task, _now, config: edits.log(task, entries, config=config)
        )
    shown = await run(url, "show", made.task.task_id)
    assert re.search(r"^log\n  \(1 older entry removed\)\n  .*  info db: line 1\b", shown.out, re.MULTILINE)
    assert is_harmless(shown.out), shown.out
    document = (await run(url, "show", made.task.task_id, "--json")).document
    assert document["removed_log_entries"] == 1
    assert len(document["log"]) == 200
    assert document["log"][0] | {"at": ""} == {
        "at": "",
        "level": "info",
        "message": f"line 1{HOSTILE}",
        "logger": "db",
    }
    assert document["log"][0]["at"].startswith("20")


async def test_a_terminal_shows_the_tasks_as_they_change(tmp_path: Path) -> None:
    async with a_server(folder_url(tmp_path)) as runtime:
        made = await runtime.submit("count", owner=ANA)
        async with terminal(folder_url(tmp_path), "watch") as shown:
            await shown.until(
                r"id +status +name +created \(UTC\) +duration +progress +application +owner +message"
            )
            text = await shown.until(r"running +count +[\d:]{8} +\d+ s +\d+/1000 .* at \d+")
            first = int(re.findall(r" at (\d+)", text)[-1])
            while int(re.findall(r" at (\d+)", shown.text)[-1]) == first:
                await shown.until(rf"(?s){re.escape(shown.text)}.+")
            await runtime.cancel(ANA, made.task.task_id)
            await shown.until(r"cancelled +count")
            shown.interrupt()
            assert await shown.ended() == 0
    assert made.task.task_id[:8] in shown.text
    for obeyed in ("\x1b]0;", "\x9b", "\u202e"):
        assert obeyed not in shown.seen
    assert shown.seen.count("\x1b[?25l") == shown.seen.count("\x1b[?25h") == 1  # the cursor is back


LONG = "copying the pages of the quarterly report of the northern region into the archive"


@pytest.mark.parametrize("command", ["list", "watch"])
@pytest.mark.parametrize(
    ("columns", "shown_message"),
    [(60, None), (80, r"copying the .*…"), (120, r"copying the pages of .*…"), (200, LONG)],
)
async def test_a_long_message_leaves_ids_names_and_times_whole_in_a_terminal(
    tmp_path: Path, command: str, columns: int, shown_message: str | None
) -> None:
    url = folder_url(tmp_path)
    async with await open_storage(url) as storage:
        store = TaskStore(storage, application="tests")
        held = await task_edits.claim(store, await store.create(ANA, CALL))
        await task_edits.report(store, held, message=LONG, progress=Progress(done=17, total=1000))
    async with terminal(url, command, columns=columns) as seen:
        row = rf"{held.task.task_id[:8]}  running  build_report  .*\b\d+ s +17/1000.*?\n"
        text = await seen.until(row)
        if shown_message is None:
            await seen.until("too narrow for messages" if command == "list" else row)
        else:
            assert re.search(shown_message, text), text
        if command == "watch":
            seen.interrupt()
        assert await seen.ended() == 0
    lines = [line.rstrip() for line in seen.text.splitlines() if "running" in line]
    assert all(len(line) <= columns for line in lines), lines


async def test_the_times_of_a_task_are_when_it_was_created_and_how_long_it_took(tmp_path: Path) -> None:
    url = folder_url(tmp_path)
    async with await open_storage(url) as storage:
        earlier = TaskStore(storage, application="tests", clock=lambda: system_clock() - 3600 * SECOND)
        made = await earlier.create(ANA, CALL)
        await task_edits.finish(earlier, made, Success.of({"pages": 12}))
    listed = (await run(url, "list")).out
    assert re.search(r"  completed +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  0 s  ", listed), listed
    shown = (await run(url, "show", made.task.task_id)).out
    assert re.search(r"^created +.* UTC \(1 h ago\)\nduration +\d+ ms$", shown, re.MULTILINE), shown


@pytest.mark.parametrize(
    ("given", "because"),
    [
        ("done", "'done' is not one of working, input_required, completed, failed, cancelled"),
        ("running", "a task that is running has the status working; use --status working"),
        ("waiting to retry", "a task that is waiting to retry has the status working; use --status working"),
    ],
)
async def test_an_unknown_status_is_refused_and_the_words_of_the_list_are_explained(
    tmp_path: Path, given: str, because: str
) -> None:
    ended = await run(folder_url(tmp_path), "list", "--status", given, code=2)
    output = " ".join(re.sub(r"[│╭╮╰╯─]", "", ended.err).split())
    assert output.endswith(f"Invalid value for '--status': {because}"), output


@pytest.mark.parametrize("given", ["input_required", "input required", "input-required"])
async def test_a_status_may_be_written_as_it_is_shown(tmp_path: Path, given: str) -> None:
    url = folder_url(tmp_path)
    async with await open_storage(url) as storage:
        await TaskStore(storage, application="tests").create(ANA, CALL)
    assert (await run(url, "list", "--status", given)).out == ""
    assert "  queued  " in (await run(url, "list", "--status", "working")).out


FAILED = {"content": [{"type": "text", "text": "out of paper"}], "isError": True}


async def test_a_task_whose_result_reports_an_error_is_listed_counted_coloured_and_watched_as_failed(
    tmp_path: Path,
) -> None:
    url = folder_url(tmp_path)
    async with await open_storage(url) as storage:
        store = TaskStore(storage, application="tests")
        printed = (await store.create(ANA, CALL)).task.task_id
        await task_edits.finish(
            store, await store.get(ANA, printed), Success.of(FAILED, error="out of paper")
        )
    listed = (await run(url, "list", "--status", "failed")).out
    assert re.fullmatch(rf"{printed}  failed  .*  build_report  out of paper\n", listed)
    assert (await run(url, "list", "--status", "completed")).out == ""
    shown = (await run(url, "show", printed)).out
    assert re.search(r"^status +failed$", shown, re.MULTILINE)
    assert re.search(r"^message +out of paper$", shown, re.MULTILINE)
    document = (await run(url, "show", printed, "--json")).document
    assert (document["status"], document["state"], document["has_error"]) == ("failed", "failed", True)
    assert "0 completed, 1 failed" in (await run(url, "stats")).out
    assert "  failed  " in (await run(url, "watch", printed, code=1)).out
    for command in (("list",), ("watch", printed)):
        async with terminal(url, *command) as seen:
            assert await seen.ended() == (command != ("list",))
        assert "\x1b[31mfailed\x1b[0m" in seen.seen


async def test_watching_one_task_ends_as_the_task_does(tmp_path: Path) -> None:
    url = folder_url(tmp_path)
    async with a_server(url) as runtime:
        asked = await asking(runtime)
        watching = asyncio.create_task(run(url, "watch", asked.task.task_id, "--json"))
        key = next(iter(asked.task.outstanding))
        await runtime.answer(ANA, asked.task.task_id, {key: {"action": "accept", "content": FILLED}})
        assert '"state":"completed"' in (await watching).out.splitlines()[-1]
        other = await asking(runtime)
        await runtime.cancel(ANA, other.task.task_id)
        result = await run(url, "watch", other.task.task_id, code=1)
        assert re.search(rf"UTC  {other.task.task_id}  cancelled ", result.out)


# Answering


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_a_question_is_answered_field_by_field_in_a_terminal(engine: str, tmp_path: Path) -> None:
    url = await new_url(engine, tmp_path)
    async with a_server(url) as runtime:
        asked = await asking(runtime)
        async with terminal(url, "answer", asked.task.task_id) as shown:
            for prompt, typed in (
                (r"Whose name.*\?\r\n(.*\n)*name \(of whom.*\): ", "Ana"),
                (r"pages: ", "many"),
                (r"pages must be an integer\r\npages: ", "3"),
                (r"colour \[red, blue\]: ", "green"),
                (r"colour is not one of the choices\r\ncolour \[red, blue\]: ", "blue"),
                (r"signed \[yes, no\] \[default: true\]: ", ""),
                (r"note \(optional\): ", ""),
            ):
                await shown.until(prompt)
                shown.type(f"{typed}\n")
            await shown.until("Answered. The task resumes.")
            assert await shown.ended() == 0
        ended = await runtime.wait(ANA, asked.task.task_id, 30)
    assert isinstance(ended.task.outcome, Success)
    assert ended.task.outcome.value == FILLED
    for obeyed in ("\x1b]0;", "\x9b", "\u202e"):
        assert obeyed not in shown.seen


async def test_an_answer_comes_from_the_command_line_and_must_fit_the_form(tmp_path: Path) -> None:
    url = folder_url(tmp_path)
    async with a_server(url) as runtime:
        asked = await asking(runtime)
        task_id = asked.task.task_id
        output = await refused(url, "answer", task_id, code=2)
        assert "use NAME=VALUE" in output
        output = await refused(url, "answer", task_id, "name=Ana", "pages=3", "colour=green", code=2)
        assert "colour is not one of the choices" in output
        key = next(iter(asked.task.outstanding))
        assert key not in output  # it has no value, so nothing is shown
        output = await refused(url, "answer", task_id, "pages=3", "colour=blue", code=2)
        assert "invalid answer: 'name' is a required property; " in output
        output = await refused(url, "answer", task_id, "--value", '{"name": "\\u009b31m\\n"}', code=2)
        assert is_harmless(output)
        await refused(url, "answer", task_id, "pages=many", code=2)
        unknown = "the form has no field nosuch; its fields are name, pages, colour, signed, note\n"
        filled = ("name=Ana", "pages=3", "colour=blue")
        assert unknown in await refused(url, "answer", task_id, "nosuch=1", *filled, code=2)
        document = '{"name": "Ana", "pages": 3, "colour": "blue", "nosuch": 1}'
        assert unknown in await refused(url, "answer", task_id, "--value", document, code=2)
        await refused(url, "answer", task_id, "--value", "{", code=2)
        assert await runtime.get(ANA, task_id) == asked
        await run(url, "answer", task_id[:10], "name=Ana", "pages=3", "colour=blue", "signed=yes")
        ended = await runtime.wait(ANA, task_id, 30)
        assert ended.task.outcome == Success.of(FILLED)
        assert "no open question" in await refused(url, "answer", task_id, "name=Ana", code=1)
        declined = await asking(runtime)
        row = (await run(url, "answer", declined.task.task_id, "--decline", "--json")).document
        assert row["open_questions"] == 0
        assert (await runtime.wait(ANA, declined.task.task_id, 30)).task.outcome == Success.of(None)


# Cancelling and removing


async def test_a_task_is_cancelled_once(tmp_path: Path) -> None:
    url = folder_url(tmp_path)
    async with await open_storage(url) as storage:
        store = TaskStore(storage, application="tests")
        made = await store.create(ANA, CALL)
        assert "Cancelled." in (await run(url, "cancel", made.task.task_id[:6])).out
        assert (await store.get(ANA, made.task.task_id)).task.status is Status.CANCELLED
    assert "the task is cancelled and can no longer change" in await refused(
        url, "cancel", made.task.task_id, code=1
    )


async def test_a_dry_run_reports_what_would_be_deleted(tmp_path: Path) -> None:
    url = folder_url(tmp_path)
    async with await open_storage(url) as storage:
        store = TaskStore(storage, application="tests")
        kept = await store.create(ANA, CALL)
        for _ in range(2):
            await task_edits.finish(store, await store.create(ANA, CALL), Success.of(1))
        options = ("--older-than", "0s")
        result = await run(url, "purge", *options, "--dry-run")
        assert result.out == "0 expired tasks would be deleted\n2 finished tasks would be deleted\n"
        assert len((await store.list(ANA)).tasks) == 3
        report = (await run(url, "purge", *options, "--json")).document
        assert report == {"expired": 0, "finished": 2, "dry_run": False}
        assert [each.task.task_id for each in (await store.list(ANA)).tasks] == [kept.task.task_id]


# What cannot be done


async def test_a_missing_task_is_reported_in_one_line(tmp_path: Path) -> None:
    url = folder_url(tmp_path)
    assert "set --url or PERDURE_URL" in await refused(url, "list", code=2)
    assert not (tmp_path / "tasks.db").exists()
    async with await open_storage(url):
        pass
    assert "task not found" in await refused(url, "show", "0123456789", code=2)
    assert "at least 6 characters" in await refused(url, "show", "012", code=2)
    assert "invalid cursor" in await refused(url, "list", "--after", "x", code=2)
    assert "private to one process" in await refused("memory:", "list", code=2)
    secret = "hunter2"  # noqa: S105 - tests check that it is not printed
    unreachable = await refused(f"postgresql://u:{secret}@127.0.0.1:1/db", "list", code=1)
    assert unreachable.endswith("; check the host and port of the storage, or try again later\n")
    assert secret not in unreachable


async def test_letters_with_which_two_tasks_begin_name_neither(tmp_path: Path) -> None:
    url = folder_url(tmp_path)
    async with await open_storage(url) as storage:
        ids = iter(TaskId("abcdef" + digit * 26) for digit in "01")
        store = TaskStore(storage, new_id=lambda: next(ids), application="tests")
        for _ in range(2):
            await store.create(ANA, CALL)
    assert "id prefix abcdef is ambiguous" in await refused(url, "show", "abcdef", code=2)


async def test_a_shell_completes_commands_statuses_and_ids(tmp_path: Path) -> None:
    url = folder_url(tmp_path)
    async with await open_storage(url) as storage:
        made = await TaskStore(storage, application="tests").create(ANA, CALL)
    for words, expected in (
        ("tasks ", ["list", "show", "watch", "stats", "cancel", "answer", "purge"]),
        ("tasks list --status ", [status.value for status in Status]),
        (f"tasks show {made.task.task_id[:3]}", [made.task.task_id]),
    ):
        assert completions(url, words) == expected


def completions(url: str, words: str) -> list[str]:
    """What bash offers behind these words."""
    asking = {"COMP_WORDS": f"perdure {words}", "COMP_CWORD": str(len(words.split(" ")))}
    completed = subprocess.run(
        [str(Path(sys.executable).with_name("perdure"))],
        env={**environment(url), "_PERDURE_COMPLETE": "complete_bash", **asking},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return completed.stdout.split()
