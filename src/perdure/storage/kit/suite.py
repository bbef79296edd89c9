"""What an engine's author gives the kit, and how the kit runs its checks on it.

    @asynccontextmanager
    async def my_engine() -> AsyncGenerator[Subject]:
        async with await open_storage("mine://...") as storage:   # fresh and empty, each time
            yield Subject(storage, second_client=lambda: open_storage("mine://..."))

    report = await run(my_engine)          # as plain functions
    report.raise_if_broken()

    @pytest.mark.parametrize("check", CHECKS, ids=str)              # or from pytest
    async def test_my_engine_keeps_the_contract(check):
        async with my_engine() as subject:
            await check(subject)

A seam that an engine lacks leaves out the checks that need it; the report, and pytest, show each as skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, TypeAlias, TypeVar

import msgspec

from ..port import Storage
from ..record import Address, Micros

T = TypeVar("T")

Seam: TypeAlias = Literal["reopen", "second_client", "advance_time", "settle", "url", "damage"]
Opener: TypeAlias = Callable[[], Awaitable[Storage]]


class Subject(msgspec.Struct):
    """A fresh, empty storage under test, and the seams through which the kit reaches around it."""

    storage: Storage
    reopen: Opener | None = None
    """Open the same data again; the kit has closed `storage` before."""
    second_client: Opener | None = None
    """Open another client of the same data, while the first goes on. The kit closes it."""
    advance_time: Callable[[Micros], Awaitable[None]] | None = None
    """Let so much time pass for the engine's own clock, if it has one."""
    settle: Callable[[], Awaitable[None]] | None = None
    """Return when verbs across partitions see everything. An engine without lag needs none."""
    url: str | None = None
    """What another process opens to reach the same data."""
    damage: Callable[[Address], Awaitable[None]] | None = None
    """Make the stored record at this address unreadable, by the engine's own means."""
    plugin: str | None = None
    """The module that such a process imports first, where the URL's scheme must be registered."""

    def has(self, seam: Seam) -> bool:
        if seam == "settle" and self.storage.lag == 0:
            return True
        return getattr(self, seam) is not None

    async def settled(self) -> Storage:
        """The storage, once verbs across partitions see everything."""
        if self.settle is not None:
            await self.settle()
        return self.storage

    async def reopened(self) -> Storage:
        """The storage, closed and opened again."""
        if self.reopen is None:
            raise MissingSeam("reopen")
        await self.storage.close()
        self.storage = await self.reopen()
        return self.storage

    async def another_client(self) -> Storage:
        if self.second_client is None:
            raise MissingSeam("second_client")
        return await self.second_client()


Factory: TypeAlias = Callable[[], AbstractAsyncContextManager[Subject]]


class ContractBroken(AssertionError):
    """The engine did something that the contract excludes."""


class MissingSeam(Exception):
    """A check needs a seam that its subject does not have: a reason to skip it."""

    def __init__(self, seam: Seam) -> None:
        super().__init__(f"the subject has no seam {seam!r}")
        self.seam = seam


def expect_same(actual: object, expected: object, what: str) -> None:
    """Like `expect`, for values too large to be shown."""
    if actual != expected:
        raise ContractBroken(f"{what}: came back changed")


PATIENCE = 30.0
"""Seconds after which a watch that was not woken is called deaf. Not a measure of speed."""


async def soon(waiting: Awaitable[T], what: str) -> T:
    """The answer of something that should come at once."""
    try:
        return await asyncio.wait_for(waiting, PATIENCE)
    except TimeoutError as error:
        raise ContractBroken(f"{what} did not come within {PATIENCE:g} seconds") from error


def expect(actual: object, expected: object, what: str) -> None:
    if actual != expected:
        raise ContractBroken(f"{what}: expected {expected!r}, got {actual!r}")


class Check(msgspec.Struct, frozen=True):
    """One promise of the contract, or a part of it, as a function that raises ContractBroken."""

    name: str
    promise: int
    needs: tuple[Seam, ...]
    function: Callable[[Subject], Awaitable[None]]

    def __str__(self) -> str:
        return f"{self.promise:02}-{self.name}"

    async def __call__(self, subject: Subject) -> None:
        for seam in self.needs:
            if not subject.has(seam):
                raise MissingSeam(seam)
        await self.function(subject)


CHECKS: list[Check] = []
"""Every check, in the order of the promises. Import `perdure.storage.kit` to have it filled."""


def check(
    promise: int, *needs: Seam
) -> Callable[[Callable[[Subject], Awaitable[None]]], Callable[[Subject], Awaitable[None]]]:
    """Make a function a check of the kit, named after it."""

    def add(function: Callable[[Subject], Awaitable[None]]) -> Callable[[Subject], Awaitable[None]]:
        CHECKS.append(Check(function.__name__, promise, needs, function))
        CHECKS.sort(key=lambda each: each.promise)
        return function

    return add


class Result(msgspec.Struct, frozen=True):
    check: Check
    verdict: Literal["kept", "broken", "skipped"]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.verdict:8}{self.check}{': ' * bool(self.reason)}{self.reason}"


class Report(msgspec.Struct, frozen=True):
    """What the checks found. `str(report)` is a line for each."""

    results: tuple[Result, ...]

    @property
    def broken(self) -> tuple[Result, ...]:
        return tuple(each for each in self.results if each.verdict == "broken")

    @property
    def skipped(self) -> tuple[Result, ...]:
        return tuple(each for each in self.results if each.verdict == "skipped")

    def raise_if_broken(self) -> None:
        if self.broken:
            raise ContractBroken("\n".join(str(each) for each in self.broken))

    def __str__(self) -> str:
        return "\n".join(str(each) for each in self.results)


async def run(factory: Factory, checks: Sequence[Check] = CHECKS) -> Report:
    """Run each check on a subject of its own."""
    return Report(tuple([await _run_one(factory, each) for each in checks]))


async def _run_one(factory: Factory, check: Check) -> Result:
    async with factory() as subject:
        try:
            await check(subject)
        except MissingSeam as missing:
            return Result(check, "skipped", str(missing))
        except Exception as error:  # an engine under test may raise anything
            return Result(check, "broken", f"{type(error).__name__}: {error}")
        return Result(check, "kept")
