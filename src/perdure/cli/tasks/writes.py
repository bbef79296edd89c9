"""`perdure tasks cancel | answer | purge`: the commands that change something."""

from __future__ import annotations

from typing import Annotated

import typer

from ...operating import Operator, PurgeReport, Question, TaskDetail, TaskSummary
from ...tasks import Json as Answer
from ..errors import report_errors
from ..options import DryRunOption, JsonOption, UrlOption, past_time
from ..output import plural, print_json, print_message, print_result
from . import shapes
from .options import TaskArgument, run, tasks
from .prompt import AnswerInput, build_answer, choose_question


@tasks.command()
def cancel(task: TaskArgument, *, url: UrlOption = None, json: JsonOption = False) -> None:
    """End a task that waits; ask the worker of one that runs, wherever it is, to end it."""

    async def work(operator: Operator) -> TaskSummary:
        row = (await operator.find(task)).summary
        return await operator.cancel(row.locator, row.task_id)

    row = run(url, work)
    if json:
        print_json(shapes.row(row))
    else:
        print_result("it is cancelled" if row.status.is_terminal else "its worker was asked to end it")


@tasks.command()
def answer(
    task: TaskArgument,
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
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Answer what a task asks. In a terminal, and without an answer given, you are asked field by field."""
    given = AnswerInput(key=key, value=value, fields=fields or (), decline=decline)
    if bool(given.fields) + (value is not None) + decline > 1:
        raise typer.BadParameter("give the answer as NAME=VALUE, with --value, or --decline: one of them")

    async def look(operator: Operator) -> TaskDetail:
        return await operator.find(task)

    question, place, reply = _resolve_answer(
        run(url, look), given
    )  # people take their time, and nothing is open

    async def work(operator: Operator) -> TaskSummary:
        return await operator.answer(place.locator, place.task_id, question.key, reply)

    row = run(url, work)
    if json:
        print_json(shapes.row(row))
    elif row.open_questions:
        print_result(f"answered; {plural(row.open_questions, 'question')} still open")
    else:
        print_result("answered; the task goes on")


def _resolve_answer(seen: TaskDetail, given: AnswerInput) -> tuple[Question, TaskSummary, Answer]:
    if not seen.questions:
        print_message("perdure: the task asks nothing now; `perdure tasks show ID` tells how it is")
        raise typer.Exit(1)
    with report_errors():
        question = choose_question(seen, given.key)
        return question, seen.summary, build_answer(question, given)


@tasks.command()
def purge(
    *,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="tasks too that ended before: 7d, 2026-11-01"),
    ] = None,
    url: UrlOption = None,
    json: JsonOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Remove tasks whose time is over. Servers and workers do that too, every minute."""

    async def work(operator: Operator) -> PurgeReport:
        time = None if older_than is None else past_time(older_than, operator.clock())
        return await operator.purge(finished_before=time, dry_run=dry_run)

    report = run(url, work)
    if json:
        print_json(report)
        return
    would = "would be removed" if dry_run else "removed"
    print_result(f"{plural(report.expired, 'expired task')} {would}")
    if older_than is not None:
        print_result(f"{plural(report.finished, 'ended task')} {would}")
