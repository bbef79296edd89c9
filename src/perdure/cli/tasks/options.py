"""The options that these commands share, and how each of them is run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Annotated, TypeVar

import anyio
import typer

from ...operating import Operator
from ...storage import open_storage
from ...storage.errors import PerdureError
from ...tasks import Status
from ...tasks.errors import MalformedAnswer, NotFound
from ..backends import require_existing
from ..errors import CommandError, report_errors
from ..options import storage_url
from ..output import one_line, replace_unencodable

T = TypeVar("T")

tasks = typer.Typer(name="tasks", no_args_is_help=True)


def _complete_task_id(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The newest tasks that begin so, for shells that complete."""

    async def work(operator: Operator) -> list[tuple[str, str]]:
        found = (await operator.tasks(limit=100)).tasks
        return [(row.task_id, one_line(f"{row.name}, {row.display_status}")) for row in found]

    try:
        found = anyio.run(partial(_run_with_operator, context.params.get("url"), work))
    except (PerdureError, CommandError):
        return []
    return [each for each in found if each[0].startswith(incomplete)]


TaskArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="its id, or the first 6 letters or more", autocompletion=_complete_task_id
    ),
]
OptionalTask = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="one task; else the newest ones", autocompletion=_complete_task_id),
]
StatusOption = Annotated[
    list[Status] | None, typer.Option("--status", help="only of this status; may be given again")
]
NameOption = Annotated[
    str | None, typer.Option("--name", help="only of this function, tool or method", show_default=False)
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=200, help="how many at most")]


@tasks.callback()
def tasks_callback() -> None:
    """Everybody's tasks: list them, watch, cancel, answer and remove them."""
    replace_unencodable()


def run(url: str | None, work: Callable[[Operator], Awaitable[T]]) -> T:
    """Do it to a storage. What cannot be done is told in one line."""
    with report_errors(), _operator_hints():
        return anyio.run(partial(_run_with_operator, url, work))


@contextmanager
def _operator_hints() -> Generator[None]:
    """That no task is found says nothing to clients; operators are told where to look. The key of a question
    says something to clients alone.
    """
    try:
        yield
    except NotFound as error:
        told_more = "there is no such task, or no more; `perdure tasks list` shows those that there are"
        raise CommandError(told_more) from error
    except MalformedAnswer as error:
        reason = one_line(error.reason)
        raise CommandError(
            f"the answer does not fit: {reason}; `perdure tasks show ID` shows what is asked"
        ) from error


async def _run_with_operator(url: str | None, work: Callable[[Operator], Awaitable[T]]) -> T:
    async with _opened(storage_url(url)) as operator:
        return await work(operator)


@asynccontextmanager
async def _opened(url: str) -> AsyncGenerator[Operator]:
    """Open a storage that exists: these commands create none."""
    require_existing(url)
    async with await open_storage(url) as storage:
        yield Operator(storage)
