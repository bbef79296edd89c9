"""Named JSON values that are stored with a task: its variables and its checkpoint.

The *variables* are shared: the worker and the client can read and set them. The *checkpoint* belongs to the
worker, which uses it to save what later attempts need. Clients can neither read nor write it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar, cast, overload

from msgspec import Raw, UnsetType

from . import canonical_json
from .canonical_json import Json, JsonLike, check_json, check_text
from .config import StoreConfig
from .errors import InvalidValue, LimitExceeded, WrongVariableType

D = TypeVar("D")


class Variables(Mapping[str, Json]):
    """The variables or the checkpoint of a task, as a read-only mapping.

    The typed getters return `default` if the name has no value. They raise WrongVariableType if the value has
    a different type.
    """

    def __init__(self, values: dict[str, Json]) -> None:
        self._values = values

    @classmethod
    def decode(cls, raw: Raw | UnsetType) -> Variables:
        return cls(cast("dict[str, Json]", canonical_json.decode(raw) or {}))

    def __getitem__(self, name: str) -> Json:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Variables({self._values!r})"

    @overload
    def get_str(self, name: str) -> str | None: ...
    @overload
    def get_str(self, name: str, default: D) -> str | D: ...
    def get_str(self, name: str, default: object = None) -> object:
        return self._typed(name, str, default)

    @overload
    def get_int(self, name: str) -> int | None: ...
    @overload
    def get_int(self, name: str, default: D) -> int | D: ...
    def get_int(self, name: str, default: object = None) -> object:
        return self._typed(name, int, default)

    @overload
    def get_float(self, name: str) -> float | None: ...
    @overload
    def get_float(self, name: str, default: D) -> float | D: ...
    def get_float(self, name: str, default: object = None) -> object:
        """Return a number as a float. Integers are converted, because many JSON encoders write 1.0 as 1."""
        value = self._values.get(name)
        if type(value) is int and value.bit_length() < 1024:  # larger integers do not fit into a float
            return float(value)
        return self._typed(name, float, default)

    @overload
    def get_bool(self, name: str) -> bool | None: ...
    @overload
    def get_bool(self, name: str, default: D) -> bool | D: ...
    def get_bool(self, name: str, default: object = None) -> object:
        return self._typed(name, bool, default)

    @overload
    def get_list(self, name: str) -> list[Json] | None: ...
    @overload
    def get_list(self, name: str, default: D) -> list[Json] | D: ...
    def get_list(self, name: str, default: object = None) -> object:
        return self._typed(name, list, default)

    @overload
    def get_dict(self, name: str) -> dict[str, Json] | None: ...
    @overload
    def get_dict(self, name: str, default: D) -> dict[str, Json] | D: ...
    def get_dict(self, name: str, default: object = None) -> object:
        return self._typed(name, dict, default)

    def _typed(self, name: str, kind: type[object], default: object) -> object:
        if name not in self._values:
            return default
        value = self._values[name]
        if type(value) is not kind:  # exactly this type: True is also an `int`
            raise WrongVariableType(name, kind.__name__, type(value).__name__)
        return value


RESERVED_PREFIXES = ("workflow.", "perdure.")
"""Prefixes of variable names that are reserved for perdure. Clients cannot set these variables."""


def check_from_client(changes: Mapping[str, JsonLike]) -> None:
    """Raise InvalidValue if a client tries to set a variable with a reserved name."""
    for name in changes:
        if name.startswith(RESERVED_PREFIXES):
            raise InvalidValue(
                "variables",
                f"names that start with {' or '.join(map(repr, RESERVED_PREFIXES))} are reserved; "
                "use another name",
            )


def merge(
    current: Variables, changes: Mapping[str, JsonLike], config: StoreConfig, field: str = "variables"
) -> Raw:
    """Return the current values with the changes applied, as JSON. The value `None` removes a name."""
    for name, value in changes.items():
        _check_name(name, config, field)
        check_json(
            f"{field}.{name}",
            value,
            max_depth=config.max_variable_depth,
            max_string=config.max_string_length,
        )
    merged: dict[str, JsonLike] = {
        name: value for name, value in {**current, **changes}.items() if value is not None
    }
    if len(merged) > config.max_variables:
        raise LimitExceeded(field, config.max_variables, len(merged), "names")
    return canonical_json.encode_checked(
        field,
        merged,
        max_bytes=config.max_variable_size_bytes,
        max_depth=config.max_variable_depth + 1,
    )


def _check_name(name: str, config: StoreConfig, field: str) -> None:
    if not check_text(field, name):
        raise InvalidValue(field, "names must not be empty")
    if len(name) > config.max_variable_name_length:
        raise LimitExceeded(field, config.max_variable_name_length, len(name), "characters in a name")
