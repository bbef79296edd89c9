"""The parameters of task requests, as clients send them: decoded strictly, refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import CLIENT_CAPABILITIES_META_KEY, INVALID_PARAMS
from msgspec import UNSET, UnsetType

from ..tasks.canonical_json import JsonLike
from .protocol import EXTENSION, IDEMPOTENCY_KEY, VARIABLES

T = TypeVar("T")


class OneTask(msgspec.Struct, frozen=True, rename="camel"):
    """`tasks/get`, `tasks/cancel` and `tasks/result`."""

    task_id: str


class Update(msgspec.Struct, frozen=True, rename="camel"):
    """`tasks/update`."""

    task_id: str
    input_responses: dict[str, Any]
    meta: dict[str, Any] = msgspec.field(default={}, name="_meta")

    @property
    def variables(self) -> Mapping[str, JsonLike]:
        given = self.meta.get(VARIABLES)
        if given is None:
            return {}
        if not isinstance(given, dict):
            raise MCPError(INVALID_PARAMS, f"Expected `object` - at `$._meta[{VARIABLES!r}]`")
        return cast("dict[str, JsonLike]", given)


class Page(msgspec.Struct, frozen=True):
    """`tasks/list`."""

    cursor: str | None = None


class Asked(msgspec.Struct, frozen=True):
    """`task` of a call in 2025-11-25: the client wants a task."""

    ttl: float | UnsetType | None = UNSET

    @property
    def milliseconds(self) -> int | UnsetType | None:
        if not isinstance(self.ttl, float):
            return self.ttl
        if not self.ttl.is_integer():
            raise MCPError(INVALID_PARAMS, "Expected an integer number of milliseconds - at `$.task.ttl`")
        return int(self.ttl)


class Subscription(msgspec.Struct, frozen=True, rename="camel"):
    """The `notifications` of `subscriptions/listen`, as far as it is about tasks."""

    task_ids: list[str] = []


def decoded(params: object, type_: type[T], at: str = "$") -> T:
    """Such parameters, or -32602 with the field that is wrong."""
    if params is not None and not isinstance(params, dict):
        raise MCPError(INVALID_PARAMS, f"Expected `object` - at `{at}`")
    try:
        return msgspec.convert(cast("object", params or {}), type_)
    except msgspec.ValidationError as error:
        raise MCPError(INVALID_PARAMS, str(error).replace("`$", f"`{at}", 1)) from error
    except UnicodeEncodeError as error:
        raise MCPError(INVALID_PARAMS, f"Expected names that are Unicode - at `{at}`") from error
    except RecursionError as error:
        raise MCPError(INVALID_PARAMS, f"Nested too deeply - at `{at}`") from error


def is_declared(params: Mapping[str, Any] | None) -> bool:
    """Whether the client says, with this very request, that it understands tasks."""
    capabilities = _object(_object(_object(params).get("_meta")).get(CLIENT_CAPABILITIES_META_KEY))
    return isinstance(_object(capabilities.get("extensions")).get(EXTENSION), Mapping)


def idempotency_key_of(meta: Mapping[str, Any]) -> str | None:
    key = meta.get(IDEMPOTENCY_KEY)
    if key is not None and not isinstance(key, str):
        raise MCPError(INVALID_PARAMS, f"Expected `str` - at `$._meta[{IDEMPOTENCY_KEY!r}]`")
    return key


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
