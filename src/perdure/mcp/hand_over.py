"""Calls that are handed over: a client without tasks gets the id of the task in place of a late result.

Its model then calls the tools below, which only such clients see, to come back for the result, on any replica
and after a restart, too. The task of a call that was handed over does not end with its connection.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Literal

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolRequestParams

from ..tasks import Owner, Snapshot, Status, TaskRecord
from ..tasks.errors import InvalidValue, LimitExceeded, MalformedAnswer, NotFound, TerminalTask
from ..tasks.inputs import Capability, Input
from . import wire
from .task_stream import Streams, TaskStream
from .wire import JsonObject, RequestContext, as_object

WAIT, CANCEL, ANSWER = NAMES = ("wait_for_task", "cancel_task", "answer_task")
"""The names of the tools. No tool of the server may have one of them."""

_TASK_ID: JsonObject = {"type": "string", "description": "The id of the task, from the answer to the call."}


def _tool(name: str, title: str, description: str, annotations: JsonObject, **more: JsonObject) -> JsonObject:
    schema: JsonObject = {
        "type": "object",
        "properties": {"task_id": _TASK_ID, **more},
        "required": ["task_id"],
        "additionalProperties": False,
    }
    return {
        "name": name,
        "title": title,
        "description": description,
        "inputSchema": schema,
        "annotations": {"openWorldHint": False, **annotations},
    }


TOOLS = (
    _tool(
        WAIT,
        "Wait for a task",
        "Wait for a task, and return its result. A call that takes long answers with the id of a task in "
        "place of its result: call this tool with that id, again and again until it returns the result.",
        {"readOnlyHint": True},
    ),
    _tool(
        CANCEL,
        "Cancel a task",
        "Stop the work of a task whose result is not needed any more.",
        {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True},
    ),
    _tool(
        ANSWER,
        "Answer a question of a task",
        "Answer a question that a task asks before it continues. Without an answer, this tool shows the "
        "question and the JSON schema of its form. Ask the user unless you know the answer from the user.",
        {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True},
        question={"type": "string", "description": "The key of the question, if the task asks several."},
        action={
            "enum": ["accept", "decline", "cancel"],
            "description": "Whether the question is answered with `content` (accept), or refused.",
        },
        content={"type": "object", "description": "The values of the form, by the names of its fields."},
    ),
)


class WaitArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `wait_for_task` and `cancel_task`."""

    task_id: str


class AnswerArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `answer_task`."""

    task_id: str
    question: str | None = None
    action: Literal["accept", "decline", "cancel"] | None = None
    content: dict[str, Any] | None = None


class HandOver:
    """How a server hands calls over."""

    def __init__(self, after: float) -> None:
        self.after = after
        """Seconds after which a call that has not ended is handed over."""

    # Lists of tools

    def check_names(self, names: Collection[str]) -> None:
        """Raise InvalidValue if a tool of the server has the name of one of ours."""
        for name in NAMES:
            if name in names:
                raise InvalidValue("hand_over_after", _clash(name))

    def list_tools(self, answer: JsonObject, durable: Collection[str]) -> JsonObject:
        """Return the answer to `tools/list` for a client without tasks.

        Clients refuse a result without structured content if the tool has an `outputSchema`, and the answer
        to a call that is handed over has none.
        """
        tools: list[JsonObject] = list(answer.get("tools", ()))
        for tool in tools:
            if tool["name"] in NAMES:  # a list of tools is not known in full before it is sent
                raise MCPError(INTERNAL_ERROR, f"hand_over_after: {_clash(tool['name'])}")
        shown = [_without_output_schema(tool) if tool["name"] in durable else tool for tool in tools]
        return {**answer, "tools": shown if "nextCursor" in answer else [*shown, *TOOLS]}

    # Waiting

    async def wait(self, stream: TaskStream, task_id: str, *, in_rounds: bool) -> Snapshot:
        """Return the task when it has ended, asks what this call must be answered with, or time is over.

        With `in_rounds`, the client is asked in rounds of the call, and not on its stream.
        """

        def is_over(read: Snapshot) -> bool:
            asked = stream.reachable_questions(read.task)
            is_asked = (in_rounds and bool(asked)) or bool(_forms(read.task, asked))
            return read.task.is_terminal or is_asked

        return await stream.wait_at_most(task_id, self.after, is_over)

    def handed_over(self, tool: str, task: TaskRecord, asked: Collection[str]) -> JsonObject:
        """Return the answer to a call that has not ended. The client itself is `asked` some questions."""
        lines = [
            f"The call of {tool!r} has not finished yet, and this is not its result. It continues on the "
            f"server as task {task.task_id}.",
            f"To get the result, call the tool {WAIT!r} with {_arguments(task)}. Call it again whenever it "
            "answers that the task is still running.",
            f"Do not call {tool!r} again for this: that would start the work a second time. To stop the "
            f"work, call the tool {CANCEL!r} with the same arguments.",
            *_state_lines(task, asked),
        ]
        return _text(lines, task)

    # Tools

    async def call(
        self, params: CallToolRequestParams, ctx: RequestContext, owner: Owner, streams: Streams
    ) -> JsonObject:
        """Return the result of one of our tools. Mistakes of the model are results that it can read."""
        try:
            given = params.arguments or {}
            if params.name == WAIT:
                return await self._wait(_decode(given, WaitArguments).task_id, params, ctx, owner, streams)
            if params.name == CANCEL:
                return await self._cancel(_decode(given, WaitArguments).task_id, owner, streams)
            return await self._answer(_decode(given, AnswerArguments), ctx, owner, streams)
        except (InvalidValue, LimitExceeded, MalformedAnswer, NotFound, TerminalTask) as error:
            return _text([str(error)], is_error=True)

    async def _wait(
        self, task_id: str, params: CallToolRequestParams, ctx: RequestContext, owner: Owner, streams: Streams
    ) -> JsonObject:
        stream = TaskStream(ctx, owner, streams, names_task=False)
        in_rounds = ctx.protocol_version == wire.PROTOCOL_2026
        answers = as_object((ctx.params or {}).get("inputResponses"))
        if answers and wire.waiting_task(params.request_state) == task_id:
            with suppress(TerminalTask):  # then its result is returned
                await streams.runtime.answer(owner, task_id, answers)
        task = (await self.wait(stream, task_id, in_rounds=in_rounds)).task
        asked = stream.reachable_questions(task)
        if task.is_terminal:
            return _result(task)
        if asked and in_rounds:
            return wire.input_required(task, asked)
        state = "waits for an answer" if task.outstanding else "is still running"
        again = f"To get the result, call the tool {WAIT!r} with {_arguments(task)} again."
        return _text([f"Task {task.task_id} {state}. {again}", *_state_lines(task, asked)], task)

    async def _cancel(self, task_id: str, owner: Owner, streams: Streams) -> JsonObject:
        try:
            task = (await streams.runtime.cancel_now(owner, task_id)).task
        except TerminalTask:
            task = (await streams.runtime.get(owner, task_id)).task
            how = "has been cancelled" if task.status is Status.CANCELLED else "has ended"
            return _text([f"Task {task.task_id} {how} already."], task)
        return _text([f"Task {task.task_id} is cancelled."], task)

    async def _answer(
        self, given: AnswerArguments, ctx: RequestContext, owner: Owner, streams: Streams
    ) -> JsonObject:
        task = (await streams.runtime.get(owner, given.task_id)).task
        asked = TaskStream(ctx, owner, streams, names_task=False).reachable_questions(task)
        forms = _forms(task, asked)
        is_known = given.question is None or given.question in forms
        if not forms or not is_known or (given.action is None and given.content is None):
            lines = _state_lines(task, asked) if task.outstanding else ["The task asks nothing at present."]
            return _text(lines, task, is_error=not (forms and is_known))
        if given.question is None and len(forms) > 1:
            lines = [
                "The task asks several questions: name the one that you answer.",
                *_form_lines(task, forms),
            ]
            return _text(lines, task, is_error=True)
        key = given.question or next(iter(forms))
        answer: JsonObject = {"action": given.action or "accept"}
        if given.content is not None:
            answer["content"] = given.content
        await streams.runtime.answer(owner, task.task_id, {key: answer})
        next_step = (
            f"The answer is stored. To get the result, call the tool {WAIT!r} with {_arguments(task)}."
        )
        return _text([next_step], task)


def _clash(name: str) -> str:
    return (
        f"the server has a tool named {name!r}, which perdure adds itself for clients without tasks; "
        "give the tool of the server another name"
    )


def _without_output_schema(tool: JsonObject) -> JsonObject:
    return {name: value for name, value in tool.items() if name != "outputSchema"}


def _decode(arguments: JsonObject, type_: type[wire.T]) -> wire.T:
    try:
        return msgspec.convert(arguments, type_)
    except msgspec.ValidationError as error:
        raise InvalidValue("arguments", str(error)) from error


def _forms(task: TaskRecord, asked: Collection[str]) -> dict[str, Input]:
    """Return the open questions that `answer_task` takes: those that the client itself cannot be asked."""
    return {
        key: each
        for key, each in task.questions.items()
        if each.capability is Capability.FORM and key not in asked
    }


# Texts for models


def _arguments(task: TaskRecord) -> str:
    return json.dumps({"task_id": task.task_id})


def _state_lines(task: TaskRecord, asked: Collection[str]) -> list[str]:
    """Return what the model must know of a task that has not ended."""
    lines: list[str] = []
    if task.progress is not None:
        total = "" if task.progress.total is None else f" of {task.progress.total:g}"
        lines.append(f"Progress: {task.progress.done:g}{total}.")
    if task.status_message:
        lines.append(f"Last message of the task: {task.status_message}")
    forms = _forms(task, asked)
    lines += _form_lines(task, forms)
    if asked:
        lines.append(f"The task asks the user a question. The user is asked while {WAIT!r} waits.")
    lines += [
        f"The task asks a question that cannot be answered here, because this client does not support "
        f"{each.capability.value}: {as_object(each.params).get('message', each.kind.value)}"
        for key, each in task.outstanding.items()
        if key not in forms and key not in asked
    ]
    return lines


def _form_lines(task: TaskRecord, forms: dict[str, Input]) -> list[str]:
    lines: list[str] = []
    for key, each in forms.items():
        params = as_object(each.params)
        schema = json.dumps(params.get("requestedSchema", {}), ensure_ascii=False)
        example = json.dumps({"task_id": task.task_id, "question": key, "content": {}})
        lines += [
            f"The task asks a question before it continues: {params.get('message', '')}",
            f"To answer it, call the tool {ANSWER!r} with {example}, where `content` has the values for this "
            f"JSON schema: {schema}",
            'To refuse an answer, send "action": "decline" in place of `content`. Ask the user unless you '
            "know the answer from the user.",
        ]
    return lines


def _text(lines: list[str], task: TaskRecord | None = None, *, is_error: bool = False) -> JsonObject:
    result: JsonObject = {
        "resultType": "complete",
        "content": [{"type": "text", "text": "\n".join(lines)}],
        "isError": is_error,
    }
    return result if task is None else {**result, "_meta": wire.related_task(task)}


def _result(task: TaskRecord) -> JsonObject:
    """Return the result of a task, as the call would have returned it. An error is one that models read."""
    try:
        return wire.result_2026(wire.result_or_raise(task))
    except MCPError as error:
        how = "was cancelled" if task.status is Status.CANCELLED else f"failed: {error.message}"
        return _text([f"Task {task.task_id} {how}."], task, is_error=True)
