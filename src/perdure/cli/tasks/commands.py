"""The commands `perdure tasks list | show | watch | stats | cancel | answer | purge`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, TypeVar

import anyio
import typer
from typer import Argument, Option

from ...operating import Operator, TaskChanges, TaskSummary, TaskSummaryPage
from ...runtime.app import keys_from_environment
from ...storage import open_storage
from ...storage.errors import PerdureError
from ...storage.time_types import SECOND, system_clock
from ...tasks import Status
from ...tasks.errors import MalformedAnswer, NotFound
from ...tasks.task_snapshot import check_format
from ..errors import CommandError
from ..options import CommonOptions, DryRunOption, choice_option, command, past_time
from ..output import one_line, plural, print_json, print_message, stdout
from . import render
from .prompt import build_answer, choose_question

T = TypeVar("T")

tasks = typer.Typer(
    name="tasks", rich_markup_mode=None, no_args_is_help=True, help="Show and manage the tasks of all owners."
)


def _complete_id(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Complete a task id in the shell. Return the ids and descriptions of recent tasks."""
    try:
        page = TaskOptions(url=context.params.get("url")).run(lambda operator: operator.tasks(limit=100))
    except (PerdureError, CommandError):
        return []
    return [
        (task.task_id, one_line(f"{task.name}, {task.display_status}"))
        for task in page.tasks
        if task.task_id.startswith(incomplete)
    ]


TASK_HELP = "Task id, or at least its first 6 characters."
WATCH_HELP = f"{TASK_HELP} Default: watch the newest tasks."
TaskArgument = Annotated[str, Argument(metavar="ID", help=TASK_HELP, autocompletion=_complete_id)]
OptionalTask = Annotated[str | None, Argument(metavar="ID", help=WATCH_HELP, autocompletion=_complete_id)]
STATUS_HELP = (
    "Show only tasks with this status: working (queued, running, waiting to retry, or being cancelled), "
    "input_required, completed, failed or cancelled. Can be repeated."
)


def _normalize_status(text: str) -> str:
    """Return a status that a user entered, in the form of its name: `input required` as `input_required`.

    Raise BadParameter for a word that lists show instead of `working`, such as `queued`.
    """
    name = text.strip().lower().replace(" ", "_").replace("-", "_")
    if name in render.WORKING_WORDS:
        raise typer.BadParameter(f"a task that is {text} has the status working; use --status working")
    return name


StatusOption = Annotated[
    list[Status] | None, choice_option(tuple(Status), "STATUS", STATUS_HELP, normalize=_normalize_status)
]
NameOption = Annotated[
    str | None, Option(metavar="NAME", help="Show only tasks of this tool, function or method.")
]
ApplicationOption = Annotated[str | None, Option(metavar="NAME", help="Show only tasks of this application.")]
LimitOption = Annotated[
    int, Option(metavar="NUMBER", min=1, max=200, help="Maximum number of tasks to show.")
]


@dataclass(frozen=True, kw_only=True)
class TaskOptions(CommonOptions):
    def run(self, work: Callable[[Operator], Awaitable[T]]) -> T:
        """Call `work` with an `Operator`, and return the result. Add advice to some error messages."""
        try:
            return anyio.run(_run, self.existing_storage(), work)
        except NotFound as error:
            raise CommandError("task not found; list tasks with `perdure tasks list`") from error
        except MalformedAnswer as error:
            hint = "see the question with `perdure tasks show ID`"
            raise CommandError(f"invalid answer: {one_line(error.reason)}; {hint}") from error


@dataclass(frozen=True, kw_only=True)
class WatchOptions(TaskOptions):
    json: Annotated[bool, Option("--json", help="Print each change as a line of JSON.")] = False


async def _run(url: str, work: Callable[[Operator], Awaitable[T]]) -> T:
    async with await open_storage(url) as storage:
        await check_format(storage, now=system_clock())
        return await work(Operator(storage, keys=keys_from_environment()))


@command(tasks, "list")
def list_tasks(
    *,
    status: StatusOption = None,
    name: NameOption = None,
    application: ApplicationOption = None,
    after: Annotated[
        str | None, Option(metavar="CURSOR", help="Cursor printed at the end of the previous page.")
    ] = None,
    limit: LimitOption = 50,
    options: TaskOptions,
) -> None:
    """List the newest tasks of all owners and applications.

    Owners are shown as hashes. Task ids are shortened in a terminal, but not if the output goes to a file or
    pipe.
    """
    page = options.run(
        lambda operator: operator.tasks(
            statuses=status, name=name, application=application, after=after, limit=limit
        )
    )
    if options.json:
        print_json(page)
        return
    if not (page.tasks or page.newer or page.corrupt):
        print_message("No matching tasks found so far." if page.next_cursor else "No tasks found.")
    elif page.tasks and stdout.is_interactive:
        table = render.task_table(page.tasks, system_clock())
        stdout.print(table)
        if "message" in table.dropped(stdout):
            print_message(render.NO_ROOM)
    else:
        options.print(page, (render.task_line(task) for task in page.tasks))
    options.print(page, (render.newer_task_line(task) for task in page.newer))
    for task_id in page.corrupt:
        print_message(f"Task {task_id} is damaged; check the storage with `perdure doctor`.")
    if page.next_cursor is not None:
        print_message(f"For more tasks, use --after {page.next_cursor}")


@command(tasks)
def show(task: TaskArgument, *, options: TaskOptions) -> None:
    """Show one task: state, arguments, variables, checkpoint, timeline, log, open questions and outcome."""
    detail = options.run(lambda operator: operator.find(task))
    options.print(detail, render.render_task(detail, system_clock()))


@command(tasks)
def watch(
    task: OptionalTask = None,
    *,
    status: StatusOption = None,
    name: NameOption = None,
    application: ApplicationOption = None,
    limit: LimitOption = 20,
    options: WatchOptions,
) -> None:
    """Watch the newest tasks until interrupted, or one task until it finishes.

    When watching one task, exit with status 1 unless it completes.
    """

    async def work(operator: Operator) -> Status | None:
        if task is None:
            changes = operator.watch(statuses=status, name=name, application=application, limit=limit)
        else:
            changes = _watch_task(operator, (await operator.find(task)).summary)
        last: TaskChanges | None = None
        async with aclosing(changes):
            with render.task_display(operator.clock, json=options.json) as show:
                async for last in changes:
                    show(last)
        return last and last.page.tasks[0].status

    try:
        if options.run(work) is not Status.COMPLETED:  # returns only if a single task is watched
            raise typer.Exit(1)
    except KeyboardInterrupt:
        return


async def _watch_task(operator: Operator, task: TaskSummary) -> AsyncGenerator[TaskChanges]:
    """Yield a `TaskChanges` object, with a page of only this task, for each new version of the task."""
    async with aclosing(operator.watch_task(task.locator, task.task_id)) as versions:
        async for detail in versions:
            page = TaskSummaryPage(tasks=(detail.summary,))
            yield TaskChanges(page=page, changed=page.tasks, removed=())


@command(tasks)
def stats(
    *,
    window: Annotated[
        str, Option(metavar="TIME", help="Period in which to count finished tasks, such as 24h or 7d.")
    ] = "1h",
    options: TaskOptions,
) -> None:
    """Show task counts, workers, throughput, the oldest queued task, and the oldest with an open question."""
    now = system_clock()
    length = max(SECOND, now - past_time(window, now))
    found = options.run(lambda operator: operator.stats(length, buckets=60))
    options.print(found, render.render_stats(found, now))


@command(tasks)
def cancel(task: TaskArgument, *, options: TaskOptions) -> None:
    """Cancel a task. If the task is running, its worker stops it."""

    async def work(operator: Operator) -> TaskSummary:
        found = (await operator.find(task)).summary
        return await operator.cancel(found.locator, found.task_id)

    cancelled = options.run(work)
    requested = "Cancellation requested; the worker will stop the task."
    options.print(cancelled, ["Cancelled." if cancelled.status.is_terminal else requested])


@command(tasks)
def answer(
    task: TaskArgument,
    fields: Annotated[
        list[str] | None, Argument(metavar="NAME=VALUE", help="Value of a form field. Can be repeated.")
    ] = None,
    *,
    key: Annotated[
        str | None, Option(metavar="KEY", help="Key of the question to answer, if several are open.")
    ] = None,
    value: Annotated[str | None, Option(metavar="JSON", help="The complete answer as JSON.")] = None,
    decline: Annotated[bool, Option("--decline", help="Decline to answer the question.")] = False,
    options: TaskOptions,
) -> None:
    """Answer a question that a task has asked. If you give no answer, the command prompts for it."""
    if bool(fields) + (value is not None) + decline > 1:
        raise typer.BadParameter("use only one of NAME=VALUE, --value and --decline")
    detail = options.run(lambda operator: operator.find(task))
    if not detail.questions:
        print_message("perdure: the task has no open question; see `perdure tasks show ID`")
        raise typer.Exit(1)
    question = choose_question(detail, key)
    reply = build_answer(question, value=value, fields=fields or (), decline=decline)
    found = detail.summary
    result = options.run(lambda operator: operator.answer(found.locator, found.task_id, question.key, reply))
    still_open = result.open_questions
    text = f"{plural(still_open, 'question')} still open." if still_open else "The task resumes."
    options.print(result, [f"Answered. {text}"])


@command(tasks)
def purge(
    *,
    older_than: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="Also delete tasks that finished before TIME, for example 7d (7 days ago) or 2026-11-01.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    options: TaskOptions,
) -> None:
    """Delete expired tasks. Running servers and workers also do this once a minute."""
    time = None if older_than is None else past_time(older_than, system_clock())
    report = options.run(lambda operator: operator.purge(finished_before=time, dry_run=dry_run))
    counts = [plural(report.expired, "expired task")]
    if older_than is not None:
        counts.append(plural(report.finished, "finished task"))
    done = "would be deleted" if dry_run else "deleted"
    options.print(report, [f"{count} {done}" for count in counts])
