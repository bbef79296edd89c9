"""Import of an object of the user, named as `module:attribute`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from ..runtime import App
from .errors import CommandError

_SERVERS = frozenset({("mcp", "MCPServer"), ("mcp", "Server"), ("fastmcp", "FastMCP")})


def load_app(name: str) -> App:
    app = load(name, "app")
    if isinstance(app, App):
        return app
    if _is_mcp_server(app):
        hint = f"run it with: perdure serve {name}"
        raise CommandError(f"{name} is an MCP server, not a perdure.runtime.App; {hint}")
    raise CommandError(f"{name} is a {type(app).__name__}, not a perdure.runtime.App")


def _is_mcp_server(found: object) -> bool:
    # Classes are compared by name: importing MCP takes long, and FastMCP may not be installed.
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(found).__mro__}
    return not kinds.isdisjoint(_SERVERS)


def load(name: str, what: str) -> object:
    """Import an object. The current directory is searched too."""
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute):
        raise CommandError(f"invalid name {name!r}; write it as module:{what}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    found = getattr(_import(module_name), attribute, None)
    if found is None:
        raise CommandError(f"module {module_name} has no attribute {attribute!r}")
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise CommandError(f"no module named {missing!r} in this directory or environment") from error
        frames = traceback.extract_tb(error.__traceback__)
        own = [each for each in frames if "importlib" not in each.filename and each.filename != __file__]
        trace = "".join([*traceback.format_list(own), *traceback.format_exception_only(error)]).rstrip()
        raise CommandError(f"cannot import {name}:\n{trace}") from error
