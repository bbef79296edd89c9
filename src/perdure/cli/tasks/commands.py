"""`perdure tasks list | show | watch | stats`: the commands that only look."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import typer

from ...operating import Changes, Detail, Operator, Row, Rows, Stats
from ...storage import Micros
from ...storage.clock import system_clock
from ...tasks import Status
from ..options import Json, Url
from ..output import tell, tell_document
from ..saying import say
from ..times import moment
from . import shapes
from .options import Id, Limit, MaybeId, Name, Statuses, done, tasks
from .render import line_of, line_of_newer, lines_of_detail, lines_of_stats
from .showing import can_move, screen, shown, table_of


@tasks.command("list")
def list_tasks(
    *,
    status: Statuses = None,
    name: Name = None,
    after: Annotated[str | None, typer.Option("--after", help="go on where a list ended")] = None,
    limit: Limit = 50,
    url: Url = None,
    json: Json = False,
) -> None:
    """The newest tasks of everybody, owners hashed. A terminal shows a table; files get whole ids."""

    async def work(operator: Operator) -> Rows:
        return await operator.tasks(statuses=status, name=name, after=after, limit=limit)

    page = done(url, work)
    if json:
        tell_document(shapes.rows(page))
        return
    _tell_rows(page)
    for corrupt in page.corrupt:
        say(f"the record of task {corrupt} cannot be read; `perdure doctor` shows why")
    if page.next is not None:
        say(f"there may be more; go on with --after {page.next}")


def _tell_rows(page: Rows) -> None:
    if not (page.rows or page.newer):
        say("no tasks here")
    elif page.rows and can_move():
        screen.print(table_of(page.rows))
    else:
        for row in page.rows:
            tell(line_of(row))
    for task in page.newer:
        tell(line_of_newer(task))


@tasks.command()
def show(task: Id, *, url: Url = None, json: Json = False) -> None:
    """Everything about one task: arguments, variables, what happened, what it asks, how it ended."""

    async def work(operator: Operator) -> Detail:
        return await operator.find(task)

    seen = done(url, work)
    if json:
        tell_document(shapes.detail(seen))
    else:
        tell("\n".join(lines_of_detail(seen, system_clock())))


@tasks.command()
def watch(
    task: MaybeId = None,
    *,
    status: Statuses = None,
    name: Name = None,
    limit: Limit = 20,
    url: Url = None,
    json: Json = False,
) -> None:
    """The newest tasks as they change, until Ctrl-C; or one to its end, which fails if the task does."""

    async def work(operator: Operator) -> Row | None:
        with shown(operator.clock, json=json) as display:
            if task is None:
                async with aclosing(operator.watch(statuses=status, name=name, limit=limit)) as seen:
                    async for changes in seen:
                        display.tell(changes, operator.clock())
                return None
            row = (await operator.find(task)).row
            async with aclosing(operator.watch_task(row.handle, row.task_id)) as states:
                async for detail in states:
                    row = detail.row
                    display.tell(_alone(detail), operator.clock())
            return row

    try:
        ended = done(url, work)
    except KeyboardInterrupt:
        return
    if ended is not None and ended.status is not Status.COMPLETED:
        raise typer.Exit(1)


def _alone(detail: Detail) -> Changes:
    return Changes(page=Rows(rows=(detail.row,)), changed=(detail.row,), gone=())


@tasks.command()
def stats(
    *,
    window: Annotated[str, typer.Option("--window", metavar="TIME", help="30m, 1h, 7d")] = "1h",
    url: Url = None,
    json: Json = False,
) -> None:
    """How many tasks there are, who works, what waits the longest, and how much ended of late."""

    async def work(operator: Operator) -> Stats:
        now = operator.clock()
        span: Micros = max(1_000_000, now - moment(window, now))
        return await operator.stats(span, parts=60)

    seen = done(url, work)
    if json:
        tell_document(shapes.stats(seen))
    else:
        tell("\n".join(lines_of_stats(seen, system_clock())))
