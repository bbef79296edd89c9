"""A storage of each engine, a store that clients write through, and an operator beside it."""

from __future__ import annotations

import pytest

from perdure.operating import Operator
from perdure.storage import Storage
from perdure.storage.kit import Subject

from ..tasks.conftest import clock, store, subject
from ..tasks.samples import Clock

__all__ = ["clock", "store", "subject"]
"""The fixtures of the tests of tasks, which are ours too."""


@pytest.fixture
async def operator(subject: Subject, clock: Clock) -> Operator:
    return Operator(subject.storage, clock)


async def close(subject: Subject, other: Storage) -> None:
    """Another client of the subject; the memory engine is one for all of its clients."""
    if subject.url is not None:
        await other.close()
