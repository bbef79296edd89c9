"""Finding the user's own object, named as `module:attribute`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from ..runtime import App


class CannotLoad(Exception):
    """There is no such module or object. The message says what to do."""


def load_app(name: str) -> App:
    """The `App` that is called this; modules of the current directory are found too."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise CannotLoad(f"{name!r} names no app; write it as module:app")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the user's module exists, and lacks one of its own
        raise CannotLoad(f"there is no module {error.name!r} here or in the environment") from error
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        found = "nothing" if app is None else f"a {type(app).__name__}"
        raise CannotLoad(f"{name} is {found}, not a perdure.runtime.App")
    return app
