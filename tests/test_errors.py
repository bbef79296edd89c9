"""Every error that perdure can raise is reached by a test, and stands in its module's tree."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from perdure.mcp.client import errors as client_errors
from perdure.runtime import errors as runtime_errors
from perdure.storage import errors as storage_errors
from perdure.storage.errors import PerdureError
from perdure.tasks import errors as task_errors

from .rows import row

TESTS = Path(__file__).parent
BASES = {"PerdureError", "StorageError", "TaskError", "RunError", "ClientTaskError"}
MODULES = [storage_errors, task_errors, runtime_errors, client_errors]


def classes_of(module: ModuleType) -> list[type[PerdureError]]:
    members = [member for _, member in inspect.getmembers(module, inspect.isclass)]
    return [
        member
        for member in members
        if issubclass(member, PerdureError) and member.__module__ == module.__name__
    ]


@row(100)
@pytest.mark.parametrize("error", [error for module in MODULES for error in classes_of(module)])
def test_every_error_is_reached_by_a_test(error: type[PerdureError]) -> None:
    """Some line of a test names it, and not only to import it."""
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py") if path != Path(__file__)]
    lines = [line for text in texts for line in text.splitlines() if "import" not in line]
    uses = [line for line in lines if re.search(rf"\b{error.__name__}\b(?!,$)", line)]
    assert error.__name__ in BASES or uses


@row(100)
@pytest.mark.parametrize("module", MODULES)
def test_the_tree_in_the_docstring_is_the_tree(module: ModuleType) -> None:
    for error in classes_of(module):
        assert re.search(rf"\b{error.__name__}\b", module.__doc__ or ""), f"{error.__name__} is not drawn"


@row(100)
def test_nothing_in_the_sources_looks_at_an_errors_message() -> None:
    sources = (TESTS.parent / "src").rglob("*.py")
    for path in sources:
        assert not re.search(r"in str\(\w*(error|exc|e)\)", path.read_text(encoding="utf-8")), path
