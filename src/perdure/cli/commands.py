"""The command line, as typer sees it: names, options, and what is printed."""

from __future__ import annotations

import logging
import os
import sys
import threading
from functools import partial
from typing import Annotated

import anyio
import typer
from msgspec.structs import asdict

from ..runtime import App
from ..storage import is_shared, migrate_storage
from ..storage.copying import Progress
from .feeds import feeds
from .loading import CannotLoad, load_app
from .options import Json
from .saying import console, log_to_stderr, say, told
from .serve import serve
from .servers import versions
from .storages import copy_all, examine, lines_of_health
from .tasks import tasks
from .telling import tell, tell_document
from .worker import work

commands = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)
commands.add_typer(tasks)
commands.add_typer(feeds)
commands.command()(serve)


def _tell_version(*, wanted: bool) -> None:
    if wanted:
        tell(versions())
        raise typer.Exit


_Version = Annotated[
    bool,
    typer.Option("--version", callback=_tell_version, is_eager=True, help="tell the version, and end"),
]


@commands.callback()
def perdure(*, version: _Version = False) -> None:
    """Long-running work of MCP servers that survives."""


@commands.command()
def worker(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="where the functions are registered")],
    *,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="log every step")] = False,
) -> None:
    """Run the tasks of an app, beside its server or alone, until SIGTERM."""
    log_to_stderr(verbose=verbose)
    with told():
        anyio.run(work, _useful(load_app(app)), say)
    _leave()


_Url = Annotated[str, typer.Argument(metavar="URL", help="sqlite:///..., postgresql://..., redis://..., ...")]


@commands.command()
def migrate(url: _Url, *, json: Json = False) -> None:
    """Make or change the tables that a storage needs, and nothing else."""
    with told():
        anyio.run(migrate_storage, url)
    if json:
        tell_document({"is_ready": True})
    else:
        say("the storage is ready")


@commands.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="the storage that is read")],
    target: Annotated[str, typer.Argument(metavar="TO", help="the storage that is written; empty")],
    *,
    merge: Annotated[bool, typer.Option(help="let the target hold other records already")] = False,
    json: Json = False,
) -> None:
    """Copy everything from one storage to another, and compare. Stop the servers of both before.

    A copy that was interrupted goes on where it stood when it is started again.
    """
    with told(), console.status("copying") as status:

        def tell(progress: Progress) -> None:
            status.update(f"{progress.space}: {progress.records} records {progress.step}")

        counts = anyio.run(partial(copy_all, source, target, merge=merge, tell=tell))
    if json:
        tell_document({"is_same": True, "records": counts})
        return
    for space, count in counts.items():
        say(f"{count:>9}  {space}")
    say("everything is there, to the byte")


@commands.command()
def doctor(
    url: _Url,
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair wrong counters and quarantine damaged records.")
    ] = False,
    json: Json = False,
) -> None:
    """Check a storage for damage and reclaim space. Exit with 1 if problems remain."""
    with told():
        health = anyio.run(partial(examine, url, repair=repair))
    if json:
        tell_document({"versions": versions(), "is_well": health.is_well, **asdict(health)})
    else:
        for line in (versions(), *lines_of_health(health, repair=repair)):
            say(line)
    if not health.is_well:
        raise typer.Exit(1)


def _useful(app: App) -> App:
    """The app, if a worker can do anything for it."""
    if not app.functions:
        raise CannotLoad("the app has no functions; register them with @app.function in the module it is in")
    if isinstance(app.url, str) and not is_shared(app.url):
        scheme = app.url.partition(":")[0]
        raise CannotLoad(f"the storage {scheme}: is within one process, and nobody could give this one work")
    return app


def _leave() -> None:
    """End the process, though an abandoned plain function may still be running in a thread."""
    if all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
