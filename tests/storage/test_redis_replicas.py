"""The promises that must hold if every commit waits for a replica."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from perdure.storage.kit import CHECKS, Check
from perdure.storage.kit.servers import ValkeySentinel

from .redis_helpers import TEST_TIMEOUT, subject_on

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def sentinel() -> Generator[ValkeySentinel]:
    with ValkeySentinel(failure_timeout=TEST_TIMEOUT) as servers:
        yield servers


@pytest.mark.parametrize("check", [each for each in CHECKS if each.promise in (7, 9, 20)], ids=str)
async def test_with_a_replica_that_must_have_every_commit(sentinel: ValkeySentinel, check: Check) -> None:
    async with subject_on(sentinel, "&replicas=1&replica_timeout=30&timeout=30") as subject:
        await check(subject)
