"""Finds the shell commands that start this Python interpreter and `perdure`, for use in messages."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def python_command() -> str:
    """Return `python` if that command starts this Python interpreter, otherwise the interpreter's path.

    The path is needed if the virtual environment is not activated, for example after `make run`.
    """
    own, found = Path(sys.executable), shutil.which("python")
    if found is not None and Path(found).absolute() == own:
        return "python"
    folder = Path.cwd()
    return shlex.quote(str(own.relative_to(folder) if own.is_relative_to(folder) else own))


def perdure_command() -> str:
    """Return `perdure` if that command uses this Python interpreter, otherwise `python -m perdure`.

    In the second case, `python` stands for the result of `python_command`.
    """
    found = shutil.which("perdure")
    if found is not None and Path(found).absolute().parent == Path(sys.executable).parent:
        return "perdure"
    return f"{python_command()} -m perdure"
