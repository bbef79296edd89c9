"""`Function`: a function that workers can run, and its options."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from contextlib import suppress
from math import isfinite
from random import uniform
from typing import Any, TypeAlias, TypedDict, cast

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ..storage.time_types import Duration, to_milliseconds
from ..tasks.canonical_json import JsonLike, check_name
from ..tasks.config import check_seconds
from ..tasks.edits import MAX_FUNCTION_NAME_BYTES
from ..tasks.errors import InvalidValue
from ..tasks.inputs import InputRequest
from ..tasks.task_record import Outcome
from .config import check_options
from .errors import UnknownFunction
from .task import Task

Result: TypeAlias = "JsonLike | Outcome"
"""What a function returns: the result of its task, or a complete outcome."""

Handler: TypeAlias = Callable[[Task], Awaitable[Result]] | Callable[[Task], Result]
"""What a worker calls: a coroutine function, or a plain function, which is called in a thread."""

MAX_BACKOFF_SECONDS = 3600.0


class RunOptions(TypedDict, total=False):
    """The options of a function, a workflow or a durable tool that workers run."""

    retries: int
    """How often the function runs again after one of the exceptions in `retry_on`, after `Retry` or another
    retryable error of perdure, or after a timeout. Any other exception ends the task. Default: 0."""
    retry_on: tuple[type[Exception], ...]
    """The exceptions after which the function runs again, if it has `retries` left. Default: none."""
    backoff: Duration
    """The time before the first retry. It doubles with each retry. Default: 1 second."""
    restart: bool
    """Whether the function runs again if its worker is lost or stops. Default: true."""
    timeout: Duration | None
    """How long an attempt may take, not counting the time in which it waits for answers."""
    ttl: Duration | None
    """How long a task may wait for its first start, and how long a question may wait for its answer."""
    input_deadline: Duration | None
    """The time within which a question must be answered, else the task fails. Default: the ttl."""
    operators_answer: bool
    """Whether operators can answer the function's questions. If so, the function can also ask questions that
    its client does not support."""
    concurrency: int | None
    """Maximum number of concurrent runs of the function in one worker."""


class FunctionOptions(RunOptions, total=False):
    """The options of `App.function`."""

    name: str | None
    """The name that is stored with tasks. Default: the name of the function."""


def checked(called: str, options: Mapping[str, object], known: Container[str]) -> dict[str, Any]:
    """Return the options with durations as numbers, under the names that `Function` and tools use.

    Raise TypeError if an option is unknown, and InvalidValue if a duration is invalid. `called` is the name
    of the class or function that takes the options.
    """
    check_options(called, options, known)
    given: dict[str, Any] = {**options}
    if given.get("ttl", UNSET) is None:
        del given["ttl"]
    for name in {"ttl", "poll_interval"} & given.keys():
        given[f"{name}_ms"] = to_milliseconds(check_seconds(name, given.pop(name)))
    for name in ("backoff", "timeout", "input_deadline"):
        if given.get(name) is not None:
            given[name] = check_seconds(name, given[name])
    return given


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A registered function."""

    name: str
    """The name that is stored with each task. A worker claims only the tasks of functions that it has."""
    handler: Handler
    retries: int = 0
    """How often the function runs again after one of `retry_on`, a retryable error, or a timeout."""
    retry_on: tuple[type[Exception], ...] = ()
    """The exceptions after which the function runs again, if it has `retries` left."""
    restart: bool = True
    """Whether the function runs again after its worker was lost or stopped. Otherwise its task fails."""
    backoff: float = 1.0
    """Seconds before the first retry, with jitter. The time doubles with each retry."""
    timeout: float | None = None
    """How many seconds an attempt may take, not counting the time in which it waits for answers."""
    input_deadline: float | None = None
    """Seconds within which a question without a deadline must be answered. None means the task's ttl."""
    ttl_ms: int | UnsetType = UNSET
    """The ttl of tasks that are created without one. If unset, the store's default applies."""
    operators_answer: bool = False
    """Whether operators can answer the function's questions."""
    concurrency: int | None = None
    """Maximum number of concurrent runs of the function in one worker."""
    check: Callable[[JsonLike], None] = lambda _: None
    """Raises an error if the function does not accept the parameters of a new task."""
    is_async: bool = False
    """Whether the handler is a coroutine function. Do not pass it: it is taken from the handler."""

    def __post_init__(self) -> None:
        check_name("name", self.name, MAX_FUNCTION_NAME_BYTES)
        if "\0" in self.name:
            raise InvalidValue("name", "must not contain NUL characters")
        for field, least in (("retries", 0), ("concurrency", 1)):
            value = getattr(self, field)
            if value is not None and (type(value) is not int or value < least):
                raise InvalidValue(field, f"must be an integer, at least {least}, not {value!r}")
        if not (isfinite(self.backoff) and self.backoff >= 0):
            raise InvalidValue(
                "backoff", f"must be a finite number of seconds, 0 or greater, not {self.backoff}"
            )
        if self.timeout is not None and not (isfinite(self.timeout) and self.timeout > 0):
            raise InvalidValue(
                "timeout", f"must be a finite number of seconds greater than 0, not {self.timeout}"
            )
        if self.input_deadline is not None and not (
            isfinite(self.input_deadline) and self.input_deadline > 0
        ):
            raise InvalidValue(
                "input_deadline",
                f"must be a finite number of seconds greater than 0, not {self.input_deadline}",
            )
        _check_retry_on(self.retry_on, self.retries)
        msgspec.structs.force_setattr(self, "is_async", is_coroutine_function(self.handler))

    def pause_after(self, failures: int) -> float:
        """Return the number of seconds to wait after this many failures: 50 % to 100 % of the backoff."""
        return uniform(0.5, 1) * min(MAX_BACKOFF_SECONDS, self.backoff * 2 ** min(failures - 1, 30))

    def with_deadlines(self, requests: Mapping[str, InputRequest]) -> Mapping[str, InputRequest]:
        """Return the questions. Those without a deadline get the `input_deadline` of the function."""
        return {
            key: replace(each, deadline=self.input_deadline) if each.deadline is None else each
            for key, each in requests.items()
        }


def _check_retry_on(retry_on: tuple[type[Exception], ...], retries: int) -> None:
    if type(retry_on) is not tuple or not all(map(_is_exception_type, retry_on)):
        raise InvalidValue("retry_on", f"must be a tuple of exception types, not {retry_on!r}")
    if retry_on and not retries:
        raise InvalidValue("retry_on", "has no effect without retries; set retries to at least 1")


def _is_exception_type(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


class Functions(Mapping[str, Function]):
    """The functions of a program, by name."""

    def __init__(self) -> None:
        self._functions: dict[str, Function] = {}

    def add(self, function: Function) -> None:
        if function.name in self._functions:
            raise InvalidValue(
                "name", f"a function named {function.name!r} already exists; choose another name"
            )
        self._functions[function.name] = function

    def replace(self, function: Function) -> None:
        """Add a function. It replaces another function of the same name."""
        self._functions[function.name] = function

    def known(self, name: str) -> Function:
        """Return the function with this name. Raise UnknownFunction if there is none."""
        if name not in self._functions:
            raise UnknownFunction(name, sorted(self._functions))
        return self._functions[name]

    def __getitem__(self, name: str) -> Function:
        return self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)


# Functions with parameters of their own, whose arguments come from the stored call


class Call:
    """A function whose arguments are taken from the stored parameters, which have the form of `tools/call`.

    A parameter that is annotated with `Task` receives the running task, and is not an argument.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        self._task = task_parameter(function)
        for each in self._signature.parameters.values():
            if each.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise InvalidValue(
                    "function",
                    f"the parameter {each.name!r} is positional-only, but arguments are passed by name; "
                    "remove the / from the signature",
                )
        named = [each for each in self._signature.parameters.values() if each.kind in _NAMED]
        self._known = {each.name for each in named}
        self._needed = {each.name for each in named if each.default is each.empty}

    def check(self, params: JsonLike) -> None:
        """Raise InvalidValue if the function does not accept these arguments."""
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
                raise InvalidValue(
                    "arguments",
                    f"must not contain {self._task!r}; perdure passes the running task to this parameter",
                )
            given[self._task] = task
        if not self._needed <= given.keys() <= self._known:  # else they are valid
            try:
                self._signature.bind(**given)
            except TypeError as error:
                raise InvalidValue("arguments", str(error)) from error
        return given


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def arguments_of(params: JsonLike) -> Mapping[str, JsonLike]:
    """Return the arguments in the parameters of a call."""
    arguments = params.get("arguments") if isinstance(params, Mapping) else None
    return arguments if isinstance(arguments, Mapping) else {}


def is_coroutine_function(call: Callable[..., object]) -> bool:
    """Return whether calling `call` returns an awaitable."""
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)


def task_parameter(call: Callable[..., object]) -> str | None:
    """Return the name of the parameter that receives the running task, or None."""
    target = call if inspect.isroutine(call) else type(call).__call__
    hints: Mapping[str, object] = inspect.get_annotations(target)
    with suppress(NameError):  # if only type checkers import a type, its name is compared
        hints = typing.get_type_hints(target)
    names = [name for name, hint in hints.items() if _is_task(hint) and name != "return"]
    if len(names) > 1:
        raise InvalidValue(
            "function", f"has several parameters of type Task: {', '.join(names)}; keep only one of them"
        )
    return names[0] if names else None


def _is_task(hint: object) -> bool:
    """Return whether a parameter with this annotation receives the running task."""
    return hint in (Task, Task | None, "Task", "Task | None", "Optional[Task]")
