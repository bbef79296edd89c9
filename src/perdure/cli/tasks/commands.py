"""`perdure tasks list | show | watch | stats`: the commands that only look."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import typer

from ...operating import Operator, Stats, TaskChanges, TaskDetail, TaskSummary, TaskSummaryPage
from ...storage import Micros
from ...storage.clock import system_clock
from ...tasks import Status
from ..options import JsonOption, UrlOption, past_time
from ..output import print_json, print_message, print_result
from . import shapes
from .options import LimitOption, NameOption, OptionalTask, StatusOption, TaskArgument, run, tasks
from .render import newer_task_line, render_stats, render_task, task_line
from .showing import is_interactive, stdout, task_display, task_table


@tasks.command("list")
def list_tasks(
    *,
    status: StatusOption = None,
    name: NameOption = None,
    after: Annotated[str | None, typer.Option("--after", help="go on where a list ended")] = None,
    limit: LimitOption = 50,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """The newest tasks of everybody, owners hashed. A terminal shows a table; files get whole ids."""

    async def work(operator: Operator) -> TaskSummaryPage:
        return await operator.tasks(statuses=status, name=name, after=after, limit=limit)

    page = run(url, work)
    if json:
        print_json(shapes.rows(page))
        return
    _tell_rows(page)
    for corrupt in page.corrupt:
        print_message(f"the record of task {corrupt} cannot be read; `perdure doctor` shows why")
    if page.next_cursor is not None:
        print_message(f"there may be more; go on with --after {page.next_cursor}")


def _tell_rows(page: TaskSummaryPage) -> None:
    if not (page.tasks or page.newer):
        print_message("no tasks here")
    elif page.tasks and is_interactive():
        stdout.print(task_table(page.tasks))
    else:
        for row in page.tasks:
            print_result(task_line(row))
    for task in page.newer:
        print_result(newer_task_line(task))


@tasks.command()
def show(task: TaskArgument, *, url: UrlOption = None, json: JsonOption = False) -> None:
    """Everything about one task: arguments, variables, what happened, what it asks, how it ended."""

    async def work(operator: Operator) -> TaskDetail:
        return await operator.find(task)

    seen = run(url, work)
    if json:
        print_json(shapes.detail(seen))
    else:
        print_result("\n".join(render_task(seen, system_clock())))


@tasks.command()
def watch(
    task: OptionalTask = None,
    *,
    status: StatusOption = None,
    name: NameOption = None,
    limit: LimitOption = 20,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """The newest tasks as they change, until Ctrl-C; or one to its end, which fails if the task does."""

    async def work(operator: Operator) -> TaskSummary | None:
        with task_display(operator.clock, json=json) as display:
            if task is None:
                async with aclosing(operator.watch(statuses=status, name=name, limit=limit)) as seen:
                    async for changes in seen:
                        display.tell(changes, operator.clock())
                return None
            row = (await operator.find(task)).summary
            async with aclosing(operator.watch_task(row.locator, row.task_id)) as states:
                async for detail in states:
                    row = detail.summary
                    display.tell(_single_change(detail), operator.clock())
            return row

    try:
        ended = run(url, work)
    except KeyboardInterrupt:
        return
    if ended is not None and ended.status is not Status.COMPLETED:
        raise typer.Exit(1)


def _single_change(detail: TaskDetail) -> TaskChanges:
    return TaskChanges(page=TaskSummaryPage(tasks=(detail.summary,)), changed=(detail.summary,), removed=())


@tasks.command()
def stats(
    *,
    window: Annotated[str, typer.Option("--window", metavar="TIME", help="30m, 1h, 7d")] = "1h",
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """How many tasks there are, who works, what waits the longest, and how much ended of late."""

    async def work(operator: Operator) -> Stats:
        now = operator.clock()
        span: Micros = max(1_000_000, now - past_time(window, now))
        return await operator.stats(span, buckets=60)

    seen = run(url, work)
    if json:
        print_json(shapes.stats(seen))
    else:
        print_result("\n".join(render_stats(seen, system_clock())))
