"""Every engine keeps every promise of the contract.

A mode that differs from its engine in a single setting is checked for the promises that this setting can
change, and a slow second server for a third of them in turn. `pytest --engines=all` checks every promise in
every mode.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from perdure.storage.kit import CHECKS, Check
from perdure.storage.kit.state_machine import state_machine

from .. import engines
from ..markers import row
from .engines import ENGINES, engine_of

pytestmark = pytest.mark.anyio

LACKING = {"memory": {"reopen", "url", "damage"}, "memory-weak": {"reopen", "url", "damage"}}
"""The capabilities that an engine does not have, by its nature."""

CONCURRENCY = {2, 8, 9, 18, 21, 22}
"""The promises about several callers: what they see of each other, who wins, and how they stop."""
SINGLE_SETTINGS = {
    "sqlite-normal": {20},  # when a commit is flushed to the disk
    "postgres-one": CONCURRENCY,  # how many connections there are
    "postgres-pooled": CONCURRENCY
    | {1, 3, 5, 6, 7, 10, 11, 12, 13, 16, 20, 23},  # whose session a statement meets
    "redis-flushed": {1, 3, 7, 9, 10, 11, 12, 13, 16, 23},  # whether the server has the script of a verb
}
"""The promises that a setting can change. It is all that these modes change."""
SLOW_SERVER, SHARE = "dynamodb-strict", 3
"""A second server of an engine that answers slowly: each run makes a third of the checks, by the seed."""

EXAMPLES = {"dynamodb": 6, "dynamodb-strict": 4}
"""How many random histories, if not as many as usual; on servers each takes a second or two."""


def examples_of(engine: str) -> int:
    """A few are enough for another server of an engine."""
    return EXAMPLES.get(engine, 20 if engine == engine_of(engine) else 8)


def is_relevant(engine: str, check: Check) -> bool:
    """Whether this run makes this check in this mode."""
    if engine == SLOW_SERVER:
        return engines.number_of(check.name) % SHARE == 0
    return engine not in SINGLE_SETTINGS or check.promise in SINGLE_SETTINGS[engine]


ROWS = {
    "what_was_committed_is_read_at_once_by_every_verb": 6,
    "an_insert_never_overwrites": 7,
    "bodies_are_returned_byte_for_byte": 10,
    "a_replace_needs_the_stored_version": 20,
    "one_of_eight_writers_of_a_version_wins": 23,
    "one_of_eight_processes_writing_a_version_wins": 23,
    "no_update_is_lost_between_interleaved_reads_and_writes": 24,
    "hostile_partition_names_are_distinct": 27,
    "a_guard_holds_against_concurrent_writers": 37,
    "ten_records_of_one_instant_come_in_pages_of_three": 39,
    "reading_all_pages_returns_each_lasting_record_once": 40,
    "pages_over_all_partitions_are_in_true_order": 44,
    "counts_follow_every_change": 46,
    "every_verb_stops_seeing_a_record_at_the_same_instant": 55,
    "everything_is_stored_after_reopening": 97,
    "what_one_client_committed_the_other_reads_at_once": 97,
    "a_damaged_record_is_an_error_that_names_it": 107,
    "listings_skip_a_damaged_record_and_warn": 107,
    "a_commit_that_meets_a_damaged_record_fails_alone": 107,
    "maintenance_reports_a_damaged_record": 107,
}
"""The parity rows that a check of the kit proves on each engine."""

FIRST_THREE = {"memory", "sqlite", "postgres"}


def rows_of(engine: str, check: Check) -> list[pytest.MarkDecorator]:
    """Promise 7 also stands for the row that there are these three engines."""
    rows = [ROWS[check.name]] if check.name in ROWS else []
    rows += [94] if engine in FIRST_THREE and check.promise == 7 else []
    return [row(*rows)] if rows else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    everything = metafunc.config.getoption("--engines") == "all"
    if "check" in metafunc.fixturenames:
        cases = [
            pytest.param(engine, check, id=f"{engine}-{check}", marks=rows_of(engine, check))
            for engine in ENGINES
            for check in CHECKS
            if not LACKING.get(engine, set()).intersection(check.needs)
            if everything or is_relevant(engine, check)
        ]
        metafunc.parametrize(("engine", "check"), cases)
    elif "engine" in metafunc.fixturenames:
        modes = [mode for mode in ENGINES if mode != "memory" and (everything or mode not in SINGLE_SETTINGS)]
        metafunc.parametrize("engine", modes)


async def test_the_engine_keeps_the_promise(engine: str, check: Check) -> None:
    async with ENGINES[engine]() as subject:
        await check(subject)


@row(94, 98)
def test_no_engine_skips_a_check_but_for_what_it_cannot_have() -> None:
    needed = {capability for check in CHECKS for capability in check.needs}
    assert needed == {"reopen", "second_client", "advance_time", "catch_up", "url", "damage"}
    assert {check.promise for check in CHECKS} == set(range(1, 24))


def test_random_histories_are_those_of_the_model(engine: str) -> None:
    run_state_machine_as_test(
        state_machine(ENGINES[engine]),
        settings=settings(
            max_examples=examples_of(engine),
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
