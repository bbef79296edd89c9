"""`ClientTasks`: what a client's author writes.

tasks = ClientTasks()
async with Client(url, extensions=[tasks]) as client:
    result = await client.call_tool("build_report", {"year": 2026})  # waits, however long it takes

    task = await tasks.start(client, "build_report", {"year": 2026})
    saved = task.save()
    ...
    result = await tasks.resume(client, saved).wait()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import msgspec
from mcp.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from mcp.shared.exceptions import MCPError
from mcp_types import REQUEST_TIMEOUT, CallToolResult

from ..protocol import EXTENSION, IDEMPOTENCY_KEY, MODERN, Wire
from .client_task import ClientTask, SavedTask
from .dialects import CallbackRefused, CreatedTask, Dialect, ModernDialect, dialect_of
from .errors import MalformedTask, NotDeclared
from .pushes import Pushed, Pushes

FAREWELL = 5.0
"""Seconds that a client which gives up takes to have its task cancelled."""


class ClientTasks(ClientExtension):
    """Lets a client call durable tools, whether it waits for them or not."""

    identifier = EXTENSION

    def __init__(self, *, push: bool = False) -> None:
        """With `push`, the server tells when a task changes, and is not asked in between."""
        self._pushes = Pushes() if push else None

    async def start(
        self,
        client: Client,
        tool: str,
        arguments: Mapping[str, Any] = {},
        *,
        ttl: int | None = None,
        idempotency_key: str | None = None,
        meta: Wire | None = None,
    ) -> ClientTask | CallToolResult:
        """Call a tool without waiting. Return a `ClientTask`, or the result if the server returned that.

        `ttl`, in milliseconds, is heard only at 2025-11-25. A repeated call with the same `idempotency_key`
        is, on a server of perdure that knows who calls, the same task.
        """
        dialect = self._dialect(client)
        key = {} if idempotency_key is None else {IDEMPOTENCY_KEY: idempotency_key}
        sent = {**(meta or {}), **key} or None
        started = await dialect.start(tool, arguments, ttl=ttl, meta=sent)
        if isinstance(started, CallToolResult):
            return started
        return self._client_task(dialect, SavedTask(task_id=started.task_id, tool=tool))

    def resume(self, client: Client, saved: str) -> ClientTask:
        """Return the task that was saved as this text."""
        try:
            kept = msgspec.json.decode(saved, type=SavedTask)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise MalformedTask(f"this is not a saved task: {error}") from error
        return self._client_task(self._dialect(client), kept)

    def _dialect(self, client: Client) -> Dialect:
        if self not in (client.extensions or ()):
            raise NotDeclared
        return dialect_of(client.session)

    def _client_task(self, dialect: Dialect, saved: SavedTask) -> ClientTask:
        return ClientTask(dialect, self._pushes if isinstance(dialect, ModernDialect) else None, saved)

    # What the SDK asks an extension

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [
            ResultClaim(
                result_type="task",
                model=CreatedTask,
                resolve=self._finish,
                protocol_versions=frozenset({MODERN}),
            )
        ]

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        if self._pushes is None:
            return ()
        return [
            NotificationBinding(
                method="notifications/tasks", params_type=Pushed, handler=self._pushes.arrived
            )
        ]

    async def _finish(self, created: CreatedTask, context: ClaimContext) -> CallToolResult:
        """Wait for the task of a `call_tool`. Nobody else knows of it: who gives up waiting cancels it."""
        dialect = dialect_of(context.session)
        task = self._client_task(dialect, SavedTask(task_id=created.task_id, tool=context.tool_name))
        seconds = context.read_timeout_seconds
        try:
            with anyio.move_on_after(seconds):
                return await task.wait()
        except (CallbackRefused, anyio.get_cancelled_exc_class()):
            await _give_up(task)
            raise
        await _give_up(task)
        raise MCPError(REQUEST_TIMEOUT, f"the task did not end within {seconds} seconds")


async def _give_up(task: ClientTask) -> None:
    with anyio.move_on_after(FAREWELL, shield=True):
        try:
            await task.cancel()
        except MCPError:
            return  # it cannot be helped, and the caller has its own reason to go
