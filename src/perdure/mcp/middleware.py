"""The SDK's middleware, which is provisional: this is the one module that knows how it is called.

It sees every request before the SDK does, serves what the SDK has no other seam for, and passes on the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mcp.server.context import CallNext, HandlerResult

from . import params
from .calls import Calls
from .params import decoded, is_declared
from .protocol import CORE, MODERN, Request, Wire
from .refusals import refusing, undeclared
from .service import Service
from .streams import Subscription, subscription_result


class Middleware:
    """`Server.middleware`: a callable of a request and of what comes next."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._calls = Calls(service)

    @property
    def service(self) -> Service:
        """The tasks of the server that this was given to: who has only the server finds them here."""
        return self._service

    async def __call__(self, ctx: Request, call_next: CallNext) -> HandlerResult:
        if ctx.request_id is None:  # a notification
            return await call_next(ctx)
        return await self._answer(ctx, call_next)

    @refusing
    async def _answer(self, request: Request, call_next: CallNext) -> HandlerResult:
        if request.method.startswith("tasks/"):  # before anything that the request says is looked at
            self._service.callers.owner_of(request)
        match request.method, request.protocol_version:
            case "tools/call", _:
                return await self._calls.answer(request, call_next)
            case "subscriptions/listen", version if version == MODERN:
                return await self._listen(request, call_next)
            case "logging/setLevel", _:
                self._service.background.streams.set_level(request, (request.params or {}).get("level"))
                return await call_next(request)
            case "initialize", _:
                return self._with_capability(request, await call_next(request))
            case "tools/list", version if version == CORE:
                return await self._with_task_support(await call_next(request))
            case _:
                return await call_next(request)

    async def _listen(self, request: Request, call_next: CallNext) -> HandlerResult:
        kinds = (request.params or {}).get("notifications")
        wanted = cast("Wire", kinds) if isinstance(kinds, Mapping) else Wire()
        streams = self._service.background.streams
        if "taskIds" not in wanted:
            with streams.open():
                return await call_next(request)
            return self._service.stamped(subscription_result(request))
        owner = self._service.callers.owner_of(request)
        if not is_declared(request.params):
            raise undeclared()
        task_ids = decoded(wanted, params.Subscription, "$.notifications").task_ids
        subscription = Subscription(request, self._service.runtime, owner, task_ids, streams)
        has_others = any(value for kind, value in wanted.items() if kind != "taskIds")
        result = _wire(await subscription.serve(call_next, has_others=has_others))
        return self._service.stamped(result or {})

    def _with_capability(self, request: Request, result: HandlerResult) -> HandlerResult:
        """2025-11-25 has no place for extensions: tasks are a capability of their own."""
        answer = _wire(result)
        if answer is None or answer.get("protocolVersion") != CORE or not self._service.known:
            return result
        tasks: Wire = {"cancel": {}, "requests": {"tools": {"call": {}}}}
        if self._service.callers.can_list(request):
            tasks["list"] = {}
        return {**answer, "capabilities": {**answer.get("capabilities", {}), "tasks": tasks}}

    async def _with_task_support(self, result: HandlerResult) -> HandlerResult:
        answer = _wire(result)
        if answer is None:
            return result
        durable = await self._service.host.durable_tools()
        tools = [
            {**tool, "execution": {"taskSupport": durable[tool["name"]].mode}}
            if tool["name"] in durable
            else tool
            for tool in answer.get("tools", ())
        ]
        return {**answer, "tools": tools}


def _wire(result: HandlerResult) -> Wire | None:
    return dict(cast("Mapping[str, Any]", result)) if isinstance(result, Mapping) else None
