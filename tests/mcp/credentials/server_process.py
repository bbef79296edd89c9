"""A server of one of the frameworks in a process of its own: `python -m ... URL FRAMEWORK [--hang]`.

It prints its port. The tool `report` returns the credentials of its caller; with `--hang` it never ends, and
the test kills the process. `perdure worker` runs the tool of the same server in `worker_server`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket

import fastmcp.server.dependencies as fast
import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.mcpserver import Context

from perdure import current_task

from ...runtime.replicas import QUICK, UNHURRIED
from .servers import FRAMEWORKS, CredentialServer, Framework


def add_report(bench: CredentialServer, *, hang: bool) -> None:
    async def started() -> None:
        await current_task().set_variables({"pid": os.getpid()})
        if hang:
            await asyncio.sleep(600)

    if bench.framework == "sdk":

        @bench.tool()
        async def report(ctx: Context) -> str:
            await started()
            token = get_access_token()
            assert token is not None
            return _dump(token.token, token.scopes, token.claims, dict(ctx.headers or {}))

    else:

        @bench.tool("report")
        async def fast_report() -> str:
            await started()
            token = fast.get_access_token()
            assert token is not None
            return _dump(token.token, token.scopes, token.claims, fast.get_http_headers(include_all=True))


def _dump(*values: object) -> str:
    return json.dumps([os.getpid(), *values])


async def serve(bench: CredentialServer) -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(bench.app(), log_level="error", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(running.serve([listener]))
    while not running.started:
        assert not serving.done(), "the server did not start"
        await asyncio.sleep(0.01)
    print(listener.getsockname()[1], flush=True)
    await serving


def make(url: str, framework: Framework, *, hang: bool) -> CredentialServer:
    bench = CredentialServer(framework, url, runtime=QUICK if hang else UNHURRIED)
    add_report(bench, hang=hang)
    return bench


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--hang", action="store_true")
    given = parser.parse_args()
    asyncio.run(serve(make(given.url, given.framework, hang=given.hang)))


if __name__ == "__main__":
    main()
