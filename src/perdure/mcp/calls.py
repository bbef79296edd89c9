"""`tools/call` of a durable tool: from the request to a stored task, in each protocol's way.

The call goes down to the tool as any other does, through the user's middleware and interceptors, the
validation of arguments and the resolvers. Only when all of them let it through, it is stored.

A client that knows of no tasks is served too, unless the tool requires them: its call waits for the task.
What the task asks reaches it in the way of its protocol, and when the client goes away the task is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import anyio
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY, InputRequest
from mcp_types import methods as surface
from msgspec import UNSET, UnsetType

from ..storage import Micros
from ..storage.errors import PerdureError
from ..tasks import Failure, InputKind, NewTask, Owner, Snapshot, Success
from ..tasks.edits import resolve_ttl
from ..tasks.inputs import capability_of
from . import shapes
from .callers import session_of
from .capabilities import declared, required
from .durable import Admission, Durable, at, is_nothing
from .params import Asked, decoded, idempotency_key_of, is_declared
from .protocol import CORE, ENVELOPE, MODERN, Request, Wire
from .refusals import not_set_up, undeclared, wrong_caller, wrong_mode
from .service import Service
from .streams import ask

WAITING = "perdure/task:"
"""Begins the `requestState` of a call that waits for a task of which its client does not know."""


ROUND_PATIENCE = 600.0
"""Seconds that a client without tasks has to come back with its answers: as long as the SDK remembers it."""


class Calls:
    """Answers `tools/call`."""

    def __init__(self, service: Service, round_patience: float = ROUND_PATIENCE) -> None:
        self._service = service
        self._round_patience = round_patience

    async def answer(self, request: Request, call_next: CallNext) -> HandlerResult:
        name = (request.params or {}).get("name")
        if not self._service.known or not isinstance(name, str):
            return await call_next(request)  # no tasks are advertised, or the SDK says what is wrong
        if not self._service.is_joined:
            return await self._pass_on(request, call_next, not_set_up("lifespan=tasks.lifespan"))
        durable = await self._service.host.durable_tool(name)
        if durable is not None:
            return await self._answer_durable(request, call_next, durable)
        if _wants_task(request):
            raise wrong_mode(name, "cannot be called as a task")
        return await self._pass_on(request, call_next, wrong_caller(name))

    async def _pass_on(self, request: Request, call_next: CallNext, otherwise: MCPError) -> HandlerResult:
        """Of a tool that is not durable. Should it reach a durable function, this is what is wrong."""
        admission = Admission()
        result = await _send_down(request, call_next, admission)
        if admission.reached is not None:
            raise otherwise
        return result

    async def _answer_durable(self, request: Request, call_next: CallNext, durable: Durable) -> HandlerResult:
        if not self._service.serves_methods:
            raise not_set_up("extensions=[tasks]")
        owner = self._service.callers.owner_of(request)
        if request.protocol_version == MODERN:
            return await self._answer_modern(request, call_next, durable, owner)
        return await self._answer_handshake(request, call_next, durable, owner)

    # 2026-07-28: the client says that it understands tasks, and then each call of the tool is one

    async def _answer_modern(
        self, request: Request, call_next: CallNext, durable: Durable, owner: Owner
    ) -> HandlerResult:
        params = request.params or {}
        knows_tasks = is_declared(params)
        if durable.mode == "required" and not knows_tasks:
            raise undeclared()
        state = params.get("requestState")
        if isinstance(state, str) and state.startswith(WAITING):
            return await self._go_on_waiting(request, call_next, owner, state.removeprefix(WAITING))
        admission = Admission()
        result = await _send_down(request, call_next, admission)
        if admission.reached is None or not is_nothing(result):
            return result
        called_at = self._service.now()
        snapshot = await self._create(request, admission.reached, owner, _stored(params, admission))
        if knows_tasks:
            self._service.pacing.told(snapshot.task.task_id)
            seen_at = self._seen_at(snapshot, called_at)
            return self._service.stamped(shapes.created(snapshot.task, seen_at))
        return await self._wait_modern(request, owner, snapshot.task.task_id)

    async def _go_on_waiting(
        self, request: Request, call_next: CallNext, owner: Owner, task_id: str
    ) -> HandlerResult:
        """The next round of a call that waits. It goes down as the first did: others may refuse it by now."""
        params = dict(request.params or {})
        answers = params.pop("inputResponses", None)
        del params["requestState"]
        stored = cast("Wire", (await self._service.runtime.get(owner, task_id)).task.original_params)
        admission = Admission()
        as_at_first = replace(request, params={**params, **stored})
        result = await _send_down(as_at_first, call_next, admission)
        if admission.reached is None or not is_nothing(result):
            return result
        if isinstance(answers, Mapping) and answers:
            await self._service.answer(owner, task_id, cast("Mapping[str, Any]", answers))
        return await self._wait_modern(request, owner, task_id)

    async def _wait_modern(self, request: Request, owner: Owner, task_id: str) -> Wire:
        """Wait for a task of which the client does not know. Its questions are rounds of the call."""
        stream = self._service.stream(request, owner, names_task=False)
        snapshot = await self._while_connected(request, stream.wait_for_input(task_id), task_id)
        task = snapshot.task
        if task.is_terminal:
            return self._service.stamped(shapes.result_of(success_of(task.outcome)))
        asked = {key: shapes.question(each) for key, each in stream.questions(snapshot).items()}
        if idempotency_key_of(_meta(request)) is None:
            self._service.background.start_soon(
                self._cancel_unless_answered, owner, task_id, frozenset(asked)
            )
        state = f"{WAITING}{task.task_id}"
        return self._service.stamped(
            {"resultType": "input_required", "inputRequests": asked, "requestState": state}
        )

    async def _cancel_unless_answered(self, owner: Owner, task_id: str, asked: frozenset[str]) -> None:
        """A client that does not come back with its answers has gone away, and nobody else knows the task."""
        await asyncio.sleep(self._round_patience)
        with suppress(PerdureError):
            still = (await self._service.runtime.get(owner, task_id)).task.outstanding.keys()
            if asked <= still:
                await self._service.runtime.cancel(owner, task_id)

    # Up to 2025-11-25: the client asks for a task, or waits

    async def _answer_handshake(
        self, request: Request, call_next: CallNext, durable: Durable, owner: Owner
    ) -> HandlerResult:
        wanted = _wanted(request)
        if wanted is None and durable.mode == "required":
            raise wrong_mode(durable.name, "can only be called as a task")
        if wanted is not None:
            resolve_ttl(wanted.milliseconds, self._service.runtime.store.config)
        result, params, admission = await self._go_through(request, call_next)
        if admission.reached is None or not is_nothing(result):
            refusal = None if wanted is None else _refusal_of_task(result)
            if refusal is not None:
                raise refusal
            return result
        call = _stored(params, admission)
        if wanted is None:
            snapshot = await self._create(request, admission.reached, owner, call)
            return await self._wait_handshake(request, snapshot)
        called_at = self._service.now()
        snapshot = await self._create(request, admission.reached, owner, call, wanted.milliseconds)
        token = _meta(request).get("progressToken")
        self._service.background.notifier.follow(request, snapshot, token)
        self._service.pacing.told(snapshot.task.task_id)
        return {"task": shapes.core(snapshot.task, self._seen_at(snapshot, called_at))}

    async def _wait_handshake(self, request: Request, snapshot: Snapshot) -> Wire:
        owner, task_id = snapshot.task.owner, snapshot.task.task_id
        stream = self._service.stream(request, owner, names_task=False)
        ended = await self._while_connected(request, stream.wait(task_id), task_id)
        wire = shapes.result_of(success_of(ended.task.outcome))
        return surface.serialize_server_result("tools/call", request.protocol_version, wire)

    async def _go_through(
        self, request: Request, call_next: CallNext
    ) -> tuple[HandlerResult, Mapping[str, Any], Admission]:
        """Send the call down to the tool, asking the client what its resolvers ask, until it is reached.

        Resolvers are told that this is 2026-07-28, so that they say what they ask instead of asking it: the
        answers are stored with the call in the one form that a later run of it understands.
        """
        params = request.params or {}
        while True:
            admission = Admission()
            modern = replace(request, params=params, protocol_version=MODERN)
            result = await _send_down(modern, call_next, admission)
            if admission.asked is None:
                return result, params, admission
            answers = await _ask_all(request, admission.asked.input_requests or {})
            state = admission.asked.request_state
            params = {**params, "inputResponses": answers, "requestState": state}

    # Both

    def _seen_at(self, snapshot: Snapshot, called_at: Micros) -> Micros:
        """Return when a task is shown in the answer to a call: at its creation, or now if it is older."""
        created_at = snapshot.task.created_at
        return created_at if created_at >= called_at else self._service.now()

    async def _create(
        self,
        request: Request,
        durable: Durable,
        owner: Owner,
        call: Wire,
        ttl: int | UnsetType | None = UNSET,
    ) -> Snapshot:
        meta = _meta(request)
        new = NewTask(
            method="tools/call",
            params=call,
            meta={name: value for name, value in meta.items() if name not in ENVELOPE},
            session_id=session_of(request),
            ttl_ms=durable.ttl if isinstance(ttl, UnsetType) else ttl,
            is_ttl_requested=not isinstance(ttl, UnsetType),
            poll_interval_ms=durable.poll_interval,
            client_can=declared(request),
            operators_answer=durable.operators_answer,
            idempotency_key=idempotency_key_of(meta),
            function=durable.name,
        )
        creating = asyncio.ensure_future(self._service.runtime.create(owner, new))
        with anyio.CancelScope(shield=True):  # a call that is given up meanwhile must know its task to end it
            await asyncio.wait([creating])
        return creating.result()

    async def _while_connected(
        self, request: Request, waiting: Awaitable[Snapshot], task_id: str
    ) -> Snapshot:
        """Nobody else knows of the task: it ends with the call, unless that may be repeated by its key."""
        try:
            return await waiting
        except BaseException:
            if idempotency_key_of(_meta(request)) is None:
                with anyio.CancelScope(shield=True), suppress(PerdureError, MCPError):
                    await self._service.runtime.cancel(self._service.callers.owner_of(request), task_id)
            raise


async def _ask_all(request: Request, asked: Mapping[str, InputRequest]) -> dict[str, Any]:
    """Ask the client several things, one after the other."""
    answers: dict[str, Any] = {}
    for key, each in asked.items():
        params = None if each.params is None else each.params.model_dump(by_alias=True, mode="json")
        capability = capability_of(InputKind(each.method), params)
        if capability not in declared(request):
            message = f"the client does not declare what {each.method} needs"
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, message, required(capability))
        metadata = ServerMessageMetadata(related_request_id=request.request_id)
        answers[key] = await ask(request, each, metadata)
    return answers


async def _send_down(request: Request, call_next: CallNext, admission: Admission) -> HandlerResult:
    """What is answered before the tool is reached, or in its place; nothing where the call may be stored."""
    with at(admission):
        return await call_next(request)


def _meta(request: Request) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", (request.params or {}).get("_meta") or {})


def _stored(params: Mapping[str, Any], admission: Admission) -> Wire:
    """What of a call is needed to make it again, as it came to the tool."""
    call: Wire = {"name": params["name"], "arguments": params.get("arguments")}
    if admission.called is not None:
        call = {"name": admission.called.name, "arguments": admission.called.arguments}
    asked = {name: params.get(name) for name in ("inputResponses", "requestState")}
    return {name: value for name, value in {**call, **asked}.items() if value is not None}


def _refusal_of_task(result: HandlerResult) -> MCPError | None:
    """A client that wants a task cannot take a result in its place, not even that its arguments are wrong."""
    if not isinstance(result, dict) or result.get("isError") is not True:
        return None
    content = cast("list[Mapping[str, Any]]", result.get("content") or [])
    said = " ".join(str(block["text"]) for block in content if block.get("type") == "text")
    return MCPError(INVALID_PARAMS, said or "the tool refused the call")


def _wants_task(request: Request) -> bool:
    """Whether the client asks for a task, in the one protocol in which clients do."""
    return request.protocol_version == CORE and (request.params or {}).get("task") is not None


def _wanted(request: Request) -> Asked | None:
    """What the client says of the task that it wants."""
    return decoded((request.params or {}).get("task"), Asked, "$.task") if _wants_task(request) else None


def success_of(outcome: Success | Failure | None) -> Success:
    """The result of a task that has ended; its error is raised."""
    match outcome:
        case Success():
            return outcome
        case Failure():
            raise MCPError(outcome.code, outcome.message, outcome.data)
        case None:
            raise MCPError(INTERNAL_ERROR, "the task has no outcome")
