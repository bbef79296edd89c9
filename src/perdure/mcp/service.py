"""What all requests about tasks share: the runtime, who asks, and which tools are durable."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from mcp_types import SERVER_INFO_META_KEY

from ..runtime import Runtime
from ..storage import Micros
from ..tasks import Owner
from ..tasks.canonical_json import JsonLike
from ..tasks.errors import TerminalTask
from .background import Background
from .callers import Callers
from .durable import Durable
from .hosts import Host
from .pacing import Pacing
from .protocol import Request, Wire
from .refusals import not_set_up
from .streams import TaskStream


class Service:
    """The tasks of one server."""

    def __init__(self, background: Background, callers: Callers) -> None:
        self.background = background
        self.callers = callers
        self.known: dict[str, Durable] = {}
        """The decorated functions, by name."""
        self.serves_methods = False
        """Whether the server was told of `tasks/get` and the others."""
        self.pacing = Pacing()
        self._host: Host | None = None

    @property
    def runtime(self) -> Runtime:
        return self.background.runtime

    @property
    def host(self) -> Host:
        if self._host is None:
            raise not_set_up("lifespan=tasks.lifespan")
        return self._host

    @host.setter
    def host(self, host: Host) -> None:
        self._host = host
        self.callers.authenticated = host.is_authenticated

    @property
    def is_joined(self) -> bool:
        """Whether a server has begun to run with these tasks."""
        return self._host is not None

    def stream(self, request: Request, owner: Owner, *, names_task: bool) -> TaskStream:
        return TaskStream(
            request, self.runtime, owner, names_task=names_task, streams=self.background.streams
        )

    def now(self) -> Micros:
        return self.runtime.store.clock()

    def stamped(self, result: Wire) -> Wire:
        """A result of 2026-07-28 that did not pass through the SDK: it says which server it is from."""
        return {**result, "_meta": {**result.get("_meta", {}), SERVER_INFO_META_KEY: self.host.stamp}}

    async def answer(
        self,
        owner: Owner,
        task_id: str,
        answers: Mapping[str, JsonLike],
        variables: Mapping[str, JsonLike] = {},
    ) -> None:
        """Give answers to what the task asked. One that has ended waits for none: they are passed over."""
        with suppress(TerminalTask):
            await self.runtime.answer(owner, task_id, answers, variables)
