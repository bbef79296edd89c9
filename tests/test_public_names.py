"""The names that `import perdure` offers: the same for Python, for completion and for type checkers."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import perdure

STUB = Path(perdure.__file__).with_suffix(".pyi")


def test_type_checkers_see_the_names_that_completion_offers() -> None:
    imports = [each for each in ast.parse(STUB.read_text()).body if isinstance(each, ast.ImportFrom)]
    assert {name.name for each in imports for name in each.names} == {*dir(perdure)} - {"__version__"}


def test_every_public_name_can_be_imported() -> None:
    assert all(getattr(perdure, name) is not None for name in dir(perdure))
    assert perdure.__version__ == metadata.version("perdure")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Taskz'"):
        getattr(perdure, "Taskz")  # noqa: B009 - type checkers refuse it otherwise


def test_a_worker_does_not_load_the_server_of_the_sdk() -> None:
    program = "import sys, perdure; perdure.App, perdure.Status; sys.exit('mcp.server' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
