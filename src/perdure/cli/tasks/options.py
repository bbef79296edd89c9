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
from ..backends import check_exists
from ..errors import CannotDo
from ..options import storage_url
from ..output import bear_any_letter, harmless
from ..saying import told

T = TypeVar("T")

tasks = typer.Typer(name="tasks", no_args_is_help=True)


def _ids(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The newest tasks that begin so, for shells that complete."""

    async def work(operator: Operator) -> list[tuple[str, str]]:
        found = (await operator.tasks(limit=100)).rows
        return [(row.task_id, harmless(f"{row.name}, {row.state}")) for row in found]

    try:
        found = anyio.run(partial(_worked, context.params.get("url"), work))
    except (PerdureError, CannotDo):
        return []
    return [each for each in found if each[0].startswith(incomplete)]


Id = Annotated[
    str, typer.Argument(metavar="ID", help="its id, or the first 6 letters or more", autocompletion=_ids)
]
MaybeId = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="one task; else the newest ones", autocompletion=_ids),
]
Statuses = Annotated[
    list[Status] | None, typer.Option("--status", help="only of this status; may be given again")
]
Name = Annotated[
    str | None, typer.Option("--name", help="only of this function, tool or method", show_default=False)
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=200, help="how many at most")]


@tasks.callback()
def of_tasks() -> None:
    """Everybody's tasks: list them, watch, cancel, answer and remove them."""
    bear_any_letter()


def done(url: str | None, work: Callable[[Operator], Awaitable[T]]) -> T:
    """Do it to a storage. What cannot be done is told in one line."""
    with told(), _with_remedy():
        return anyio.run(partial(_worked, url, work))


@contextmanager
def _with_remedy() -> Generator[None]:
    """That no task is found says nothing to clients; operators are told where to look. The key of a question
    says something to clients alone.
    """
    try:
        yield
    except NotFound as error:
        told_more = "there is no such task, or no more; `perdure tasks list` shows those that there are"
        raise CannotDo(told_more) from error
    except MalformedAnswer as error:
        reason = harmless(error.reason)
        raise CannotDo(
            f"the answer does not fit: {reason}; `perdure tasks show ID` shows what is asked"
        ) from error


async def _worked(url: str | None, work: Callable[[Operator], Awaitable[T]]) -> T:
    async with _opened(storage_url(url)) as operator:
        return await work(operator)


@asynccontextmanager
async def _opened(url: str) -> AsyncGenerator[Operator]:
    """Open a storage that exists: these commands create none."""
    check_exists(url)
    async with await open_storage(url) as storage:
        yield Operator(storage)
