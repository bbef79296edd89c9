"""`App` declares the functions of a program and the storage of their tasks. Servers and workers open it.

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
from typing import Any, TypeVar, Unpack, overload

from msgspec import UNSET
from msgspec.structs import replace

from ..storage import Micros, Storage, is_shared_storage, open_storage
from ..storage.time_types import system_clock
from ..tasks import StoreConfig, TaskStore
from ..tasks.application_name import escape_application
from ..tasks.canonical_json import JsonLike
from ..tasks.edits import resolve_ttl
from ..tasks.encryption import Keyring
from ..tasks.errors import InvalidValue
from ..tasks.store import check_can_encrypt
from ..tasks.task_snapshot import check_format
from .config import RuntimeConfig
from .function import Call, Function, FunctionOptions, Functions, Handler, RunOptions, checked
from .runtime import Runtime
from .workflow import Workflow
from .workflow.execution import handler

F = TypeVar("F", bound=Callable[..., object])

KEY_VARIABLE = "PERDURE_ENCRYPTION_KEY"
UNNAMED_APPLICATION = "server"


class App:
    """The functions of a program, and where their tasks are stored. Each `open` starts its own runtime."""

    def __init__(
        self,
        url: str | Storage,
        *,
        application: str,
        encryption_keys: Sequence[str] | None = None,
        store: StoreConfig = StoreConfig(),
        runtime: RuntimeConfig = RuntimeConfig(),
    ) -> None:
        """Declare an app that stores its tasks in the storage at this URL.

        `encryption_keys` are the keys for encrypted tasks: the first one encrypts, all of them decrypt. By
        default they are those in the environment variable PERDURE_ENCRYPTION_KEY, separated by commas.
        """
        self.url = url
        self.application = application
        """The name under which the tasks are stored. Only apps with the same name share tasks."""
        self.functions = Functions()
        self._keys = keys_from_environment() if encryption_keys is None else Keyring(encryption_keys)
        check_can_encrypt(store, self._keys)
        self._store = store
        self._runtime = runtime
        self.clock: Callable[[], Micros] = system_clock
        """The clock that the runtimes of the app use."""

    @property
    def has_keys(self) -> bool:
        """Whether there is a key to encrypt tasks with."""
        return bool(self._keys)

    def name_after(self, server: str | None) -> None:
        """Use the name of the server that runs the tasks, unless the app was given a name.

        A server without a name is allowed only if no other process can open its storage. Otherwise, raise
        InvalidValue.
        """
        if self.application:
            return
        if server is None and isinstance(self.url, str) and not is_shared_storage(self.url):
            server = UNNAMED_APPLICATION
        if server is None:
            raise InvalidValue(
                "application",
                "the server has no name, so its tasks could be confused with those of other servers; "
                "give the server a name, or set Tasks(application=...)",
            )
        try:
            escape_application(server)
        except InvalidValue as error:
            reason = f"the name of the server cannot be used ({error})"
            raise InvalidValue("application", f"{reason}; set Tasks(application=...)") from error
        self.application = server

    def replaced(self, url: str | Storage, *, clock: Callable[[], Micros], **runtime: float) -> App:
        """Return an app with the same functions on another storage, with another clock.

        The keyword arguments in `runtime` replace options of `RuntimeConfig`.
        """
        app = copy(self)
        vars(app).update(url=url, clock=clock, _runtime=replace(self._runtime, **runtime))
        return app

    @overload
    def function(self, call: F, /) -> F: ...
    @overload
    def function(self, /, **options: Unpack[FunctionOptions]) -> Callable[[F], F]: ...
    def function(
        self, call: Callable[..., object] | None = None, /, **options: Unpack[FunctionOptions]
    ) -> Callable[..., object]:
        """Register a function that workers can run. `FunctionOptions` lists the options."""
        given = checked("function", options, FunctionOptions.__annotations__)
        name = given.pop("name", None)

        def register(call: Callable[..., object]) -> Callable[..., object]:
            as_stored = Call(call)
            registered = getattr(call, "__name__", "") if name is None else name
            self._add(registered, as_stored.handler, as_stored.check, given)
            return call

        return register if call is None else register(call)

    def workflow(self, workflow: Workflow, **options: Unpack[RunOptions]) -> None:
        """Register a workflow that workers can run. A completed step is not run again."""
        given = checked("workflow", options, RunOptions.__annotations__)
        self._add(workflow.name, handler(workflow), workflow.check, given)

    def _add(
        self, name: str, handler: Handler, check: Callable[[JsonLike], None], options: dict[str, Any]
    ) -> None:
        resolve_ttl(options.get("ttl_ms", UNSET), self._store)  # raises an error if it is invalid
        self.functions.add(Function(name=name, handler=handler, check=check, **options))

    @asynccontextmanager
    async def open(self, *, work: bool = True, name: str | None = None) -> AsyncGenerator[Runtime]:
        """Open the storage, and run tasks until the block ends. With `work=False`, run no tasks.

        If the app was created with a `Storage` in place of a URL, the storage is not closed.
        """
        async with _opened(self.url) as storage:
            await check_format(storage, now=self.clock())
            store = TaskStore(
                storage, self._store, application=self.application, keys=self._keys, clock=self.clock
            )
            runtime = Runtime(store, self.functions, self._runtime, name=name)
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
