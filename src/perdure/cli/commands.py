"""The root of the command line: version, worker, migrate, copy and doctor."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from typing import Annotated

import anyio
import typer

from ..operating.errors import MaintenanceError
from ..operating.maintenance import CopyReport, HealthReport, LiveClaims, check_storage, copy_storage
from ..runtime import App
from ..storage import migrate_storage
from ..storage.copy import CopyProgress, ProgressCallback
from ..storage.errors import TargetNotEmpty
from .backends import redact_url, require_existing, require_shared
from .errors import CommandError, report_errors
from .feeds import feeds
from .importer import LoadError, load_app
from .options import (
    CommonOptions,
    RefusedUrlOption,
    VerboseOption,
    common_options,
    refuse_options,
    storage_url,
)
from .output import configure_logging, plural, print_message, print_result, stderr, to_json
from .serve import serve
from .signals import stop_signals
from .tasks import tasks

commands = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)
commands.add_typer(tasks)
commands.add_typer(feeds)
commands.command()(serve)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        print_result(_versions())
        raise typer.Exit


@commands.callback()
def perdure(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Durable tasks for MCP servers: serve them, run workers, operate tasks and feeds."""


@commands.command()
def worker(
    context: typer.Context,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The App to run, as module:attribute.")],
    *,
    url: RefusedUrlOption = None,  # noqa: ARG001 (see refuse_options)
    verbose: VerboseOption = False,
) -> None:
    """Run the tasks of an app until stopped (Ctrl+C or SIGTERM)."""
    configure_logging(verbose=verbose)
    with report_errors():
        refuse_options(context, app, "url")
        anyio.run(_run_worker, _require_runnable(load_app(app)))
    _exit_despite_threads()


def _require_runnable(app: App) -> App:
    if not app.functions:
        raise LoadError("the app has no functions; register them with @app.function in its module")
    if isinstance(app.url, str):
        require_shared(app.url)
    return app


async def _run_worker(app: App) -> None:
    recovery = "Running tasks will be recovered by another worker or at the next start."
    async with stop_signals("waiting for running tasks", recovery) as stop, app.open() as runtime:
        names = ", ".join(sorted(app.functions))
        print_message(f"Worker {runtime.name} on {runtime.store.storage.name}, functions: {names}")
        await stop.wait()
    print_message("Stopped.")


def _exit_despite_threads() -> None:
    """End the process even if an abandoned plain function is still running in a thread."""
    if all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@commands.command()
@common_options
def migrate(options: CommonOptions) -> None:
    """Create or upgrade the tables that a storage needs."""
    with report_errors():
        url = storage_url(options.url)
        require_shared(url)
        anyio.run(migrate_storage, url)
    options.print({"ready": True}, ["The storage is ready."])


@commands.command()
@common_options
def copy(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="URL of the storage to copy to. Must be empty unless --merge is given."
        ),
    ],
    *,
    merge: Annotated[
        bool, typer.Option("--merge", help="Allow a target that already contains other records.")
    ] = False,
    options: CommonOptions,
) -> None:
    """Copy all records of the storage --url to another storage and verify the copy.

    Stop all servers and workers of both storages first. An interrupted copy resumes when you run the command
    again.
    """
    with report_errors(), stderr.status("copying") as status:

        def show(progress: CopyProgress) -> None:
            status.update(f"{progress.space}: {progress.records} records {progress.step}")

        source = storage_url(options.url)
        require_shared(target)
        require_existing(source)
        copied = _run_copy(source, target, merge=merge, on_progress=show)
    counts = [f"{count:>9}  {space}" for space, count in copied.records.items()]
    options.print(
        {"identical": True, **to_json(copied)}, [*counts, "Copy verified: all records are identical."]
    )


def _run_copy(source: str, target: str, *, merge: bool, on_progress: ProgressCallback) -> CopyReport:
    copying = partial(copy_storage, merge=merge, on_progress=on_progress, on_live_claims=_warn_about_claims)
    try:
        return anyio.run(copying, source, target)
    except (MaintenanceError, TargetNotEmpty) as error:
        hint = " (--merge)" if str(error).endswith("merge") else ""
        raise CommandError(f"cannot copy into {redact_url(target)}: {error}{hint}") from error


def _warn_about_claims(live: LiveClaims) -> None:
    tasks, accounts = plural(live.tasks, "task"), plural(live.accounts, "account")
    busy = [
        *([f"{tasks} {_are(live.tasks)} being run by live workers"] if live.tasks else []),
        *([f"{accounts} {_are(live.accounts)} being polled"] if live.accounts else []),
    ]
    print_message(f"{' and '.join(busy)}; what they write from now on is not copied. Stop the servers first.")


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


@commands.command()
@common_options
def doctor(
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair wrong counters and quarantine damaged records.")
    ] = False,
    options: CommonOptions,
) -> None:
    """Check a storage for damage and reclaim space. Exit with 1 if problems remain."""
    with report_errors():
        url = storage_url(options.url)
        require_existing(url)
        health = anyio.run(partial(check_storage, url, repair=repair))
    result = {"versions": _versions(), "ok": health.is_ok, **to_json(health)}
    options.print(result, [_versions(), *_render_health(health, repair=repair)])
    if not health.is_ok:
        raise typer.Exit(1)


def _render_health(health: HealthReport, *, repair: bool) -> Iterator[str]:
    server = health.server
    yield f"Storage: {health.engine}{server.version and f' ({server.version})'}, schema is current"
    yield f"Write and delete: {health.write_seconds * 1000:.0f} ms"
    if server.clock_offset is not None:
        word = "ahead" if server.clock_offset > 0 else "behind"
        yield f"Server clock: {abs(server.clock_offset):.3f} s {word} (±{server.offset_error:.3f} s)"
    yield from health.findings
    if health.remaining:
        yield (
            "Some problems cannot be repaired."
            if repair
            else "Repair wrong counters and quarantine damaged records with --repair."
        )
    if health.newer:
        yield f"Written by a newer version, not changed: {plural(health.newer, 'record')}"
    if health.quarantined:
        yield f"In quarantine: {plural(health.quarantined, 'damaged record')}"
    if health.has_clock_skew:
        yield "The clocks are too far apart; synchronize them with NTP."
    if health.is_ok and health.findings:
        yield f"Repaired: {plural(health.records, 'record')} checked, no problems remain"
    elif health.is_ok:
        yield f"OK: {plural(health.records, 'record')}, no problems found"


def _versions() -> str:
    python = ".".join(str(each) for each in sys.version_info[:3])
    return f"perdure {_version('perdure')}, mcp {_version('mcp')}, python {python}"


def _version(package: str) -> str:
    try:
        return package_version(package)
    except PackageNotFoundError:
        return "unknown"
