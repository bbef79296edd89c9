"""`tasks/get` and the other methods: each reads its parameters, asks the runtime, and spells the answer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from mcp.server.context import HandlerResult
from mcp.server.extension import MethodBinding
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import decode_header_value
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, RequestParams

from ..tasks import Owner, Snapshot, Status
from ..tasks.errors import TerminalTask
from . import shapes
from .callers import headers_of
from .calls import success_of
from .pacing import HOLD
from .params import OneTask, Page, Update, decoded, is_declared
from .polling import advised_interval
from .protocol import CORE, MODERN, Request, Wire
from .refusals import refusing, undeclared, wrong_header
from .service import Service

log = logging.getLogger("perdure.mcp")

NAME_HEADER = "mcp-name"


class Methods:
    """Answers `tasks/*`, in the words of the protocol that the client speaks."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def bindings(self) -> Sequence[MethodBinding]:
        both, modern, core = frozenset({MODERN, CORE}), frozenset({MODERN}), frozenset({CORE})
        served = (
            ("tasks/get", self.get, both),
            ("tasks/cancel", self.cancel, both),
            ("tasks/update", self.update, modern),
            ("tasks/list", self.list, core),
            ("tasks/result", self.result, core),
        )
        return [
            MethodBinding(method, RequestParams, refusing(handler), protocol_versions=versions)
            for method, handler, versions in served
        ]

    async def get(self, request: Request, _: RequestParams) -> HandlerResult:
        owner = self._caller(request)
        snapshot = await self._look(owner, _task_id(request))
        task, now = snapshot.task, self._service.now()
        if request.protocol_version == MODERN:
            return {"resultType": "complete", **shapes.detailed(task, now)}
        if task.status is Status.INPUT_REQUIRED:  # a client that only polls is asked on its session's stream
            self._service.background.notifier.poll(request, snapshot)
        return shapes.core(task, now)

    async def _look(self, owner: Owner, task_id: str) -> Snapshot:
        """The task; a moment later, if somebody looks sooner than they were told to and it has not ended."""
        snapshot = await self._service.runtime.get(owner, task_id)
        if not snapshot.task.is_terminal:
            pacing = self._service.pacing
            if pacing.is_early(task_id, advised_interval(snapshot.task, self._service.now())):
                snapshot = await self._service.runtime.later(owner, snapshot, HOLD)
            pacing.told(task_id)
        return snapshot

    async def cancel(self, request: Request, _: RequestParams) -> HandlerResult:
        owner = self._caller(request)
        if request.protocol_version == MODERN:
            with suppress(TerminalTask):  # it has ended, as was asked
                await self._service.runtime.cancel(owner, _task_id(request))
            return {"resultType": "complete"}
        return shapes.core((await self._cancelled(owner, _task_id(request))).task, self._service.now())

    async def _cancelled(self, owner: Owner, task_id: str) -> Snapshot:
        """Cancel the task before answering, as 2025-11-25 demands, without waiting for its worker."""
        runtime = self._service.runtime
        try:
            return await runtime.cancel_now(owner, task_id)
        except TerminalTask as error:
            ended = shapes.core((await runtime.get(owner, task_id)).task, self._service.now())
            raise MCPError(INVALID_PARAMS, f"the task is {ended['status']}, which is final") from error

    async def update(self, request: Request, _: RequestParams) -> HandlerResult:
        owner = self._caller(request)
        update = decoded(request.params, Update)
        _check_name(request, update.task_id)
        await self._service.answer(owner, update.task_id, update.input_responses, update.variables)
        return {"resultType": "complete"}

    async def list(self, request: Request, _: RequestParams) -> HandlerResult:
        owner = self._caller(request)
        if not self._service.callers.can_list(request):
            raise MCPError(METHOD_NOT_FOUND, "Method not found", "tasks/list")
        cursor = decoded(request.params, Page).cursor
        page = await self._service.runtime.store.list(owner, cursor=cursor, newest_first=True)
        for error in page.newer:
            log.warning("left out of tasks/list: %s", error)
        now = self._service.now()
        answer: Wire = {"tasks": [shapes.core(snapshot.task, now) for snapshot in page.tasks]}
        if page.next_cursor is not None:
            answer["nextCursor"] = page.next_cursor
        return answer

    async def result(self, request: Request, _: RequestParams) -> HandlerResult:
        owner = self._caller(request)
        task_id = _task_id(request)
        task = (await self._service.stream(request, owner, names_task=True).wait(task_id)).task
        return shapes.core_result(task, success_of(task.outcome))

    def _caller(self, request: Request) -> Owner:
        """Whose request this is, before anything else of it is looked at."""
        owner = self._service.callers.owner_of(request)
        if request.protocol_version == MODERN and not is_declared(request.params):
            raise undeclared()
        return owner


def _task_id(request: Request) -> str:
    task_id = decoded(request.params, OneTask).task_id
    _check_name(request, task_id)
    return task_id


def _check_name(request: Request, task_id: str) -> None:
    """Where a client names the task in a header too, it must be the same. Absence is let pass."""
    header = headers_of(request).get(NAME_HEADER) if request.protocol_version == MODERN else None
    if header is not None and decode_header_value(header) != task_id:
        raise wrong_header("Mcp-Name")
