"""`App`: the functions of a program and where their tasks live, declared once, opened by server and workers.

app = App("sqlite:///tasks.db", application="reports")

@app.function(retries=2, timeout=600)
async def build_report(year: int, task: Task) -> str: ...

async with app.open() as runtime:
    report = await runtime.submit("build_report", {"year": 2026})
    report = await runtime.wait(Owner.local(), report.task.task_id)
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import TypeVar, overload

from msgspec.structs import replace

from ..storage import Micros, Storage, open_storage
from ..storage.time_types import Duration, system_clock, to_seconds
from ..tasks import StoreConfig, TaskStore
from ..tasks.encryption import Keyring
from ..tasks.store import check_can_encrypt
from ..tasks.stored_task import check_format
from .config import RuntimeConfig
from .executor import Executor
from .function import Call, Function, Functions
from .runtime import Runtime
from .workflow import Workflow
from .workflow.running import handler

F = TypeVar("F", bound=Callable[..., object])

KEY_VARIABLE = "PERDURE_ENCRYPTION_KEY"


class App:
    """A declaration. Nothing is opened before `open`, and each `open` is a runtime of its own."""

    def __init__(
        self,
        url: str | Storage,
        *,
        application: str,
        encryption_keys: Sequence[str] | None = None,
        store: StoreConfig = StoreConfig(),
        runtime: RuntimeConfig = RuntimeConfig(),
        executor: Callable[[TaskStore, RuntimeConfig], Executor] | None = None,
    ) -> None:
        """Declare functions whose tasks are in the storage of this URL.

        `encryption_keys` are the keys for encrypted tasks: the first one encrypts, all of them decrypt. By
        default they are those in the environment variable PERDURE_ENCRYPTION_KEY, separated by commas.
        """
        self.url = url
        self.application = application
        """The name under which its tasks are stored. Apps of one name share their tasks, others never do."""
        self.functions = Functions()
        self._keys = keys_from_environment() if encryption_keys is None else Keyring(encryption_keys)
        check_can_encrypt(store, self._keys)
        self._store = store
        self._runtime = runtime
        self._executor = executor
        self._clock: Callable[[], Micros] = system_clock

    def replaced(self, url: str | Storage, *, clock: Callable[[], Micros], **runtime: float) -> App:
        """Return an app with the same functions on another storage, with another clock.

        `runtime` are options of `RuntimeConfig`.
        """
        app = copy(self)
        vars(app).update(url=url, _clock=clock, _runtime=replace(self._runtime, **runtime))
        return app

    @overload
    def function(self, call: F, /) -> F: ...
    @overload
    def function(
        self,
        /,
        *,
        name: str | None = None,
        retries: int = 0,
        restart: bool = True,
        backoff: Duration = 1,
        timeout: Duration | None = None,
        concurrency: int | None = None,
    ) -> Callable[[F], F]: ...
    def function(
        self,
        call: Callable[..., object] | None = None,
        /,
        *,
        name: str | None = None,
        retries: int = 0,
        restart: bool = True,
        backoff: Duration = 1,
        timeout: Duration | None = None,
        concurrency: int | None = None,
    ) -> Callable[..., object]:
        """Let workers run this function, under its name or another. The options are those of `Function`."""

        def register(call: Callable[..., object]) -> Callable[..., object]:
            as_stored = Call(call)
            self.functions.add(
                Function(
                    name=getattr(call, "__name__", "") if name is None else name,
                    handler=as_stored.handler,
                    retries=retries,
                    restart=restart,
                    backoff=to_seconds(backoff),
                    timeout=None if timeout is None else to_seconds(timeout),
                    concurrency=concurrency,
                    check=as_stored.check,
                )
            )
            return call

        return register if call is None else register(call)

    def workflow(
        self,
        workflow: Workflow,
        *,
        retries: int = 0,
        restart: bool = True,
        backoff: Duration = 1,
        timeout: Duration | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Let workers run this workflow, under its name. Steps that are done are not done again."""
        self.functions.add(
            Function(
                name=workflow.name,
                handler=handler(workflow),
                retries=retries,
                restart=restart,
                backoff=to_seconds(backoff),
                timeout=None if timeout is None else to_seconds(timeout),
                concurrency=concurrency,
                check=workflow.check,
            )
        )

    @asynccontextmanager
    async def open(self, *, work: bool = True, name: str | None = None) -> AsyncGenerator[Runtime]:
        """Open the storage and work, or with `work=False` only create, wait and watch; close at the end.

        A storage that was given ready is not closed: whoever opened it closes it.
        """
        async with _opened(self.url) as storage:
            await check_format(storage, now=self._clock())
            store = TaskStore(
                storage, self._store, application=self.application, keys=self._keys, clock=self._clock
            )
            executor = None if self._executor is None else self._executor(store, self._runtime)
            runtime = Runtime(store, self.functions, self._runtime, executor=executor, name=name)
            if not work:
                yield runtime
                return
            async with runtime.running():
                yield runtime


def keys_from_environment() -> Keyring:
    """Return the keys in the environment variable PERDURE_ENCRYPTION_KEY, which are separated by commas."""
    return Keyring([key for key in os.environ.get(KEY_VARIABLE, "").split(",") if key.strip()])


@asynccontextmanager
async def _opened(url: str | Storage) -> AsyncGenerator[Storage]:
    if isinstance(url, Storage):
        yield url
        return
    async with await open_storage(url) as storage:
        yield storage
