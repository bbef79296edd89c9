"""Imports the user's app or server, given a name of the form `module:attribute`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

from .errors import CommandError


def load(name: str) -> object:
    """Import the object `name`, which has the form `module:attribute`."""
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute):
        raise CommandError(f"invalid name {name!r}; use the form module:server")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise CommandError(f"no module named {missing!r} in this directory or environment") from error
        frames = traceback.extract_tb(error.__traceback__)
        own = [each for each in frames if "importlib" not in each.filename and each.filename != __file__]
        trace = "".join([*traceback.format_list(own), *traceback.format_exception_only(error)]).rstrip()
        raise CommandError(f"cannot import {module_name}:\n{trace}") from error
    found = getattr(module, attribute, None)
    if found is None:
        raise CommandError(f"module {module_name} has no attribute {attribute!r}; check the spelling")
    return found
