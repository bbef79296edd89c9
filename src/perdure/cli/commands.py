"""The `perdure` command, and its subcommands migrate, copy, key and doctor."""

from __future__ import annotations

import io
import platform
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from importlib import metadata
from typing import Annotated

import anyio
import typer
from typer import Argument, Option

from ..operating import ApplicationSummary
from ..operating.errors import MaintenanceError
from ..operating.maintenance import HealthReport, LiveClaims, check_storage, copy_storage
from ..runtime.app import keys_from_environment
from ..storage import migrate_storage
from ..storage.copy import CopyProgress
from ..storage.errors import TargetNotEmpty
from ..storage.registry import redact_url
from ..tasks.encryption import new_key
from .errors import CommandError
from .feeds.commands import feeds
from .options import CommonOptions, command, require_shared
from .output import (
    describe_counts,
    one_line,
    plural,
    print_message,
    print_result,
    stderr,
    to_json,
)
from .samples import samples
from .serve.command import serve
from .tasks.commands import tasks
from .worker import worker

MERGE_HELP = "Copy even if TARGET is not empty. Records that exist in both storages must be identical."
REPAIR_HELP = "Correct wrong counters, and quarantine or replace damaged records."

# `rich_markup_mode=None`: rich would show the help in columns, and cut off what does not fit into them.
commands = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False
)
commands.add_typer(tasks)
commands.add_typer(feeds)
command(commands)(serve)
command(commands)(worker)
command(commands)(samples)


def _print_version(*, value: bool) -> None:
    if value:
        print_result(_versions())
        raise typer.Exit


@commands.callback()
def perdure(
    *,
    version: Annotated[  # noqa: ARG001 (its callback prints the version)
        bool, Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Run MCP servers with durable tasks, run workers, and manage tasks and feeds."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # print `?` for characters that the encoding lacks


@command(commands)
def migrate(options: CommonOptions) -> None:
    """Create the tables that the storage needs, or upgrade existing tables to this version of perdure."""
    anyio.run(migrate_storage, options.storage())
    options.print({"ready": True}, ["The storage is ready."])


@command(commands)
def copy(
    target: Annotated[str, Argument(metavar="TARGET", help="URL of the storage to copy to.")],
    *,
    merge: Annotated[bool, Option("--merge", help=MERGE_HELP)] = False,
    options: CommonOptions,
) -> None:
    """Copy all records from the storage at --url to another storage, and verify the copy.

    First stop all servers and workers that use either storage. To resume an interrupted copy, run the command
    again.
    """
    require_shared(target)
    source = options.existing_storage()
    with stderr.status("copying") as status:

        def show(progress: CopyProgress) -> None:
            status.update(f"{progress.space}: {plural(progress.records, 'record')} {progress.step}")

        work = partial(copy_storage, merge=merge, on_progress=show, on_live_claims=_warn_about_claims)
        try:
            copied = anyio.run(work, source, target)
        except (MaintenanceError, TargetNotEmpty) as error:
            hint = " (--merge)" if isinstance(error, TargetNotEmpty) and error.can_merge else ""
            raise CommandError(f"cannot copy into {redact_url(target)}: {error}{hint}") from error
    counts = [f"{count:>9}  {space}" for space, count in copied.records.items()]
    result = {"identical": True, **to_json(copied)}
    options.print(result, [*counts, "Copy verified: all records are identical."])


def _warn_about_claims(live: LiveClaims) -> None:
    tasks = f"{plural(live.tasks, 'task is', 'tasks are')} being run by live workers"
    accounts = f"{plural(live.accounts, 'account is', 'accounts are')} being polled"
    busy = [text for count, text in ((live.tasks, tasks), (live.accounts, accounts)) if count]
    print_message(f"{' and '.join(busy)}; their changes may be lost. Stop all servers and workers first.")


@command(commands)
def key() -> None:
    """Print a new encryption key for PERDURE_ENCRYPTION_KEY. Keep it secret, and keep a copy of it."""
    print_result(new_key())


@command(commands)
def doctor(
    *,
    repair: Annotated[bool, Option("--repair", help=REPAIR_HELP)] = False,
    options: CommonOptions,
) -> None:
    """Check the storage for damage and reclaim unused space. Exit with status 1 if problems remain."""
    check = partial(check_storage, repair=repair, keys=keys_from_environment())
    health = anyio.run(check, options.existing_storage())
    result = {"versions": _versions(), "ok": health.is_ok, **to_json(health)}
    options.print(result, [_versions(), *_render_health(health, repair=repair)], ok=health.is_ok)


def _render_health(health: HealthReport, *, repair: bool) -> Iterator[str]:
    server = health.server
    yield f"Storage: {health.engine}{server.version and f' ({server.version})'}, schema is current"
    yield f"Writing and deleting a record: {health.write_seconds * 1000:.0f} ms"
    if server.clock_offset is not None:
        word = "ahead of" if server.clock_offset > 0 else "behind"
        offset = f"{abs(server.clock_offset):.3f} s {word} the local clock"
        yield f"Server clock: {offset} (±{server.offset_error:.3f} s)"
    yield from _render_applications(health.applications)
    yield from health.findings
    if health.remaining:
        failed = "Some problems could not be repaired; run `perdure doctor` again to list them."
        advice = "Use --repair to correct wrong counters, and to quarantine or replace damaged records."
        yield failed if repair else advice
    if health.newer:
        yield f"Written by a newer version of perdure and left unchanged: {plural(health.newer, 'record')}"
    yield from _render_keys(health)
    if health.quarantined:
        yield f"In quarantine: {plural(health.quarantined, 'damaged record')}"
    if health.has_clock_skew:
        yield "The clocks of this machine and of the server differ too much; synchronize both with NTP."
    if health.is_ok and health.findings:
        yield f"Repaired: {plural(health.records, 'record')} checked, no problems remain"
    elif health.is_ok:
        yield f"OK: {plural(health.records, 'record')} checked, no problems found"


def _render_applications(applications: Iterable[ApplicationSummary]) -> Iterator[str]:
    for each in applications:
        total = plural(sum(each.counts.values()), "task")
        yield f"Application {one_line(each.name)} has {total}: {describe_counts(each.counts)}"


def _render_keys(health: HealthReport) -> Iterator[str]:
    for key_id, count in health.encrypted.items():
        missing = " (this key is not in PERDURE_ENCRYPTION_KEY)" if key_id in health.missing_keys else ""
        yield f"Encrypted with key {key_id}: {plural(count, 'task')}{missing}"


def _versions() -> str:
    packages = [f"{name} {metadata.version(name)}" for name in ("perdure", "mcp")]
    return ", ".join([*packages, f"python {platform.python_version()}"])
