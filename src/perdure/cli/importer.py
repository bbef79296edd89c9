"""Imports the user's app or server, given a name of the form `module:attribute`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

from ..runtime import App
from .errors import CommandError

_SERVERS = frozenset({("mcp", "MCPServer"), ("mcp", "Server"), ("fastmcp", "FastMCP")})


def load_app(name: str) -> App:
    app = load(name, "app")
    if isinstance(app, App):
        return app
    # Compare classes by name, because importing MCP is slow and FastMCP may not be installed.
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(app).__mro__}
    if not kinds.isdisjoint(_SERVERS):
        hint = f"run it with: perdure serve {name}"
        raise CommandError(f"{name} is an MCP server, not a perdure.runtime.App; {hint}")
    raise CommandError(f"{name} is a {type(app).__name__}, not a perdure.runtime.App; name an App instead")


def load(name: str, what: str) -> object:
    """Import the object `name`. If the name is invalid, the error suggests the form `module:<what>`."""
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute):
        raise CommandError(f"invalid name {name!r}; use the form module:{what}")
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
