"""The commands `perdure tasks list | show | watch | stats | cancel | answer | purge`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeVar

import anyio
import typer

from ...operating import Operator, TaskChanges, TaskDetail, TaskSummary, TaskSummaryPage
from ...storage.clock import SECOND
from ...storage.errors import PerdureError
from ...tasks import Status
from ...tasks.errors import MalformedAnswer, NotFound
from ..backends import open_operator
from ..errors import CommandError, report_errors
from ..options import CommonOptions, DryRunOption, common_options, past_time
from ..output import (
    is_interactive,
    one_line,
    plural,
    print_json,
    print_message,
    print_result,
    replace_unencodable,
    stdout,
)
from .prompt import AnswerInput, build_answer, choose_question
from .render import (
    newer_task_line,
    page_json,
    render_stats,
    render_task,
    stats_json,
    task_detail_json,
    task_display,
    task_json,
    task_line,
    task_table,
)

T = TypeVar("T")

tasks = typer.Typer(name="tasks", no_args_is_help=True)


@tasks.callback()
def tasks_callback() -> None:
    """List, show, watch, cancel, answer and purge the tasks of all owners."""
    replace_unencodable()


def _complete_task_id(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return ids and descriptions of the newest tasks, for shell completion."""
    try:
        page = anyio.run(partial(_run, context.params.get("url"), lambda operator: operator.tasks(limit=100)))
    except (PerdureError, CommandError):
        return []
    return [
        (task.task_id, one_line(f"{task.name}, {task.display_status}"))
        for task in page.tasks
        if task.task_id.startswith(incomplete)
    ]


TaskArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Task id, or at least its first 6 characters.", autocompletion=_complete_task_id
    ),
]
OptionalTask = Annotated[
    str | None,
    typer.Argument(
        metavar="ID", help="Task to watch. Default: the newest tasks.", autocompletion=_complete_task_id
    ),
]
StatusOption = Annotated[
    list[Status] | None, typer.Option("--status", help="Show only this status. Repeatable.")
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", help="Show only this tool, function or method.", show_default=False),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=200, help="Maximum number of results.")]


@dataclass(frozen=True, kw_only=True)
class TaskOptions(CommonOptions):
    """The options of every command on tasks."""

    def run(self, work: Callable[[Operator], Awaitable[T]]) -> T:
        """Run `work` with an `Operator` of the storage, and report errors."""
        with report_errors(), _operator_hints():
            return anyio.run(partial(_run, self.url, work))


async def _run(url: str | None, work: Callable[[Operator], Awaitable[T]]) -> T:
    async with open_operator(url) as operator:
        return await work(operator)


@contextmanager
def _operator_hints() -> Generator[None]:
    """Replace errors that are written for clients with ones that help operators."""
    try:
        yield
    except NotFound as error:
        raise CommandError("task not found; list tasks with `perdure tasks list`") from error
    except MalformedAnswer as error:
        raise CommandError(
            f"invalid answer: {one_line(error.reason)}; see the question with `perdure tasks show ID`"
        ) from error


@tasks.command("list")
@common_options
def list_tasks(
    *,
    status: StatusOption = None,
    name: NameOption = None,
    after: Annotated[
        str | None, typer.Option("--after", help="Cursor printed at the end of the previous page.")
    ] = None,
    limit: LimitOption = 50,
    options: TaskOptions,
) -> None:
    """List the newest tasks of all owners.

    Owners are shown as hashes; ids are complete if the output is not a terminal.
    """
    page = options.run(lambda operator: operator.tasks(statuses=status, name=name, after=after, limit=limit))
    if options.json:
        print_json(page_json(page))
        return
    _print_page(page)
    for task_id in page.corrupt:
        print_message(f"Task {task_id} is damaged; check the storage with `perdure doctor`.")
    if page.next_cursor is not None:
        print_message(f"More tasks: --after {page.next_cursor}")


def _print_page(page: TaskSummaryPage) -> None:
    if not (page.tasks or page.newer):
        print_message("No tasks found.")
    elif page.tasks and is_interactive(stdout):
        stdout.print(task_table(page.tasks))
    else:
        for task in page.tasks:
            print_result(task_line(task))
    for task in page.newer:
        print_result(newer_task_line(task))


@tasks.command()
@common_options
def show(task: TaskArgument, *, options: TaskOptions) -> None:
    """Show one task: arguments, variables, timeline, open questions and outcome."""

    async def work(operator: Operator) -> None:
        detail = await operator.find(task)
        options.print(task_detail_json(detail), render_task(detail, operator.clock()))

    options.run(work)


@tasks.command()
@common_options
def watch(
    task: OptionalTask = None,
    *,
    status: StatusOption = None,
    name: NameOption = None,
    limit: LimitOption = 20,
    options: TaskOptions,
) -> None:
    """Watch the newest tasks until Ctrl+C, or one task until it finishes. Exit with 1 if that task failed."""

    async def watch_page(operator: Operator) -> None:
        display = task_display(operator.clock, json=options.json)
        async with aclosing(operator.watch(statuses=status, name=name, limit=limit)) as pages:
            with display.live:
                async for changes in pages:
                    display.show(changes, operator.clock())

    async def watch_task(operator: Operator, task: str) -> Status:
        display = task_display(operator.clock, json=options.json)
        found = (await operator.find(task)).summary
        async with aclosing(operator.watch_task(found.locator, found.task_id)) as versions:
            with display.live:
                async for detail in versions:
                    found = detail.summary
                    display.show(_single_change(detail), operator.clock())
        return found.status

    try:
        if task is None:
            options.run(watch_page)
        elif options.run(lambda operator: watch_task(operator, task)) is not Status.COMPLETED:
            raise typer.Exit(1)
    except KeyboardInterrupt:
        return


def _single_change(detail: TaskDetail) -> TaskChanges:
    return TaskChanges(page=TaskSummaryPage(tasks=(detail.summary,)), changed=(detail.summary,), removed=())


@tasks.command()
@common_options
def stats(
    *,
    window: Annotated[
        str, typer.Option("--window", metavar="TIME", help="Length of the window: 30m, 1h, 7d.")
    ] = "1h",
    options: TaskOptions,
) -> None:
    """Show task counts, workers, the oldest queued task and throughput."""

    async def work(operator: Operator) -> None:
        now = operator.clock()
        found = await operator.stats(max(SECOND, now - past_time(window, now)), buckets=60)
        options.print(stats_json(found), render_stats(found, now))

    options.run(work)


@tasks.command()
@common_options
def cancel(task: TaskArgument, *, options: TaskOptions) -> None:
    """Cancel a task. A running task is stopped by its worker."""

    async def work(operator: Operator) -> TaskSummary:
        found = (await operator.find(task)).summary
        return await operator.cancel(found.locator, found.task_id)

    cancelled = options.run(work)
    requested = "Cancellation requested; the worker will stop the task."
    text = "Cancelled." if cancelled.status.is_terminal else requested
    options.print(task_json(cancelled), [text])


@tasks.command()
@common_options
def answer(
    task: TaskArgument,
    fields: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Fields of the form.", show_default=False),
    ] = None,
    *,
    key: Annotated[
        str | None, typer.Option("--key", help="Key of the question, if several are open.")
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            "--value", metavar="JSON", help="The answer as JSON: all form fields, or a complete result."
        ),
    ] = None,
    decline: Annotated[bool, typer.Option("--decline", help="Decline to answer.")] = False,
    options: TaskOptions,
) -> None:
    """Answer a question of a task. Without an answer, prompt for each field."""
    given = AnswerInput(value=value, fields=fields or (), decline=decline)
    if bool(given.fields) + (value is not None) + decline > 1:
        raise typer.BadParameter("use only one of NAME=VALUE, --value and --decline")
    detail = options.run(lambda operator: operator.find(task))
    if not detail.questions:
        print_message("perdure: the task has no open question; see `perdure tasks show ID`")
        raise typer.Exit(1)
    with report_errors():  # no storage is open while a user types
        question = choose_question(detail, key)
        reply = build_answer(question, given)
    found = detail.summary
    answered = options.run(
        lambda operator: operator.answer(found.locator, found.task_id, question.key, reply)
    )
    still_open = answered.open_questions
    text = f"{plural(still_open, 'question')} still open." if still_open else "The task resumes."
    options.print(task_json(answered), [f"Answered. {text}"])


@tasks.command()
@common_options
def purge(
    *,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="Also delete finished tasks older than this (7d, 2026-11-01).",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    options: TaskOptions,
) -> None:
    """Delete expired tasks. Servers and workers do this every minute."""

    async def work(operator: Operator) -> None:
        time = None if older_than is None else past_time(older_than, operator.clock())
        report = await operator.purge(finished_before=time, dry_run=dry_run)
        counts = [plural(report.expired, "expired task")]
        if older_than is not None:
            counts.append(plural(report.finished, "finished task"))
        done = "would be deleted" if dry_run else "deleted"
        options.print(report, [f"{count} {done}" for count in counts])

    options.run(work)
