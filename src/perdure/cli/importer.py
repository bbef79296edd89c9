"""Finding the user's own object, named as `module:attribute`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from ..runtime import App
from .errors import CannotDo


class CannotLoad(CannotDo):
    """There is no such module or object. The message says what to do."""


def load_app(name: str) -> App:
    """The `App` that is called this."""
    app = load(name, "app")
    if isinstance(app, App):
        return app
    if _is_server(app):
        raise CannotLoad(
            f"{name} is an MCP server, not a perdure.runtime.App; run it with: perdure serve {name}"
        )
    raise CannotLoad(f"{name} is a {type(app).__name__}, not a perdure.runtime.App")


_SERVERS = frozenset({("mcp", "MCPServer"), ("mcp", "Server"), ("fastmcp", "FastMCP")})


def _is_server(found: object) -> bool:
    """Asked by name: reading MCP takes long, and FastMCP may not be installed."""
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(found).__mro__}
    return not kinds.isdisjoint(_SERVERS)


def load(name: str, what: str) -> object:
    """What is called this; modules of the current directory are found too."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise CannotLoad(f"{name!r} names no {what}; write it as module:{what}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    found = getattr(_import(module_name), attribute, None)
    if found is None:
        raise CannotLoad(f"the module {module_name} has no {attribute!r}")
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise CannotLoad(f"there is no module {error.name!r} here or in the environment") from error
        raise CannotLoad(f"importing {name} failed\n{_where(error)}") from error
    except Exception as error:
        raise CannotLoad(f"importing {name} failed\n{_where(error)}") from error


def _where(error: BaseException) -> str:
    """The traceback, from the user's own module on."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    return "".join([*traceback.format_list(own), *traceback.format_exception_only(error)]).rstrip()
