"""Several runtimes on one storage, quick enough for tests, and what the tests say about tasks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypedDict, Unpack

from msgspec.structs import replace

from perdure.runtime import App, Executor, Runtime, RuntimeConfig
from perdure.runtime.claims import Claimer
from perdure.storage import Micros, Storage
from perdure.storage.kit import Subject
from perdure.storage.time_types import system_clock, to_seconds
from perdure.tasks import Json, NewTask, Owner, Snapshot, StoreConfig, Success, TaskId, TaskStore
from perdure.tasks.encryption import Keyring

QUICK = RuntimeConfig(
    heartbeat_interval=0.1,
    clock_skew=0.0,
    cancel_grace=0.3,
    drain_timeout=0.3,
    report_interval=0.05,
    queue_poll_interval=0.2,
    purge_interval=0.2,
)
"""A lease lasts 0.3 seconds, and a lost worker is missed within about half a second."""
UNHURRIED = replace(QUICK, clock_skew=10.0, cancel_grace=10.0)
"""As quick, but nobody is taken for lost, or left behind, because the machine stood still for a moment."""
SLACK = 0.7
"""How much longer it lasts on an engine whose one commit may take that long while others are tested."""


def new_app(application: str = "tests") -> App:
    """For functions only: what it declares is run by `Replicas.start`, on the engine under test."""
    return App("memory:", application=application)


class Options(TypedDict, total=False):
    """How a replica differs from others, as `Replicas.running` takes it."""

    work: bool
    limits: StoreConfig
    clock: Callable[[], Micros]
    keys: Sequence[str]
    executor: Callable[[TaskStore, RuntimeConfig], Executor] | None


class Replicas:
    """Starts runtimes on the storage under test. Each has its own client of it."""

    def __init__(self, subject: Subject, stack: AsyncExitStack) -> None:
        self.subject = subject
        self._stack = stack

    async def start(self, app: App, config: RuntimeConfig = UNHURRIED, **options: Unpack[Options]) -> Runtime:
        """A runtime that works (or only creates and waits) until the test is over."""
        return await self._stack.enter_async_context(self.running(app, config, **options))

    @asynccontextmanager
    async def running(
        self,
        app: App,
        config: RuntimeConfig = UNHURRIED,
        *,
        work: bool = True,
        limits: StoreConfig = StoreConfig(),
        clock: Callable[[], Micros] = system_clock,
        keys: Sequence[str] = (),
        executor: Callable[[TaskStore, RuntimeConfig], Executor] | None = None,
    ) -> AsyncGenerator[Runtime]:
        """The same for a block, to see a replica stop."""
        storage = await self.subject.another_client()
        config = suited_to(storage, config)
        store = TaskStore(storage, limits, application=app.application, keys=Keyring(keys), clock=clock)
        made = None if executor is None else executor(store, config)
        runtime = Runtime(store, app.functions, config, executor=made)
        try:
            if work:
                async with runtime.running():
                    yield runtime
            else:
                yield runtime
        finally:
            await self._close(storage)

    async def _close(self, storage: Storage) -> None:
        if self.subject.url is not None:  # the memory engine is one for all of its clients
            await storage.close()


def suited_to(storage: Storage, config: RuntimeConfig) -> RuntimeConfig:
    """The settings with leases that last longer on an engine whose commits may take long."""
    if storage.lag <= SLACK:
        return config
    return replace(config, clock_skew=to_seconds(config.clock_skew) + SLACK)


def with_concurrency(count: int) -> RuntimeConfig:
    return replace(UNHURRIED, concurrency=count)


def value_of(snapshot: Snapshot) -> Json:
    """The result of a task that completed."""
    assert isinstance(snapshot.task.outcome, Success), snapshot.task.outcome
    return snapshot.task.outcome.value


async def leave_with_a_dead_worker(runtime: Runtime, owner: Owner, function: str = "work") -> TaskId:
    """A task as a worker leaves it that is killed in the middle: held, with a lease that nobody extends."""
    holder = Claimer(runtime.store, suited_to(runtime.store.storage, QUICK), "dead").new_holder()
    new = NewTask(method="tools/call", params={"name": function, "arguments": {}}, function=function)
    made = await runtime.store.create(owner, new, lease=lambda first: holder.take(first, None))
    return made.task.task_id
