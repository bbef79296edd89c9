"""The check at the start of a server: each durable function is one of its tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ..tasks.errors import InvalidValue
from .durable import Durable

Functions: TypeAlias = Sequence[tuple[str, object]]
"""The names of tools, each with the function that the tool calls."""


def mark_of(function: object) -> Durable | None:
    """What the decorator said of the function of a tool."""
    mark = getattr(function, "durable", None)
    return mark if isinstance(mark, Durable) else None


def check_owner(known: Mapping[str, Durable], functions: Functions) -> None:
    """Raise InvalidValue if a tool was made durable with a `Tasks` that is not the server's."""
    for tool, function in functions:
        mark = mark_of(function)
        if mark is not None and known.get(mark.name) is not mark:
            raise InvalidValue(
                "tool",
                f"{tool!r} was made durable with another Tasks than the one that is attached to this server; "
                "use the same Tasks for both",
            )


def unregistered(known: Mapping[str, Durable], functions: Functions) -> list[Durable]:
    """Return the durable functions that no tool calls."""
    names = {mark.name for _, function in functions if (mark := mark_of(function)) is not None}
    return [durable for name, durable in known.items() if name not in names]


def refuse_unregistered(missing: Iterable[Durable], functions: Functions) -> None:
    """Raise InvalidValue for a durable function that is not a tool, with what to write instead."""
    for durable in missing:
        for tool, function in functions:
            if function == durable.function:
                raise InvalidValue(
                    "tool",
                    f"{tool!r} is not durable: it was registered before its function was made durable; write "
                    "@tasks.durable below @server.tool(), directly above the function",
                )
        raise InvalidValue(
            "function",
            f"{durable.name!r} is durable but is not a tool of this server; write @server.tool() directly "
            "above @tasks.durable",
        )
