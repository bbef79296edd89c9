"""Every error of perdure is in its module's tree, and raised by a test.

The second is checked at the end of each whole run, from what `tests.raised` recorded.
"""

from __future__ import annotations

import ast
import gc
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from perdure.feeds import errors as feed_errors
from perdure.mcp import errors as mcp_errors
from perdure.operating import errors as operating_errors
from perdure.runtime import errors as runtime_errors
from perdure.storage import errors as storage_errors
from perdure.storage import open_storage
from perdure.storage.errors import PerdureError, StorageFull, UnknownScheme
from perdure.tasks import errors as task_errors

from . import raised
from .markers import row

pytestmark = pytest.mark.anyio

SOURCES = Path(__file__).parents[1] / "src"
MODULES = [
    storage_errors,
    task_errors,
    runtime_errors,
    mcp_errors,
    feed_errors,
    operating_errors,
]


def classes_of(module: ModuleType) -> list[type[PerdureError]]:
    members = [member for _, member in inspect.getmembers(module, inspect.isclass)]
    return [
        member
        for member in members
        if issubclass(member, PerdureError) and member.__module__ == module.__name__
    ]


@row(100)
@pytest.mark.parametrize("module", MODULES)
def test_the_tree_in_the_docstring_is_the_tree(module: ModuleType) -> None:
    for error in classes_of(module):
        assert re.search(rf"\b{error.__name__}\b", module.__doc__ or ""), f"{error.__name__} is not drawn"


@row(100)
def test_nothing_in_the_sources_looks_at_an_errors_message() -> None:
    for path in SOURCES.rglob("*.py"):
        assert not re.search(r"in str\(\w*(error|exc|e)\)", path.read_text(encoding="utf-8")), path


NAMES_OF_ERRORS = {"cause", "each", "error", "exception", "failure", "problem"}


def test_no_message_shows_an_exception_as_python_code() -> None:
    """`gaierror(-2, 'Name or service not known')` is not a text to read. `text_of` returns one."""
    found = [
        f"{path.relative_to(SOURCES)}:{node.lineno}"
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FormattedValue)
        and node.conversion == ord("r")
        and isinstance(node.value, ast.Name)
        and node.value.id in NAMES_OF_ERRORS
    ]
    assert found == []


# What is recorded


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the errors that are recorded from now on."""
    gc.collect()
    seen = set[str]()
    monkeypatch.setattr(raised, "raised", seen)
    return seen


@row(100)
async def test_an_error_that_perdure_raises_is_recorded(recorded: set[str]) -> None:
    with pytest.raises(UnknownScheme):
        await open_storage("nonsense:")
    gc.collect()
    assert recorded == {"perdure.storage.errors.UnknownScheme"}


@row(100)
def test_an_error_that_only_a_test_raises_or_makes_is_not_recorded(recorded: set[str]) -> None:
    str(StorageFull("never raised"))
    with pytest.raises(StorageFull):
        raise StorageFull("raised here")
    gc.collect()
    assert recorded == set()


@row(100)
def test_every_error_is_known_by_name() -> None:
    known = {error.__name__ for error in raised.every_error()}
    drawn = {error.__name__ for module in MODULES for error in classes_of(module)}
    assert drawn - raised.BASES <= known
    assert raised.BASES.isdisjoint(known)
    assert raised.missing(set()) == raised.missing({"perdure.storage.errors.Unheard"}) != []
