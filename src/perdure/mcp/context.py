"""The SDK's own `Context` for a tool that runs in a task, outside of any request.

`ServerSession` and `Context` are the SDK's. Only the channel under them is ours: requests to the client
become questions of the task, which are stored, and progress and log messages are kept with the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.session import ServerSession
from mcp.server.subscriptions import SubscriptionBus
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp.shared.transport_context import TransportContext
from mcp_types import LOG_LEVEL_META_KEY, REQUEST_TIMEOUT, CallToolRequestParams, RequestId

from ..runtime import ClientCannotAnswer, InputFailed, Task
from ..tasks import InputKind
from ..tasks.inputs import InputError
from .credentials import stored_request
from .errors import cannot_answer
from .wire import REQUEST_ID, JsonObject, as_object, client_capabilities, dump_result, protocol_of

_TRANSPORT = TransportContext(kind="perdure", can_send_request=True)

_ALTERNATIVES = {
    "ping": "a task has no connection; the client need not be there",
    "notifications/tools/list_changed": "use ctx.notify_tools_changed()",
    "notifications/prompts/list_changed": "use ctx.notify_prompts_changed()",
    "notifications/resources/list_changed": "use ctx.notify_resources_changed()",
    "notifications/resources/updated": "use ctx.notify_resource_updated(uri)",
}


class TaskChannel:
    """The SDK's `DispatchContext` over a task."""

    transport = _TRANSPORT
    can_send_request = True
    message_metadata = None

    def __init__(self, task: Task) -> None:
        self._task = task
        self.request_id: RequestId | None = _request_id(task)
        self.cancel_requested = anyio.Event()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> JsonObject:
        """Ask the client a question that survives this process, and return its answer."""
        if method not in list(InputKind):
            raise _unavailable(method)
        timeout = (opts or {}).get("timeout")
        try:
            given = None if params is None else dict(params)
            asked = await self._task.ask_one(
                InputKind(method), given, timeout=timeout, timeout_error=_no_answer(timeout)
            )
        except ClientCannotAnswer as error:
            raise cannot_answer(error) from error
        except InputFailed as error:
            raise MCPError(error.error.code, error.error.message) from error
        return as_object(asked.raw_answer)

    async def notify(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,  # noqa: ARG002
    ) -> None:
        given = dict(params or {})
        match method:
            case "notifications/message":
                await self._task.log(given["level"], given.get("data"), logger=given.get("logger"))
            case "notifications/progress":
                await self.progress(given["progress"], given.get("total"), given.get("message"))
            case _:
                raise _unavailable(method)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        await self._task.report_progress(progress, total, message)


def _no_answer(timeout: float | None) -> InputError:
    return InputError(
        code=REQUEST_TIMEOUT, message=f"the client did not answer within {timeout or 0:g} seconds"
    )


def _unavailable(method: str) -> RuntimeError:
    alternative = _ALTERNATIVES.get(method, "send it from a tool that is not durable")
    return RuntimeError(f"{method!r} cannot be sent from a task, which has no connection: {alternative}")


def durable_context(
    task: Task,
    call: CallToolRequestParams,
    *,
    server: MCPServer[Any] | None,
    lifespan_state: object,
    subscriptions: SubscriptionBus | None,
) -> Context[Any, Any]:
    """Return the context of a call that runs in a task."""
    request = durable_request(task, call, lifespan_state)
    return Context(request_context=request, mcp_server=server, input_params=call, subscriptions=subscriptions)


def durable_request(
    task: Task, call: CallToolRequestParams, lifespan_state: object, *, session_id: str | None = None
) -> ServerRequestContext[Any, Any]:
    """Return the request of a call that runs in a task, with the protocol version of that call."""
    channel, version = TaskChannel(task), protocol_of(call.meta)
    connection = Connection.from_envelope(
        version, None, client_capabilities(task.client_capabilities), outbound=channel
    )
    connection.session_id = session_id
    return ServerRequestContext(
        session=ServerSession(channel, connection, request_meta={LOG_LEVEL_META_KEY: "debug"}),
        lifespan_context=lifespan_state,
        protocol_version=version,
        method="tools/call",
        params=dump_result(call),
        request_id=channel.request_id,
        meta=call.meta,
        request=stored_request(task),
    )


def _request_id(task: Task) -> RequestId:
    """Return the id of the request that became the task; the id of the task if there was no request."""
    request_id = as_object(task.meta).get(REQUEST_ID)
    return request_id if isinstance(request_id, str | int) else task.id
