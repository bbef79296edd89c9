"""What can be run: a function with a name, and what is to happen when an attempt at it fails."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from math import isfinite
from random import uniform
from typing import TypeAlias, cast

import msgspec

from ..tasks.canonical_json import JsonLike, check_name
from ..tasks.edits import MAX_FUNCTION_NAME_BYTES
from ..tasks.errors import InvalidValue
from ..tasks.task_record import Outcome
from .errors import UnknownFunction
from .task import Task

Result: TypeAlias = "JsonLike | Outcome"
"""What a function returns: the task's result, or an outcome made by hand."""

Handler: TypeAlias = Callable[[Task], Awaitable[Result]] | Callable[[Task], Result]
"""What a worker calls: a coroutine function, or a plain one, which is called in a thread."""

MOST_BACKOFF = 3600.0


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function as workers know it."""

    name: str
    """Stored with each task. A worker takes only tasks whose function it knows by this name."""
    handler: Handler
    retries: int = 0
    """How often it is run again after it raised `Again` or one of `retry_on`, or took too long."""
    retry_on: tuple[type[Exception], ...] = ()
    """Exceptions after which it is run again, as after `Again`."""
    restart: bool = True
    """Whether it is run again after its worker was lost or stopped. False: the task fails instead."""
    backoff: float = 1.0
    """Seconds before the first retry; twice that before the second, and so on, with jitter."""
    timeout: float | None = None
    """Seconds of work that an attempt may take, not counting the waiting for answers."""
    input_deadline: float | None = None
    """Seconds within which its questions must be answered, if they name none. None: the task's ttl."""
    concurrency: int | None = None
    """Runs of it at once in one worker."""
    check: Callable[[JsonLike], None] = lambda _: None
    """Raises where the parameters of a new task are not what the function takes."""
    is_async: bool = False
    """Whether the handler is a coroutine function. Not to be given: the handler itself says so."""

    def __post_init__(self) -> None:
        check_name("name", self.name, MAX_FUNCTION_NAME_BYTES)
        if "\0" in self.name:
            raise InvalidValue("name", "must be text without NUL")
        for field, least in (("retries", 0), ("concurrency", 1)):
            value = getattr(self, field)
            if value is not None and (type(value) is not int or value < least):
                raise InvalidValue(field, f"must be an integer of at least {least}, not {value!r}")
        if not (isfinite(self.backoff) and self.backoff >= 0):
            raise InvalidValue("backoff", f"must be a number of seconds, not {self.backoff}")
        if self.timeout is not None and not (isfinite(self.timeout) and self.timeout > 0):
            raise InvalidValue("timeout", f"must be more than 0 seconds, not {self.timeout}")
        if self.input_deadline is not None and not (
            isfinite(self.input_deadline) and self.input_deadline > 0
        ):
            raise InvalidValue("input_deadline", f"must be more than 0 seconds, not {self.input_deadline}")
        if type(self.retry_on) is not tuple or not all(map(_is_exception_type, self.retry_on)):
            raise InvalidValue("retry_on", f"must be a tuple of exception types, not {self.retry_on!r}")
        msgspec.structs.force_setattr(self, "is_async", is_coroutine_function(self.handler))

    def pause_after(self, failures: int) -> float:
        """Return the seconds to wait after this many failures, from half to all of the backoff."""
        return uniform(0.5, 1) * min(MOST_BACKOFF, self.backoff * 2 ** min(failures - 1, 30))


def _is_exception_type(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


class Functions(Mapping[str, Function]):
    """The functions of a program, by name. All of them are registered before the work begins."""

    def __init__(self) -> None:
        self._functions: dict[str, Function] = {}

    def add(self, function: Function) -> None:
        if function.name in self._functions:
            raise InvalidValue("name", f"there is a function {function.name!r} already")
        self._functions[function.name] = function

    def replace(self, function: Function) -> None:
        """Add a function, in place of the one that has its name."""
        self._functions[function.name] = function

    def known(self, name: str) -> Function:
        """The function of this name, or UnknownFunction."""
        if name not in self._functions:
            raise UnknownFunction(name, sorted(self._functions))
        return self._functions[name]

    def __getitem__(self, name: str) -> Function:
        return self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)


# A Python function with parameters, as a handler: the arguments come from the stored call.


class Call:
    """A function that takes its arguments from the stored parameters, in the shape of `tools/call`.

    A parameter that is annotated with `Task` is given the running task; it is not an argument.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        self._task = task_parameter(function)
        for each in self._signature.parameters.values():
            if each.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise InvalidValue("function", f"takes {each.name!r} by position; arguments come by name")
        named = [each for each in self._signature.parameters.values() if each.kind in _NAMED]
        self._known = {each.name for each in named}
        self._needed = {each.name for each in named if each.default is each.empty}

    def check(self, params: JsonLike) -> None:
        """Raise InvalidValue where these are not the arguments that the function takes."""
        self._given(params, None)

    @property
    def handler(self) -> Handler:
        return self._await if is_coroutine_function(self._function) else self._call

    async def _await(self, task: Task) -> Result:
        return await cast("Awaitable[Result]", self._function(**self._given(task.params, task)))

    def _call(self, task: Task) -> Result:
        return cast("Result", self._function(**self._given(task.params, task)))

    def _given(self, params: JsonLike, task: Task | None) -> dict[str, object]:
        given: dict[str, object] = dict(arguments_of(params))
        if self._task is not None:
            if self._task in given:
                raise InvalidValue("arguments", f"{self._task!r} is no argument; the running task goes there")
            given[self._task] = task
        if not self._needed <= given.keys() <= self._known:  # else there is nothing to complain of
            try:
                self._signature.bind(**given)
            except TypeError as error:
                raise InvalidValue("arguments", str(error)) from error
        return given


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def arguments_of(params: JsonLike) -> Mapping[str, JsonLike]:
    """The arguments within the parameters of a call."""
    arguments = params.get("arguments") if isinstance(params, Mapping) else None
    return arguments if isinstance(arguments, Mapping) else {}


def is_coroutine_function(call: Callable[..., object]) -> bool:
    """Whether calling it gives something to await."""
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)


def task_parameter(call: Callable[..., object]) -> str | None:
    """The name of the parameter that takes the running task."""
    target = call if inspect.isroutine(call) else type(call).__call__
    hints: Mapping[str, object] = inspect.get_annotations(target)
    with suppress(NameError):  # where only type checkers can see what it means, the text counts
        hints = typing.get_type_hints(target)
    names = [name for name, hint in hints.items() if _is_task(hint) and name != "return"]
    if len(names) > 1:
        raise InvalidValue("function", f"takes the task twice, as {' and '.join(names)}")
    return names[0] if names else None


def _is_task(hint: object) -> bool:
    """Whether a parameter so annotated takes the task, or takes it where there is one."""
    return hint in (Task, Task | None, "Task", "Task | None", "Optional[Task]")
