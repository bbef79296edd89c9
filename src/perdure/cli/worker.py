"""The `perdure worker` command, which runs the tasks of an `App` or of an MCP server."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Annotated

import anyio
from typer import Argument, Context, Option

from ..runtime import App, Runtime
from .errors import CommandError
from .importer import load
from .options import VerboseOption, refuse_options, require_shared, require_shared_storage
from .output import configure_logging, print_message
from .serve.command import ServeOptions
from .signals import stop_signals

TARGET_HELP = "Server or App to run tasks for, such as mymodule:server."
PORT_HELP = "Serve /health and /ready on this port. Default: not served."


def worker(
    context: Context,
    target: Annotated[str, Argument(metavar="MODULE:SERVER", help=TARGET_HELP)],
    *,
    host: Annotated[
        str, Option(metavar="ADDRESS", help="Address to listen on, if --port is set.")
    ] = "127.0.0.1",
    port: Annotated[int | None, Option(metavar="PORT", min=1, max=65535, help=PORT_HELP)] = None,
    url: Annotated[str | None, Option(metavar="URL", hidden=True)] = None,  # noqa: ARG001 (refused below)
    verbose: VerboseOption = False,
) -> None:
    """Run the durable tools of a server, or the functions of an App, until stopped (Ctrl+C or SIGTERM).

    The worker runs the server's lifespan (its startup and shutdown code), but does not accept MCP requests.
    You can start any number of workers, on any machine that can reach the storage.
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
    """Load a server and enter its lifespan, so that its tasks run. Yield the server's runtime."""
    # MCP is slow to import, and an app does not need it.
    from .serve.servers import load_server  # noqa: PLC0415

    hosted = load_server(name, options)
    async with hosted.lifespan():
        runtime = hosted.tasks.runtime
        if not runtime.functions:
            raise CommandError(f"{name} has no durable tools to run; {hosted.make_durable}")
        await require_shared_storage(
            runtime.store.storage, "storage with a memory: URL is private to one process"
        )
        yield runtime


async def _run(opened: AbstractAsyncContextManager[Runtime], options: ServeOptions) -> None:
    async with stop_signals() as stop, AsyncExitStack() as stack:
        probes = None
        if options.port is not None:
            from .serve.probes import serve_probes  # noqa: PLC0415 (slow to import, as MCP is)

            listener = stack.enter_context(options.bind())
            probes = await stack.enter_async_context(serve_probes(listener, stop))
        runtime = await stack.enter_async_context(opened)
        if probes is not None:
            probes.start(runtime)
        store, functions = runtime.store, ", ".join(sorted(runtime.functions))
        place = f"{store.application} on {store.storage.name}"
        print_message(f"Worker {runtime.name} of {place}, functions: {functions}")
        await stop.wait()
        if probes is not None:
            probes.stop()
    print_message("Stopped.")


def _exit_despite_threads() -> None:
    """End the process even if other threads are still running. A normal exit would wait for them."""
    if all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
