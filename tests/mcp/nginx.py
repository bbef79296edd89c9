"""A real nginx for tests, with the configuration of a test.

`python -m tests.mcp.nginx` prints where nginx is. Root installs it if it is missing; others see how.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from perdure.storage.kit.servers.process import free_port

from ..conditions import wait_until
from .raw_clients import is_open

PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
INSTALLS = (
    ["apt-get", "update"],
    ["apt-get", "install", "--yes", "--no-install-recommends", "nginx"],
)
RUN_LEVEL = "1"
"""The run level in which Debian's packages start no service when they are installed."""

CONFIG = """
daemon off;
worker_processes 1;
error_log {folder}/error.log;
pid {folder}/nginx.pid;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  {http}
}}
"""

IMPATIENT = """
server {{
  listen 127.0.0.1:{port};
  location / {{
    proxy_pass {server};
    proxy_http_version 1.1;
    proxy_set_header Host $http_host;
    proxy_set_header Connection "";
    proxy_read_timeout {read_timeout}s;
  }}
}}
"""
"""Closes connections that are idle for too long."""


class NoNginx(Exception):
    def __init__(self) -> None:
        super().__init__("nginx is not installed; run: apt-get install nginx")


@cache
def executable() -> str:
    """Return the program, installed if necessary and possible."""
    found = shutil.which("nginx", path=PATH)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        for command in INSTALLS:
            environment = {**os.environ, "RUNLEVEL": RUN_LEVEL, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(command, check=False, capture_output=True, timeout=600, env=environment)
        found = shutil.which("nginx", path=PATH)
    if found is None:
        raise NoNginx
    return found


@asynccontextmanager
async def proxy(url: str, folder: Path, *, read_timeout: int) -> AsyncGenerator[str]:
    """Run nginx in front of a server; yield the URL that leads there through nginx."""
    server, _, path = url.removeprefix("http://").partition("/")
    port = free_port()
    http = IMPATIENT.format(port=port, server=f"http://{server}", read_timeout=read_timeout)
    async with running(http, port, folder):
        yield f"http://127.0.0.1:{port}/{path}"


@asynccontextmanager
async def running(http: str, port: int, folder: Path) -> AsyncGenerator[None]:
    """Run nginx with this `http` block, in a new folder, from when it listens on the port."""
    config = _write(folder, CONFIG.format(folder=folder, http=http))
    process = await asyncio.create_subprocess_exec(
        executable(), "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")
    )
    try:

        async def is_ready() -> bool:
            assert process.returncode is None, (folder / "error.log").read_text()
            return await is_open(port)

        await wait_until(is_ready)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _write(folder: Path, config: str) -> Path:
    folder.mkdir()
    path = folder / "nginx.conf"
    path.write_text(config)
    return path


def main() -> None:
    try:
        sys.stdout.write(f"{executable()}\n")
    except NoNginx as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
