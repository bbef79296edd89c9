"""What a workflow is made of. It is checked when it is defined, so that it cannot be wrong in the middle."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from ...tasks.canonical_json import JsonLike
from ...tasks.errors import InvalidValue
from ..function import arguments_of


class Param(msgspec.Struct, frozen=True):
    """An argument of the workflow itself."""

    name: str


class Output:
    """The result of an earlier step, or a place within it: names of fields, and indices of lists."""

    def __init__(self, step: str, *path: str | int) -> None:
        self.step = step
        self.path = path


Source: TypeAlias = "Param | Output | JsonLike"
"""Where an argument of a step comes from: one of the above, or a value as it stands."""


class Step(msgspec.Struct, frozen=True):
    """One function of a workflow. Its signature is its schema: the arguments are checked against it."""

    name: str
    function: Callable[..., object]
    arguments: Mapping[str, Source] = {}
    optional: bool = False
    """Go on without its result when it fails."""


class Workflow:
    """Steps, done in their order. The result is that of the last one."""

    def __init__(self, name: str, steps: Sequence[Step]) -> None:
        self.name = name
        self.steps = tuple(steps)
        if not self.steps:
            raise InvalidValue("steps", "are none; a workflow needs one at least")
        earlier: set[str] = set()
        for step in self.steps:
            if step.name in earlier:
                raise InvalidValue("steps", f"there are two of the name {step.name!r}")
            _check(step, earlier)
            earlier.add(step.name)

    def check(self, params: JsonLike) -> None:
        """Raise where a new task is given an argument that no step uses. One that lacks can be asked for."""
        used = {
            source.name
            for step in self.steps
            for source in step.arguments.values()
            if isinstance(source, Param)
        }
        unknown = sorted(set(arguments_of(params)) - used)
        if unknown:
            raise InvalidValue("arguments", f"the workflow has no parameter {', '.join(unknown)}")


def _check(step: Step, earlier: set[str]) -> None:
    parameters = inspect.signature(step.function).parameters
    for each in parameters.values():
        if each.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise InvalidValue("steps", f"{step.name!r} takes {each.name!r} by position, not by name")
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    for argument in step.arguments:
        if argument not in parameters and not takes_any:
            raise InvalidValue("steps", f"{step.name!r} takes no argument {argument!r}")
    for source in step.arguments.values():
        if isinstance(source, Output) and source.step not in earlier:
            raise InvalidValue("steps", f"{step.name!r} uses {source.step!r}, which is no earlier step")
