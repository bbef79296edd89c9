"""`perdure tasks cancel | answer | purge`: the commands that change something."""

from __future__ import annotations

from typing import Annotated

import typer

from ...operating import Detail, Operator, Purge, Question, Row
from ...tasks import Json as Answer
from ..options import DryRun, Json, Url
from ..output import counted, tell, tell_document
from ..saying import say, told
from ..times import moment
from . import shapes
from .options import Id, done, tasks
from .prompt import Given, answer_to, chosen


@tasks.command()
def cancel(task: Id, *, url: Url = None, json: Json = False) -> None:
    """End a task that waits; ask the worker of one that runs, wherever it is, to end it."""

    async def work(operator: Operator) -> Row:
        row = (await operator.find(task)).row
        return await operator.cancel(row.handle, row.task_id)

    row = done(url, work)
    if json:
        tell_document(shapes.row(row))
    else:
        tell("it is cancelled" if row.status.is_terminal else "its worker was asked to end it")


@tasks.command()
def answer(
    task: Id,
    fields: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="what the form asks for", show_default=False),
    ] = None,
    *,
    key: Annotated[str | None, typer.Option("--key", help="of the question, if there are several")] = None,
    value: Annotated[
        str | None, typer.Option("--value", metavar="JSON", help="all fields of the form, or a whole result")
    ] = None,
    decline: Annotated[bool, typer.Option("--decline", help="say that there will be no answer")] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Answer what a task asks. In a terminal, and without an answer given, you are asked field by field."""
    given = Given(key=key, value=value, fields=fields or (), declines=decline)
    if bool(given.fields) + (value is not None) + decline > 1:
        raise typer.BadParameter("give the answer as NAME=VALUE, with --value, or --decline: one of them")

    async def look(operator: Operator) -> Detail:
        return await operator.find(task)

    question, place, reply = _replied(done(url, look), given)  # people take their time, and nothing is open

    async def work(operator: Operator) -> Row:
        return await operator.answer(place.handle, place.task_id, question.key, reply)

    row = done(url, work)
    if json:
        tell_document(shapes.row(row))
    elif row.open_questions:
        tell(f"answered; {counted(row.open_questions, 'question')} still open")
    else:
        tell("answered; the task goes on")


def _replied(seen: Detail, given: Given) -> tuple[Question, Row, Answer]:
    if not seen.questions:
        say("perdure: the task asks nothing now; `perdure tasks show ID` tells how it is")
        raise typer.Exit(1)
    with told():
        question = chosen(seen, given.key)
        return question, seen.row, answer_to(question, given)


@tasks.command()
def purge(
    *,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="tasks too that ended before: 7d, 2026-11-01"),
    ] = None,
    url: Url = None,
    json: Json = False,
    dry_run: DryRun = False,
) -> None:
    """Remove tasks whose time is over. Servers and workers do that too, every minute."""

    async def work(operator: Operator) -> Purge:
        time = None if older_than is None else moment(older_than, operator.clock())
        return await operator.purge(ended_before=time, dry_run=dry_run)

    report = done(url, work)
    if json:
        tell_document(report)
        return
    would = "would be removed" if dry_run else "removed"
    tell(f"{counted(report.expired, 'expired task')} {would}")
    if older_than is not None:
        tell(f"{counted(report.ended, 'ended task')} {would}")
