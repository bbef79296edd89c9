"""Encodes and decodes record bodies, which are JSON objects that contain a format number.

A different version of perdure may have written a body. Each type of body is a msgspec struct whose struct tag
is the format number, so the number is always written and always checked. If the number is higher than this
version supports, or if an enumeration field has an unknown value, a newer version of perdure wrote the body.
Decoding such a body raises NewerFormat. Any other body that cannot be decoded is damaged, and decoding it
raises StorageCorrupt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar, cast

import msgspec
from msgspec import inspect

from .errors import NewerFormat, PerdureError, StorageCorrupt

FORMAT_FIELD = "format"
"""The JSON key of the format number. Declare every body struct with `tag_field=FORMAT_FIELD, tag=1`."""

UNREADABLE = (msgspec.MsgspecError, PerdureError, RecursionError)
"""Exceptions that decoding a body can raise. PerdureError comes from the `__post_init__` of a body struct."""

T = TypeVar("T", bound=msgspec.Struct)


class _Unnumbered(msgspec.Struct, tag_field=FORMAT_FIELD, tag=0):
    """Makes msgspec reject a body that has no format number.

    msgspec accepts a body without a tag if it decodes a single struct type, but not if it decodes a union.
    Therefore `BodyFormat` decodes the union of a body struct and this placeholder.
    """


class BodyFormat(Generic[T]):
    """Encodes and decodes record bodies of one type."""

    def __init__(self, kind: type[T]) -> None:
        tag = kind.__struct_config__.tag
        if not isinstance(tag, int):
            raise TypeError(f"{kind.__name__} has no format number; declare the struct with an integer `tag`")
        self.number = tag
        self._type = inspect.type_info(kind)
        self._encoder = msgspec.json.Encoder(order="sorted")
        self._decoder: msgspec.json.Decoder[T | _Unnumbered] = msgspec.json.Decoder(kind | _Unnumbered)

    def encode(self, value: T) -> str:
        return self._encoder.encode(value).decode()

    def decode(self, key: str, body: str) -> T:
        """Decode the body of the record `key`. Raise NewerFormat or StorageCorrupt if decoding fails."""
        try:
            value = self._decoder.decode(body)
        except UNREADABLE as error:
            raise self.error(key, body, str(error)) from error
        if isinstance(value, _Unnumbered):
            raise self.error(key, body, "")
        return value

    def error(self, key: str, body: str, reason: str) -> NewerFormat | StorageCorrupt:
        """Return the error to raise for a body that cannot be decoded.

        `reason` is the error message of the decoder.
        """
        number = number_of(body)
        if number is None:
            return StorageCorrupt(f"it has no format number ({reason or 'written by a development version'})")
        if number > self.number:
            return _newer_number(key, number, self.number)
        if number < self.number:
            reason = f"its format is {number}, which only development versions of perdure wrote"
            return StorageCorrupt(f"{reason}; this version reads format {self.number}")
        for path, value in _unknown_values(msgspec.json.decode(body), self._type, ""):
            return NewerFormat(key, f"this version of perdure does not know the value {value!r} of {path}")
        return StorageCorrupt(reason)


def number_of(body: str) -> int | None:
    """Return the format number of a body, or None if the body has no such number or is not valid JSON."""
    try:
        plain = cast("object", msgspec.json.decode(body))
    except UNREADABLE:
        return None
    number = cast("Mapping[str, object]", plain).get(FORMAT_FIELD) if isinstance(plain, dict) else None
    return number if type(number) is int else None


def check_number(key: str, body: str, newest: int) -> None:
    """Raise NewerFormat if the format number of `body` is higher than `newest`. Accept any other body."""
    number = number_of(body)
    if number is not None and number > newest:
        raise _newer_number(key, number, newest)


def _newer_number(key: str, number: int, newest: int) -> NewerFormat:
    return NewerFormat(key, f"its format is {number}, but this version of perdure reads up to {newest}")


_Part: TypeAlias = tuple[object, inspect.Type, str]
"""A nested value, its declared type, and its path relative to the value that contains it."""


def _unknown_values(value: object, kind: inspect.Type, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the value of each enumeration field that contains an unknown string."""
    if isinstance(kind, (inspect.EnumType, inspect.LiteralType)):
        known = kind.values if isinstance(kind, inspect.LiteralType) else [each.value for each in kind.cls]
        if isinstance(value, str) and value not in known:
            yield path.removeprefix("."), value
        return
    for part, part_kind, step in _parts(value, kind):
        yield from _unknown_values(part, part_kind, path + step)


def _parts(value: object, kind: inspect.Type) -> Iterator[_Part]:
    match kind, value:
        case inspect.UnionType(types=types), _:
            yield from _parts_of_union(value, types)
        case inspect.StructType(fields=fields), dict():
            known = cast("Mapping[str, object]", value)
            names = ((each.encode_name, each.type) for each in fields)
            yield from ((known[name], inner, f".{name}") for name, inner in names if name in known)
        case inspect.DictType(value_type=inner), dict():
            yield from ((each, inner, f".{key}") for key, each in cast("Mapping[str, object]", value).items())
        case ((inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner)), list()):
            yield from ((each, inner, "") for each in cast("list[object]", value))
        case _:
            pass


def _parts_of_union(value: object, types: Sequence[inspect.Type]) -> Iterator[_Part]:
    """Yield the parts of `value`, whose declared type is a union of `types`.

    If `value` is a struct, also yield its tag, which names one of the structs in the union. An unknown tag is
    then reported in the same way as an unknown value of an enumeration field.
    """
    structs = {
        each.tag: each for each in types if isinstance(each, inspect.StructType) and each.tag is not None
    }
    if not (structs and isinstance(value, dict)):
        yield from ((value, each, "") for each in types)
        return
    field = next(each.tag_field for each in structs.values())
    tag = cast("Mapping[str | None, object]", value).get(field)
    yield tag, inspect.LiteralType(tuple(structs)), f".{field}"
    if isinstance(tag, str) and tag in structs:
        yield cast("object", value), structs[tag], ""
