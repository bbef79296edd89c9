"""The kit itself: it passes what is right, catches what is broken, and shows what it could not check."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from perdure.storage import Engine, Micros, Storage
from perdure.storage.kit import CHECKS, ContractViolation, Factory, Subject, run
from perdure.storage.kit.check_framework import Capability
from perdure.storage.kit.state_machine import state_machine
from perdure.storage.time_types import DAY

from ..markers import row
from .broken_engines import (
    BROKEN,
    ExpiresByItself,
    GuardBeforeTheCommit,
    KeepThatReplaces,
    LostUpdate,
    MissingIsConflict,
    NonAtomicBatch,
    OverwritingInsert,
    UncheckedDelete,
    WrongCount,
)
from .engines import no_clock_to_advance
from .reference_engine import ReferenceEngine

pytestmark = pytest.mark.anyio


def subject_of(make: Callable[[], Engine]) -> Factory:
    @asynccontextmanager
    async def factory() -> AsyncGenerator[Subject]:
        engine = make()

        async def open_again() -> Storage:
            return Storage(engine)

        has_clock = isinstance(engine, ExpiresByItself)
        yield Subject(
            Storage(engine),
            reopen=open_again,
            second_client=open_again,
            advance_time=engine.advance_time if has_clock else no_clock_to_advance,
        )

    return factory


NOT_IN_MEMORY: dict[Capability, str] = {
    "url": "other processes cannot open an engine in the memory of this process",
    "damage": "the reference engine stores objects, which cannot become unreadable",
}
"""The capabilities that the engines of this file do not have. The checks that need one are skipped."""

MACHINE_CATCHES = [
    OverwritingInsert,
    KeepThatReplaces,
    LostUpdate,
    UncheckedDelete,
    MissingIsConflict,
    NonAtomicBatch,
    WrongCount,
    GuardBeforeTheCommit,
]


@row(98)
@pytest.mark.parametrize("engine", BROKEN, ids=lambda engine: engine.__name__)
async def test_the_kit_catches_a_broken_engine(
    engine: type[ReferenceEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.storage.kit.check_framework.WAKE_TIMEOUT", 0.2)
    for check in CHECKS:
        report = await run(subject_of(engine), [check])
        if report.failed:
            break
    else:
        pytest.fail(f"{engine.__name__} passed every check")
    with pytest.raises(ContractViolation):
        report.raise_if_failed()


async def test_every_check_fails_for_a_broken_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.storage.kit.check_framework.WAKE_TIMEOUT", 0.2)
    remaining = [check for check in CHECKS if not NOT_IN_MEMORY.keys() & set(check.needs)]
    for engine in BROKEN:
        report = await run(subject_of(engine), remaining)
        failed = [result.check for result in report.failed]
        remaining = [check for check in remaining if check not in failed]
    assert remaining == []


@pytest.mark.parametrize(
    ("delay", "failed"),
    [
        (DAY, ["19-nothing_is_deleted_except_by_purge"]),
        (7 * DAY - 1, ["19-nothing_is_deleted_except_by_purge"]),
        (7 * DAY, []),
        (8 * DAY, []),
    ],
)
async def test_an_engine_may_delete_expired_records_after_a_week(delay: Micros, failed: list[str]) -> None:
    report = await run(subject_of(lambda: ExpiresByItself(delay)))
    assert [str(result.check) for result in report.failed] == failed


def test_random_histories_pass_an_engine_that_deletes_expired_records_after_a_week() -> None:
    run_state_machine_as_test(
        state_machine(subject_of(lambda: ExpiresByItself(7 * DAY))),
        settings=settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow]),
    )


async def test_the_report_of_a_broken_engine_continues_after_the_first_failure() -> None:
    report = await run(subject_of(OverwritingInsert))
    assert len(report.results) == len(CHECKS)
    assert 1 < len(report.failed) < len(CHECKS) - len(report.skipped)


async def test_the_kit_passes_the_plainest_right_engine() -> None:
    report = await run(subject_of(ReferenceEngine))
    report.raise_if_failed()
    assert "passed  03-an_insert_never_overwrites" in str(report)


async def test_a_missing_capability_is_a_visible_skip() -> None:
    report = await run(subject_of(ReferenceEngine))
    assert {result.check.needs[0] for result in report.skipped} == NOT_IN_MEMORY.keys()
    check = "23-a_damaged_record_is_an_error_that_names_it"
    assert (
        f"skipped {check}: the subject does not have the capability 'damage', which this check needs"
        in str(report)
    )


def test_the_model_of_the_other_engines_agrees_with_one_that_searches() -> None:
    run_state_machine_as_test(
        state_machine(subject_of(ReferenceEngine)),
        settings=settings(stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]),
    )


@row(98)
@pytest.mark.parametrize("engine", MACHINE_CATCHES, ids=lambda engine: engine.__name__)
def test_random_histories_catch_a_broken_engine(engine: type[ReferenceEngine]) -> None:
    with pytest.raises(ContractViolation):
        run_state_machine_as_test(
            state_machine(subject_of(engine)),
            settings=settings(
                max_examples=300,
                stateful_step_count=30,
                derandomize=True,
                phases=[Phase.generate],
                database=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
