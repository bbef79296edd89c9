"""Which engines a test runs on.

The contract kit proves the engines. Higher layers use only the seven verbs of the contract, so their tests
run on a memory engine that is as weak as the contract allows, on SQLite, and on one server, chosen by a hash
of the test's name and a seed. The seed is derived from the commit, so that each commit tries other pairs;
`ENGINE_SEED=...` repeats a run. `pytest --engines=all` runs every test on every engine.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import pytest

from . import servers

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
VARIABLE = "ENGINE_SEED"
SERVERS = [engine for engine in ("postgres", "redis", "dynamodb") if engine not in servers.LEFT_OUT]
FIVE = ["memory", "sqlite", *SERVERS]
DRAWN = [engine for engine in SERVERS for _ in range(1 if engine == "dynamodb" else 3)]
"""What the seed draws from. A test takes five times as long on DynamoDB, so that is drawn less often."""


def seed() -> str:
    """Return the seed of this run. It is set in the environment, so that its processes share it."""
    if not os.environ.get(VARIABLE):
        os.environ[VARIABLE] = _commit()
    return os.environ[VARIABLE]


def _commit() -> str:
    command = ["git", "rev-parse", "--short=10", "HEAD"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "no commit"


def number_of(name: str) -> int:
    """Return a number for a name: with the same seed, the same in every process and on every machine."""
    return int.from_bytes(sha256(f"{seed()}/{name}".encode()).digest()[:8], "big")


def choice(name: str, values: Sequence[T]) -> T:
    """Return one of the values, chosen by name and seed."""
    return values[number_of(name) % len(values)]


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Choose the values of `on_engine`, and of `on_shared_engine` for tests with several processes."""
    for fixture, engines in (("on_engine", FIVE), ("on_shared_engine", FIVE[1:])):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, _chosen(metafunc, engines))


def _chosen(metafunc: pytest.Metafunc, engines: Sequence[str]) -> Sequence[str]:
    if metafunc.config.getoption("--engines") == "all":
        return engines
    if metafunc.definition.get_closest_marker("once") is not None:
        return engines[:1]
    local = [engine for engine in engines if engine not in SERVERS]
    return [*local, choice(metafunc.definition.nodeid, DRAWN)] if SERVERS else local
