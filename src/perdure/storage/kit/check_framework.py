"""Defines checks, their report, and the `Subject` that the author of an engine provides for the checks.

    @asynccontextmanager
    async def my_engine() -> AsyncGenerator[Subject]:
        async with await open_storage("mine://...") as storage:   # fresh and empty, each time
            yield Subject(storage, second_client=lambda: open_storage("mine://..."))

    report = await run(my_engine)          # without pytest
    report.raise_if_failed()

    @pytest.mark.parametrize("check", CHECKS, ids=str)              # or with pytest
    async def test_my_engine_keeps_the_contract(check):
        async with my_engine() as subject:
            await check(subject)

A check raises MissingCapability if its subject lacks a required capability. `run` then skips the check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, TypeAlias, TypeVar

import msgspec

from ..records_and_changes import Address, Micros
from ..storage import Storage

T = TypeVar("T")

Capability: TypeAlias = Literal["reopen", "second_client", "advance_time", "catch_up", "url", "damage"]
Opener: TypeAlias = Callable[[], Awaitable[Storage]]


class Subject(msgspec.Struct):
    """A new, empty storage under test, and the capabilities that some checks need (None if unavailable)."""

    storage: Storage
    reopen: Opener | None = None
    """Opens the same data again, after the kit has closed `storage`."""
    second_client: Opener | None = None
    """Opens another client of the same data while `storage` is open. The kit closes the new client."""
    advance_time: Callable[[Micros], Awaitable[None]] | None = None
    """Sets the engine's own clock, if it has one, forward to the given time in microseconds since 1970."""
    catch_up: Callable[[], Awaitable[None]] | None = None
    """Waits until calls across partitions see all commits. An engine without lag does not need `catch_up`."""
    url: str | None = None
    """The URL at which another process can open the same data."""
    damage: Callable[[Address], Awaitable[None]] | None = None
    """Damages the stored record at the given address, so that the record cannot be read."""
    plugin: str | None = None
    """The module that registers the scheme of `url`. A child process imports it before it opens the URL. None
    if the scheme is built in.
    """

    def has(self, capability: Capability) -> bool:
        if capability == "catch_up" and self.storage.lag == 0:
            return True
        return getattr(self, capability) is not None

    async def caught_up(self) -> Storage:
        """Wait until calls across partitions see all commits, and return the storage."""
        if self.catch_up is not None:
            await self.catch_up()
        return self.storage

    async def reopened(self) -> Storage:
        """Close the storage, open the same data again, and return the newly opened storage."""
        if self.reopen is None:
            raise MissingCapability("reopen")
        await self.storage.close()
        self.storage = await self.reopen()
        return self.storage

    async def another_client(self) -> Storage:
        """Open and return another client of the same data. The caller must close the client."""
        if self.second_client is None:
            raise MissingCapability("second_client")
        return await self.second_client()


Factory: TypeAlias = Callable[[], AbstractAsyncContextManager[Subject]]
CheckFunction: TypeAlias = Callable[[Subject], Awaitable[None]]


class ContractViolation(AssertionError):
    """Raised when an engine breaks a promise of the storage contract."""


class MissingCapability(Exception):
    """Raised when a check needs a capability that its subject does not have."""

    def __init__(self, capability: Capability) -> None:
        super().__init__(f"the subject does not have the capability {capability!r}, which this check needs")
        self.capability = capability


def expect_intact(actual: object, expected: object, what: str) -> None:
    """Compare two large values as `expect` does, but do not include the values in the error message."""
    if actual != expected:
        raise ContractViolation(f"{what}: the returned value differs from the expected one")


WAKE_TIMEOUT = 30.0
"""Number of seconds to wait for a wake-up or the end of a call. It is high enough for slow machines."""


async def within_timeout(waiting: Awaitable[T], what: str) -> T:
    """Return the result of `waiting`.

    Raise ContractViolation if the result takes longer than WAKE_TIMEOUT seconds.
    """
    try:
        return await asyncio.wait_for(waiting, WAKE_TIMEOUT)
    except TimeoutError as error:
        reason = f"timed out after {WAKE_TIMEOUT:g} seconds while waiting for {what}"
        raise ContractViolation(reason) from error


def expect(actual: object, expected: object, what: str) -> None:
    if actual != expected:
        raise ContractViolation(f"{what}: expected {expected!r}, got {actual!r}")


class Check(msgspec.Struct, frozen=True):
    """A check of one promise of the contract.

    `function` raises ContractViolation if the promise is broken.
    """

    name: str
    promise: int
    needs: tuple[Capability, ...]
    function: CheckFunction

    def __str__(self) -> str:
        return f"{self.promise:02}-{self.name}"

    async def __call__(self, subject: Subject) -> None:
        for capability in self.needs:
            if not subject.has(capability):
                raise MissingCapability(capability)
        await self.function(subject)


CHECKS: list[Check] = []
"""All checks, in the order of the promises that they check. Importing `perdure.storage.kit` adds them."""


def check(promise: int, *needs: Capability) -> Callable[[CheckFunction], CheckFunction]:
    """Return a decorator that adds a function to CHECKS, as a check of promise number `promise`.

    `needs` contains the capabilities that the check requires.
    """

    def add(function: CheckFunction) -> CheckFunction:
        CHECKS.append(Check(function.__name__, promise, needs, function))
        CHECKS.sort(key=lambda each: each.promise)
        return function

    return add


class Result(msgspec.Struct, frozen=True):
    check: Check
    verdict: Literal["passed", "failed", "skipped"]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.verdict:8}{self.check}{': ' * bool(self.reason)}{self.reason}"


class Report(msgspec.Struct, frozen=True):
    """The results of checks. `str(report)` has one line for each result."""

    results: tuple[Result, ...]

    @property
    def failed(self) -> tuple[Result, ...]:
        return tuple(each for each in self.results if each.verdict == "failed")

    @property
    def skipped(self) -> tuple[Result, ...]:
        return tuple(each for each in self.results if each.verdict == "skipped")

    def raise_if_failed(self) -> None:
        if self.failed:
            raise ContractViolation("\n".join(str(each) for each in self.failed))

    def __str__(self) -> str:
        return "\n".join(str(each) for each in self.results)


async def run(factory: Factory, checks: Sequence[Check] = CHECKS) -> Report:
    """Run each check on a new subject from `factory`, and return the report."""
    return Report(tuple([await _run_one(factory, each) for each in checks]))


async def _run_one(factory: Factory, check: Check) -> Result:
    async with factory() as subject:
        try:
            await check(subject)
        except MissingCapability as missing:
            return Result(check, "skipped", str(missing))
        except Exception as error:  # an engine under test may raise anything
            return Result(check, "failed", f"{type(error).__name__}: {error}")
        return Result(check, "passed")
