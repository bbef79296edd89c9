"""`Workflow` and `Step`. A workflow is checked when it is defined, and not only when it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from ...tasks.canonical_json import JsonLike
from ...tasks.errors import InvalidValue
from ..function import arguments_of


class Param(msgspec.Struct, frozen=True):
    """Stands for the value of an argument of the workflow itself."""

    name: str


class Output:
    """Stands for the result of an earlier step, or for a value in it.

    `path` contains names of fields and indices of lists.
    """

    def __init__(self, step: str, *path: str | int) -> None:
        self.step = step
        self.path = path


Source: TypeAlias = "Param | Output | JsonLike"
"""The source of an argument of a step: a `Param`, an `Output` or a constant value."""


class Step(msgspec.Struct, frozen=True):
    """One step of a workflow. Its arguments are checked against the signature of its function."""

    name: str
    function: Callable[..., object]
    arguments: Mapping[str, Source] = {}
    optional: bool = False
    """Whether the workflow continues without its result if the step fails."""


class Workflow:
    """A list of steps that run in this order. The result of the last one is the result of the workflow."""

    def __init__(self, name: str, steps: Sequence[Step]) -> None:
        self.name = name
        self.steps = tuple(steps)
        if not self.steps:
            raise InvalidValue("steps", "must not be empty; a workflow needs at least one step")
        earlier: set[str] = set()
        for step in self.steps:
            if step.name in earlier:
                raise InvalidValue(
                    "steps", f"several steps are named {step.name!r}; step names must be unique"
                )
            _check(step, earlier)
            earlier.add(step.name)

    def check(self, params: JsonLike) -> None:
        """Raise InvalidValue if a new task has an argument that no step uses.

        The client is asked for missing arguments later.
        """
        used = {
            source.name
            for step in self.steps
            for source in step.arguments.values()
            if isinstance(source, Param)
        }
        unknown = sorted(set(arguments_of(params)) - used)
        if unknown:
            names = " or ".join(map(repr, unknown))
            raise InvalidValue("arguments", f"must contain only parameters of the workflow, not {names}")


def _check(step: Step, earlier: set[str]) -> None:
    parameters = inspect.signature(step.function).parameters
    for each in parameters.values():
        if each.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise InvalidValue(
                "steps",
                f"the parameter {each.name!r} of step {step.name!r} is positional-only, but arguments are "
                "passed by name; remove the / from the signature",
            )
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    for argument in step.arguments:
        if argument not in parameters and not takes_any:
            raise InvalidValue("steps", f"step {step.name!r} has no parameter {argument!r}")
    for source in step.arguments.values():
        if isinstance(source, Output) and source.step not in earlier:
            raise InvalidValue(
                "steps", f"step {step.name!r} uses {source.step!r}, which is not an earlier step"
            )
