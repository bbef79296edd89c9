"""Imports the user's app or server, given a name of the form `module:attribute`."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

import perdure

from ..storage.errors import PerdureError
from ..storage.install_advice import without_extra
from .errors import CommandError, error_message

_PERDURE = Path(perdure.__file__).parent
_INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]

EXTRAS = {
    "aiobotocore": "dynamodb",
    "asyncpg": "postgres",
    "fastmcp": "fastmcp",
    "jinja2": "web",
    "redis": "redis",
    "yaml": "feeds",
}
"""The extras that install modules which the user's own code may import, by the name of the module."""


def load(name: str) -> object:
    """Import the object that `name` refers to. `name` has the form `module:attribute`."""
    module_name, _, attribute = name.partition(":")
    corrected = _corrected(name)
    if corrected is not None or not (attribute and all(map(str.isidentifier, module_name.split(".")))):
        advice = corrected or "the form module:server, and run the command in the directory of the module"
        raise CommandError(f"invalid name {name!r}; use {advice}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise CommandError(
                f"no module named {missing!r} in this directory or environment; "
                "change to the directory of the module, or install its package"
            ) from error
        frames = traceback.extract_tb(error.__traceback__)
        place = _user_frame(frames)
        where = "" if place is None else f" ({_short(place.filename)}, line {place.lineno})"
        if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get(error.name or "")) is not None:
            raise CommandError(
                f"cannot import {module_name}{where}: {without_extra(extra, error)}"
            ) from error
        if isinstance(error, PerdureError):  # its message says what to change
            raise CommandError(f"cannot import {module_name}: {error_message(error)}{where}") from error
        own = [each for each in frames if "importlib" not in each.filename and each.filename != __file__]
        trace = "".join([*traceback.format_list(own), *traceback.format_exception_only(error)]).rstrip()
        raise CommandError(f"cannot import {module_name}:\n{trace}") from error
    found = getattr(module, attribute, None)
    if found is None:
        raise CommandError(f"module {module_name} has no attribute {attribute!r}; check the spelling")
    return found


def _corrected(name: str) -> str | None:
    """Return the correct form of `name` if it names a Python file in this directory or below, or None."""
    file, _, attribute = name.partition(":")
    path = Path(file if file.endswith(".py") else f"{file}.py")
    is_below = not path.is_absolute() and ".." not in path.parts
    parts = path.with_suffix("").parts
    if not (is_below and path.is_file() and all(map(str.isidentifier, parts))):
        return None
    if attribute and not file.endswith(".py"):
        return None
    module = ".".join(parts)
    return (
        f"{module}:{attribute}"
        if attribute
        else f"{module}:server (the module, and the variable that contains your server)"
    )


def _user_frame(frames: Sequence[traceback.FrameSummary]) -> traceback.FrameSummary | None:
    """Return the last frame in the user's own code, or in an installed package if there is no such frame."""
    outside = [each for each in frames if Path(each.filename).is_file() and not _is_below(each, [_PERDURE])]
    own = [each for each in outside if not _is_below(each, _INSTALLED)]
    return next(reversed(own or outside), None)


def _is_below(frame: traceback.FrameSummary, folders: Sequence[Path]) -> bool:
    return any(Path(frame.filename).is_relative_to(folder) for folder in folders)


def _short(file: str) -> str:
    """Return a path relative to the current directory if the file is inside that directory."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
