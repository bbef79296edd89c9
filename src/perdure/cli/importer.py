"""Import of the user's own object, named as `module:attribute`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from ..runtime import App
from .errors import CommandError


class LoadError(CommandError):
    """Raised when the user's object cannot be imported, or is of the wrong type."""


def load_app(name: str) -> App:
    app = load(name, "app")
    if isinstance(app, App):
        return app
    if _is_mcp_server(app):
        raise LoadError(
            f"{name} is an MCP server, not a perdure.runtime.App; run it with: perdure serve {name}"
        )
    raise LoadError(f"{name} is a {type(app).__name__}, not a perdure.runtime.App")


_SERVERS = frozenset({("mcp", "MCPServer"), ("mcp", "Server"), ("fastmcp", "FastMCP")})


def _is_mcp_server(found: object) -> bool:
    # compared by name: importing MCP takes long, and FastMCP may not be installed
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(found).__mro__}
    return not kinds.isdisjoint(_SERVERS)


def load(name: str, what: str) -> object:
    """Import an object. The current directory is searched too."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise LoadError(f"invalid name {name!r}; write it as module:{what}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    found = getattr(_import(module_name), attribute, None)
    if found is None:
        raise LoadError(f"module {module_name} has no attribute {attribute!r}")
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise LoadError(f"no module named {error.name!r} in this directory or environment") from error
        raise LoadError(f"cannot import {name}:\n{_user_traceback(error)}") from error
    except Exception as error:
        raise LoadError(f"cannot import {name}:\n{_user_traceback(error)}") from error


def _user_traceback(error: BaseException) -> str:
    """Return the traceback without our own frames."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    return "".join([*traceback.format_list(own), *traceback.format_exception_only(error)]).rstrip()
