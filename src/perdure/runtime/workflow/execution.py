"""Runs the steps of a workflow that have not ended yet, and stores the result of each."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import cast

import msgspec

from ...storage.errors import PerdureError
from ...storage.exception_text import type_and_text_of
from ...tasks import Json, canonical_json
from ...tasks.canonical_json import JsonLike
from ...tasks.errors import InvalidValue
from ...tasks.inputs import ElicitationAnswer
from ..errors import Pause, Retry, TaskFailed
from ..function import arguments_of, is_coroutine_function, task_parameter
from ..task import Task
from ..threads import call_in_thread
from .definition import Output, Param, Source, Step, Workflow
from .pauses import (
    Blocked,
    Paused,
    Reason,
    SchemaMismatch,
    ToolError,
    UnresolvableParameters,
    UnresolvedDependency,
    question_of,
)
from .state import ARGUMENTS, PAUSED, STEP, StepState, WorkflowState, state_of

DECLINED = -32800


async def run(workflow: Workflow, task: Task) -> JsonLike:
    """Run the steps that have not ended yet, and return the result of the workflow."""
    await _continue(task)
    for number, step in enumerate(workflow.steps):
        task.check_cancelled()
        if step.name not in state_of(task.checkpoint).steps:
            await task.report_progress(number, len(workflow.steps), step.name)
            await _do(step, task)
    await task.report_progress(len(workflow.steps), len(workflow.steps), "done")
    return state_of(task.checkpoint).steps[workflow.steps[-1].name].result


async def _do(step: Step, task: Task) -> None:
    """Run one step and store its outcome, or pause."""
    state = state_of(task.checkpoint)
    try:
        arguments = _checked(step, _resolved(step, state, task.params))
        await _write(step, await _call(step, arguments, task), task)
    except Blocked as blocked:
        key = f"{step.name}-{len(task.questions) + 1}"  # a task can use a key only once
        paused = msgspec.to_builtins(Paused(key, blocked.why))
        raise Pause({key: question_of(blocked.why)}, checkpoint={PAUSED: paused}) from blocked


async def _write(step: Step, ended: StepState, task: Task) -> None:
    try:
        await task.save_checkpoint({STEP + step.name: ended.as_json()})
    except InvalidValue as error:  # for example because it is too large for a checkpoint
        raise Blocked(
            ToolError(step.name, f"the result cannot be stored: {error}", retryable=False)
        ) from error


async def _call(step: Step, arguments: Mapping[str, object], task: Task) -> StepState:
    try:
        return StepState("completed", await _result(step, arguments, task))
    except Exception as error:
        if isinstance(error, PerdureError) and not isinstance(error, (Retry, TaskFailed)):
            raise  # not an error of the step: a cancellation, a question, a busy storage
        said = str(error) if isinstance(error, PerdureError) else type_and_text_of(error)
        if step.optional:
            return StepState("failed", error=said)
        raise Blocked(ToolError(step.name, said, isinstance(error, Retry))) from error


async def _result(step: Step, arguments: Mapping[str, object], task: Task) -> Json:
    given = dict(arguments)
    hidden = task_parameter(step.function)
    if hidden is not None:
        given[hidden] = task.scoped(step.name)
    if is_coroutine_function(step.function):
        result = await cast("Awaitable[JsonLike]", step.function(**given))
    else:
        result = await call_in_thread(lambda: cast("JsonLike", step.function(**given)))
    try:
        return canonical_json.decode(canonical_json.encode_checked("result", result))
    except InvalidValue as error:
        raise TypeError(str(error)) from error  # like any other error of the step


# Arguments: from the sources that the step names, unless the client has answered with other values


def _resolved(step: Step, state: WorkflowState, params: Json) -> dict[str, Json]:
    given = state.arguments.get(step.name, {})
    found: dict[str, Json] = {}
    missing: list[str] = []
    for name, source in step.arguments.items():
        with suppress(LookupError):
            found[name] = given[name] if name in given else _value(source, step, state, params)
        if name not in found:
            missing.append(name)
    if missing:
        raise Blocked(UnresolvableParameters(step.name, tuple(missing)))
    return {**found, **given}


def _value(source: Source, step: Step, state: WorkflowState, params: Json) -> Json:
    """Return the value of an argument. Raise LookupError if there is none."""
    match source:
        case Param(name=name):
            return cast("Json", arguments_of(params)[name])
        case Output():
            producer = state.steps[source.step]
            if not producer.has_result:
                raise Blocked(UnresolvedDependency(step.name, source.step))
            return _within(producer.result, source.path)
        case _:
            return cast("Json", source)


def _within(value: Json, path: tuple[str | int, ...]) -> Json:
    for place in path:
        match value, place:
            case dict(), str():
                value = value[place]
            case list(), int():
                value = value[place]
            case _:
                raise LookupError(place)
    return value


def _checked(step: Step, arguments: Mapping[str, Json]) -> dict[str, object]:
    """Return the arguments, converted to the types in the signature of the step."""
    hidden = task_parameter(step.function)
    hints: Mapping[str, object] = {}
    with suppress(NameError):
        hints = typing.get_type_hints(step.function)
    checked: dict[str, object] = {}
    wrong: dict[str, str] = {}
    for name, parameter in inspect.signature(step.function).parameters.items():
        if name in arguments:
            try:
                checked[name] = _converted(arguments[name], hints.get(name))
            except msgspec.ValidationError as error:
                wrong[name] = str(error)
        elif name != hidden and parameter.default is parameter.empty and parameter.kind.name[:4] != "VAR_":
            wrong[name] = "is missing"
    if wrong:
        raise Blocked(SchemaMismatch(step.name, wrong))
    return {**arguments, **checked}


def _converted(value: Json, hint: object) -> object:
    if hint is None:
        return value
    try:
        return msgspec.convert(value, type=cast("type[object]", hint))
    except TypeError:  # JSON cannot be converted to this type
        return value


# Continuing


async def _continue(task: Task) -> None:
    """Store the answer to the question with which the workflow paused."""
    paused = state_of(task.checkpoint).paused
    if paused is None:
        return
    answer = task.questions[paused.key].answer
    if not isinstance(answer, ElicitationAnswer) or answer.action != "accept":
        raise TaskFailed(DECLINED, _not_continued(paused.why))
    await task.save_checkpoint({**_taken(paused.why, answer.values, task), PAUSED: None})


def _taken(why: Reason, content: Mapping[str, Json], task: Task) -> dict[str, JsonLike]:
    """Return what an answer adds to the checkpoint."""
    match why:
        case UnresolvableParameters() | SchemaMismatch():
            before = state_of(task.checkpoint).arguments.get(why.step, {})
            return {ARGUMENTS + why.step: {**before, **content}}
        case ToolError() if content.get("retry") is True:
            return {}
        case ToolError() if "result" in content:
            return {STEP + why.step: StepState("given", content["result"]).as_json()}
        case UnresolvedDependency() if "result" in content:
            return {STEP + why.producer: StepState("given", content["result"]).as_json()}
        case _:
            raise TaskFailed(DECLINED, _not_continued(why))


def _not_continued(why: Reason) -> str:
    return f"the workflow cannot continue, because the client has not provided what it needs: {why.message}"


def handler(workflow: Workflow) -> Callable[[Task], Awaitable[JsonLike]]:
    async def handle(task: Task) -> JsonLike:
        return await run(workflow, task)

    return handle
