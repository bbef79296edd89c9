"""The seed of a run decides on which server a test of a layer above runs, and every server gets its share."""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest

from . import engines

pytestmark = pytest.mark.anyio

NAMES = [f"tests/test_it.py::test_{number}" for number in range(3000)]


def choices(seed: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv(engines.VARIABLE, seed)
    return [engines.choice(name, engines.DRAWN) for name in NAMES]


def test_a_seed_repeats_its_choices_and_another_makes_others(monkeypatch: pytest.MonkeyPatch) -> None:
    one, again, other = (choices(seed, monkeypatch) for seed in ("one", "one", "other"))
    assert one == again != other


def test_every_server_gets_its_share_under_every_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in ("a", "b", "c"):
        counts = Counter(choices(seed, monkeypatch))
        assert counts.keys() == set(engines.SERVERS)
        assert min(counts.values()) > len(NAMES) / len(engines.DRAWN) * 0.8


def test_a_test_meets_every_server_sooner_or_later(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[set[str]] = [set() for _ in NAMES]
    for seed in range(80):
        for servers, choice in zip(met, choices(str(seed), monkeypatch), strict=True):
            servers.add(choice)
    assert all(servers == set(engines.SERVERS) for servers in met)


def test_the_seed_is_that_of_the_commit_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_git(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 128, stdout="", stderr="not a git repository")

    monkeypatch.setenv(engines.VARIABLE, "given")
    assert engines.seed() == "given"
    monkeypatch.setenv(engines.VARIABLE, "")
    monkeypatch.setattr(subprocess, "run", no_git)
    assert engines.seed() == "no commit"


async def test_a_test_of_a_layer_above_runs_on_three_engines_or_all(
    on_engine: str, request: pytest.FixtureRequest
) -> None:
    name = f"{__file__.rpartition('/')[2]}::{request.node.originalname}"
    is_chosen = on_engine in ("memory", "sqlite", engines.choice(f"tests/{name}", engines.DRAWN))
    assert is_chosen or request.config.getoption("--engines") == "all"
