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

from ..operating.maintenance import LiveClaims
from ..runtime import App
from ..storage import migrate_storage
from ..storage.copy import Progress
from .backends import check_shared
from .feeds import feeds
from .importer import CannotLoad, load_app
from .options import Json, RefusedUrl, Url, refuse_options, storage_url
from .output import counted, tell, tell_document
from .saying import console, log_to_stderr, say, told
from .serve import serve
from .servers import versions
from .storages import copy_all, examine, lines_of_health
from .tasks import tasks
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
    context: typer.Context,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="where the functions are registered")],
    *,
    url: RefusedUrl = None,  # noqa: ARG001 (see refuse_options)
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="log every step")] = False,
) -> None:
    """Run the tasks of an app, beside its server or alone, until SIGTERM."""
    log_to_stderr(verbose=verbose)
    with told():
        refuse_options(context, app, "url")
        anyio.run(work, _useful(load_app(app)), say)
    _leave()


@commands.command()
def migrate(*, url: Url = None, json: Json = False) -> None:
    """Create or upgrade the tables that a storage needs, and nothing else."""
    with told():
        storage = storage_url(url)
        check_shared(storage)
        anyio.run(migrate_storage, storage)
    if json:
        tell_document({"is_ready": True})
    else:
        tell("the storage is ready")


@commands.command()
def copy(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The URL of the storage to write; empty.")],
    *,
    url: Url = None,
    merge: Annotated[bool, typer.Option("--merge", help="Allow a target that has other records.")] = False,
    json: Json = False,
) -> None:
    """Copy everything from the storage --url to another, and compare. Stop the servers of both before.

    An interrupted copy resumes when it is started again.
    """
    with told(), console.status("copying") as status:

        def show(progress: Progress) -> None:
            status.update(f"{progress.space}: {progress.records} records {progress.step}")

        copied = anyio.run(
            partial(copy_all, storage_url(url), target, merge=merge, tell=show, warn=_warn_of_claims)
        )
    if json:
        tell_document({"is_same": True, **asdict(copied)})
        return
    for space, count in copied.records.items():
        tell(f"{count:>9}  {space}")
    tell("everything is there, to the byte")


def _warn_of_claims(live: LiveClaims) -> None:
    """Say what is being worked on in the source, before it is copied."""
    tasks, accounts = counted(live.tasks, "task"), counted(live.accounts, "account")
    busy = [
        *([f"{tasks} {_are(live.tasks)} being run by live workers"] if live.tasks else []),
        *([f"{accounts} {_are(live.accounts)} being polled"] if live.accounts else []),
    ]
    say(f"{' and '.join(busy)}; what they write from now on is not copied. Stop the servers first.")


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


@commands.command()
def doctor(
    *,
    url: Url = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair wrong counters and quarantine damaged records.")
    ] = False,
    json: Json = False,
) -> None:
    """Check a storage for damage and reclaim space. Exit with 1 if problems remain."""
    with told():
        health = anyio.run(partial(examine, storage_url(url), repair=repair))
    if json:
        tell_document({"versions": versions(), "is_well": health.is_well, **asdict(health)})
    else:
        for line in (versions(), *lines_of_health(health, repair=repair)):
            tell(line)
    if not health.is_well:
        raise typer.Exit(1)


def _useful(app: App) -> App:
    """The app, if a worker can do anything for it."""
    if not app.functions:
        raise CannotLoad("the app has no functions; register them with @app.function in the module it is in")
    if isinstance(app.url, str):
        check_shared(app.url)
    return app


def _leave() -> None:
    """End the process, though an abandoned plain function may still be running in a thread."""
    if all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
