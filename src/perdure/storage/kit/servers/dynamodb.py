"""Servers with DynamoDB's API: dynoxide is fast, ExtendDB is strict, and Amazon's server is the reference.

dynoxide and ExtendDB are npm packages, which `npm_packages` installs into the current Python environment.
Amazon's server sends telemetry unless telemetry is disabled, and listens on all network interfaces. Its
licence requires an AWS account. Therefore it is started only if the caller provides the server's JAR file.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode
from uuid import uuid4

from .process import MissingServer, Server, port_responds

INSTALL_DIRECTORY = Path(sys.prefix) / "share" / "perdure" / "servers"
REGION = "us-east-1"
CREDENTIALS: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS_DEFAULT_REGION": REGION,
}
"""Environment variables with example credentials from Amazon's documentation. Every DynamoDB server that the
kit starts accepts them.
"""


def package_name(program: str) -> str:
    """Return the name of the npm package that contains `program` for the current platform."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"@{program}/{sys.platform}-{machine}"


def program_path(program: str) -> Path:
    path = INSTALL_DIRECTORY / "node_modules" / package_name(program) / program
    if not path.exists():
        remedy = "run: python -m perdure.storage.kit.servers.npm_packages"
        raise MissingServer(f"{program} is not installed; {remedy}")
    return path


class _DynamoDb(Server):
    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def new_url(self, options: str = "") -> str:
        """Return the URL of a table that does not exist yet.

        The caller must create the table with `migrate_storage`, and have CREDENTIALS in its environment.
        """
        query = urlencode({"endpoint_url": self.endpoint, "region_name": REGION})
        return f"dynamodb://perdure-{uuid4().hex}?{query}{options}"

    def is_ready(self) -> bool:
        return port_responds(self.port)


class Dynoxide(_DynamoDb):
    """The dynoxide server, which stores all tables in one file."""

    def command(self) -> list[str]:
        program = str(program_path("dynoxide"))
        return [program, "--port", str(self.port), "--db-path", str(self.folder / "tables.db")]


class ExtendDb(_DynamoDb):
    """The ExtendDB server, which checks signatures and throttles requests. Its indexes lag behind writes."""

    def environment(self) -> Mapping[str, str]:
        return {
            "HOME": str(self.folder),
            "EXTENDDB__SERVER__PORT": str(self.port),
            "EXTENDDB__SERVER__THROTTLING_ENABLED": "true",
            "EXTENDDB__LOGGING__LEVEL": "warn",
        }

    def prepare(self) -> None:
        subprocess.run(  # noqa: S603 - our own command
            [
                program_path("extenddb"), "init", "--config", self.folder / "extenddb.toml",
                "--bind-addr", "127.0.0.1", "--sqlite-path", self.folder / "tables.db",
            ],
            check=True, capture_output=True, env={**os.environ, **self.environment()}, cwd=self.folder,
        )  # fmt: skip

    def command(self) -> list[str]:
        program = str(program_path("extenddb"))
        return [program, "serve", "--foreground", "--config", str(self.folder / "extenddb.toml")]


class DynamoDbLocal(_DynamoDb):
    """Amazon's DynamoDB Local. It listens on all interfaces, so run it in its own network namespace."""

    def __init__(self, jar: Path, java: str = "java") -> None:
        super().__init__()
        if not jar.exists():
            raise MissingServer(f"{jar} does not exist; download DynamoDB Local from Amazon")
        self._jar = jar
        self._java = java

    def environment(self) -> Mapping[str, str]:
        return {"DDB_LOCAL_TELEMETRY": "0"}

    def command(self) -> list[str]:
        libraries = self._jar.parent / "DynamoDBLocal_lib"
        return [
            self._java, f"-Djava.library.path={libraries}", "-jar", str(self._jar), "-disableTelemetry",
            "-sharedDb", "-port", str(self.port), "-dbPath", str(self.folder),
        ]  # fmt: skip
