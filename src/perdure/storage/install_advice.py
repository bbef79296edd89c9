"""Advice on how to install a missing extra of perdure, for use in error messages.

perdure is not on a package index, so the command names the checkout or the wheel that perdure was installed
from.
"""

from __future__ import annotations

import shlex
from importlib import metadata
from urllib.request import url2pathname

import msgspec

UNKNOWN_ORIGIN = "file:///path/to/perdure"
"""A placeholder for the URL of the checkout or the wheel in the install command. It is used if it is unknown
where perdure was installed from, and the user must replace it."""


class _DirectoryInfo(msgspec.Struct, frozen=True):
    editable: bool = False


class _Origin(msgspec.Struct, frozen=True):
    """The contents of `direct_url.json`, in which installers store where a package came from."""

    url: str
    dir_info: _DirectoryInfo = _DirectoryInfo()


def install_extra(extra: str) -> str:
    """Return advice on how to install an extra such as `web`, including the command."""
    return f"install the {extra} extra with: {install_command(extra)}"


def install_command(extra: str) -> str:
    """Return the command that installs an extra such as `web`."""
    return _command(extra, _origin())


def without_extra(extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error to raise in place of `error` if a package of an extra is not installed."""
    reason = f"the {extra} extra is not installed (no module named {error.name!r})"
    message = f"{reason}; install it with: {install_command(extra)}"
    return ModuleNotFoundError(message, name=error.name, path=error.path)


def _command(extra: str, origin: _Origin | None) -> str:
    if origin is not None and origin.dir_info.editable:
        folder = url2pathname(origin.url.removeprefix("file://"))
        return f"pip install --editable {shlex.quote(f'{folder}[{extra}]')}"
    url = origin.url if origin is not None and origin.url.startswith("file://") else UNKNOWN_ORIGIN
    return f"pip install 'perdure[{extra}] @ {url}'"


def _origin() -> _Origin | None:
    try:
        text = metadata.distribution("perdure").read_text("direct_url.json")
        return None if text is None else msgspec.json.decode(text, type=_Origin)
    except (metadata.PackageNotFoundError, msgspec.MsgspecError):
        return None
