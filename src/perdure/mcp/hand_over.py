"""Calls that are handed over: a client without tasks gets the id of the task in place of a late result.

The client's model then calls the tools below to get the result, even from another replica or after a restart.
Only such clients see these tools. The task of a call that was handed over does not end with its connection.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from importlib.resources import files
from typing import Any, Literal

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolRequestParams

from ..tasks import Owner, Status, TaskRecord
from ..tasks.errors import InvalidValue, LimitExceeded, MalformedAnswer, NotFound, TerminalTask
from ..tasks.inputs import Capability, Input
from . import wire
from .streams import Streams
from .task_stream import TaskStream
from .wire import JsonObject, RequestContext, as_object

TOOLS: list[JsonObject] = json.loads(files("perdure.mcp").joinpath("hand_over_tools.json").read_text("utf-8"))
"""The tools, as clients without tasks list them."""
WAIT, CANCEL, ANSWER = NAMES = [str(tool["name"]) for tool in TOOLS]
"""The names of the tools. The server must not have other tools with these names."""


class WaitArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `wait_for_task` and `cancel_task`."""

    task_id: str


class AnswerArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `answer_task`."""

    task_id: str
    question: str | None = None
    action: Literal["accept", "decline", "cancel"] | None = None
    content: dict[str, Any] | None = None


# Lists of tools


def check_names(names: Collection[str]) -> None:
    """Raise InvalidValue if a tool of the server has one of `NAMES`."""
    for name in NAMES:
        if name in names:
            raise InvalidValue("hand_over_after", _clash(name))


def list_tools(answer: JsonObject, durable: Collection[str]) -> JsonObject:
    """Return the answer to `tools/list` for a client without tasks.

    Remove the `outputSchema` of durable tools. Clients refuse a result without structured content if the tool
    has such a schema, and the answer to a call that is handed over has no structured content.
    """
    tools: list[JsonObject] = list(answer.get("tools", ()))
    for tool in tools:
        if tool["name"] in NAMES:  # before, not all tools were known
            raise MCPError(INTERNAL_ERROR, f"hand_over_after: {_clash(tool['name'])}")
    shown = [_without_output_schema(tool) if tool["name"] in durable else tool for tool in tools]
    return {**answer, "tools": shown if "nextCursor" in answer else [*shown, *TOOLS]}


def _clash(name: str) -> str:
    return (
        f"the server has a tool named {name!r}, but perdure adds a tool with this name for clients without "
        "tasks; give the tool of the server another name"
    )


def _without_output_schema(tool: JsonObject) -> JsonObject:
    return {name: value for name, value in tool.items() if name != "outputSchema"}


# Calls


class HandOverStream(TaskStream):
    """The stream of a call that can be handed over."""

    def is_over(self, task: TaskRecord) -> bool:
        return super().is_over(task) or bool(_forms(task, self.reachable_questions(task)))


def handed_over(tool: str, task: TaskRecord, asked: Collection[str]) -> JsonObject:
    """Return the answer to a call that has not ended. `asked` are the questions that reach the client."""
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


class ToolCall(msgspec.Struct, frozen=True):
    """A call of one of the tools in `TOOLS`."""

    params: CallToolRequestParams
    ctx: RequestContext
    owner: Owner
    streams: Streams
    wait_seconds: float

    async def answer(self) -> JsonObject:
        """Return the result of the tool. If the model made a mistake, the result explains the mistake."""
        try:
            given = self.params.arguments or {}
            if self.params.name == WAIT:
                return await self._wait(_decode(given, WaitArguments).task_id)
            if self.params.name == CANCEL:
                return await self._cancel(_decode(given, WaitArguments).task_id)
            return await self._answer(_decode(given, AnswerArguments))
        except (InvalidValue, LimitExceeded, MalformedAnswer, NotFound, TerminalTask) as error:
            return _text([str(error)], is_error=True)

    def _stream(self) -> HandOverStream:
        return HandOverStream(self.ctx, self.owner, self.streams, names_task=False)

    async def _read(self, task_id: str) -> TaskRecord:
        return (await self.streams.runtime.get(self.owner, task_id)).task

    async def _wait(self, task_id: str) -> JsonObject:
        stream = self._stream()
        answers = as_object((self.ctx.params or {}).get("inputResponses"))
        if answers and wire.waiting_task(self.params.request_state) == task_id:
            with suppress(TerminalTask):  # then its result is returned
                await self.streams.runtime.answer(self.owner, task_id, answers)
        task = await stream.wait(task_id, at_most=self.wait_seconds)
        if task.is_terminal:
            return _result(task)
        if asked := stream.round_of(task):
            return wire.input_required(task, asked)
        state = "is waiting for an answer" if task.outstanding else "is still running"
        again = f"To get the result, call the tool {WAIT!r} with {_arguments(task)} again."
        lines = _state_lines(task, stream.reachable_questions(task))
        return _text([f"Task {task.task_id} {state}. {again}", *lines], task)

    async def _cancel(self, task_id: str) -> JsonObject:
        try:
            task = (await self.streams.runtime.cancel_now(self.owner, task_id)).task
        except TerminalTask:
            task = await self._read(task_id)
            how = "has been cancelled" if task.status is Status.CANCELLED else "has ended"
            return _text([f"Task {task.task_id} {how} already."], task)
        return _text([f"Task {task.task_id} is cancelled."], task)

    async def _answer(self, given: AnswerArguments) -> JsonObject:
        task = await self._read(given.task_id)
        asked = self._stream().reachable_questions(task)
        forms = _forms(task, asked)
        is_known = given.question is None or given.question in forms
        if not forms or not is_known or (given.action is None and given.content is None):
            lines = _state_lines(task, asked) if task.outstanding else ["The task has no open question."]
            return _text(lines, task, is_error=not (forms and is_known))
        if given.question is None and len(forms) > 1:
            several = (
                "The task asks several questions; pass the key of the one that you answer as `question`."
            )
            return _text([several, *_form_lines(task, forms)], task, is_error=True)
        key = given.question or next(iter(forms))
        answer: JsonObject = {"action": given.action or "accept"}
        if given.content is not None:
            answer["content"] = given.content
        await self.streams.runtime.answer(self.owner, task.task_id, {key: answer})
        next_step = f"To get the result, call the tool {WAIT!r} with {_arguments(task)}."
        return _text([f"The answer is stored. {next_step}"], task)


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
    """Return what the model must know about a task that has not ended."""
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
        for key, each in task.questions.items()
        if key not in forms and key not in asked
    ]
    if len(task.outstanding) > len(task.questions):  # questions that the client must not see
        lines.append("The task waits for the answer of an operator, which cannot be given here.")
    return lines


def _form_lines(task: TaskRecord, forms: dict[str, Input]) -> list[str]:
    lines: list[str] = []
    for key, each in forms.items():
        params = as_object(each.params)
        schema = json.dumps(params.get("requestedSchema", {}), ensure_ascii=False)
        example = json.dumps({"task_id": task.task_id, "question": key, "content": {}})
        lines += [
            f"The task asks a question before it continues: {params.get('message', '')}",
            f"To answer it, call the tool {ANSWER!r} with {example}, where `content` contains the answer and "
            f"matches this JSON schema: {schema}",
            'To decline to answer, send "action": "decline" instead of `content`. Ask the user, unless the '
            "user has already given you the answer.",
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
    """Return the result of a task, as the call would have returned it, or an error that a model can read."""
    try:
        return wire.result_2026(wire.result_or_raise(task))
    except MCPError as error:
        how = "was cancelled" if task.status is Status.CANCELLED else f"failed: {error.message}"
        return _text([f"Task {task.task_id} {how}."], task, is_error=True)
