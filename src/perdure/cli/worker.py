"""The `perdure worker` command, which runs the tasks of an app, or of an MCP server without serving it."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated

import anyio
from typer import Argument, Context, Option

from ..runtime import App, Runtime
from .errors import CommandError
from .importer import load
from .options import VerboseOption, refuse_options, require_shared
from .output import configure_logging, print_message
from .serve.command import ServeOptions
from .signals import stop_signals

TARGET_HELP = "The server or App whose tasks to run, such as mymodule:server."
PORT_HELP = "Serve /health and /ready on this port. Default: no port."


def worker(
    context: Context,
    target: Annotated[str, Argument(metavar="MODULE:SERVER", help=TARGET_HELP)],
    *,
    host: Annotated[str, Option(help="Address of the health port.")] = "127.0.0.1",
    port: Annotated[int | None, Option(min=1, max=65535, help=PORT_HELP)] = None,
    url: Annotated[str | None, Option(metavar="URL", hidden=True)] = None,  # noqa: ARG001 (refused below)
    verbose: VerboseOption = False,
) -> None:
    """Run the durable tools of a server, or the functions of an App, until stopped (Ctrl+C or SIGTERM).

    The server is not served: its lifespan is entered, and the worker waits for tasks. Start any number of
    workers, on any machine that reaches the storage.
    """
    configure_logging(verbose=verbose)
    refuse_options(context, target, "url")
    options = ServeOptions(host=host, port=port)
    found = load(target)
    opened = _open_app(found) if isinstance(found, App) else _open_server(target, options)
    anyio.run(_run, opened, options)
    _exit_despite_threads()


@asynccontextmanager
async def _open_app(app: App) -> AsyncGenerator[Runtime]:
    if not app.functions:
        raise CommandError("the app has no functions to run; decorate a function with @app.function")
    if isinstance(app.url, str):
        require_shared(app.url)
    async with app.open() as runtime:
        yield runtime


@asynccontextmanager
async def _open_server(name: str, options: ServeOptions) -> AsyncGenerator[Runtime]:
    """Enter the lifespan of a server, in which its tasks run."""
    # MCP is slow to import, and an app does not need it.
    from .serve.servers import load_server  # noqa: PLC0415

    hosted = load_server(name, options)
    async with hosted.lifespan():
        runtime = hosted.tasks.runtime
        if not runtime.functions:
            raise CommandError(f"{name} has no durable tools to run")
        if not (await runtime.store.storage.info()).is_shared:
            raise CommandError("a memory: storage is private to one process; use a file or a database server")
        yield runtime


async def _run(opened: AbstractAsyncContextManager[Runtime], options: ServeOptions) -> None:
    recovery = "Running tasks will be recovered by another worker or at the next start."
    async with stop_signals("waiting for running tasks", recovery) as stop:
        if options.port is None:
            async with opened as runtime:
                _print_start(runtime)
                await stop.wait()
        else:
            await _run_with_probes(opened, options, stop)
    print_message("Stopped.")


async def _run_with_probes(
    opened: AbstractAsyncContextManager[Runtime], options: ServeOptions, stop: anyio.Event
) -> None:
    from .serve.probes import serve_probes  # noqa: PLC0415 (slow to import, as MCP is)

    with options.bind() as listener:
        async with serve_probes(listener, stop) as probes, opened as runtime:
            probes.start(runtime)
            _print_start(runtime)
            await stop.wait()
            probes.stop()


def _print_start(runtime: Runtime) -> None:
    store, functions = runtime.store, ", ".join(sorted(runtime.functions))
    place = f"{store.application} on {store.storage.name}"
    print_message(f"Worker {runtime.name} of {place}, functions: {functions}")


def _exit_despite_threads() -> None:
    """End the process even if other threads are still running. A normal exit would wait for them."""
    if all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
