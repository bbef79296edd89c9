"""Canonical JSON: equal values have equal bytes, on every engine and in every version.

Keys are sorted by code point, nothing is spaced, floats and integers (of up to 4300 digits, Python's own
bound) come back as they were.
What JSON cannot express (NaN, infinities, dates, keys that are not strings) is refused, never bent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TypeAlias, cast

import msgspec
from msgspec import Raw, UnsetType

from .errors import InvalidValue, LimitExceeded

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""What is read: plain JSON."""

JsonLike: TypeAlias = "bool | int | float | str | Sequence[JsonLike] | Mapping[str, JsonLike] | None"
"""What may be given: lists, tuples and dicts, in types that do not mind what exactly is in them."""

MAX_DEPTH = 100
"""How deep any document may be nested, so that it can be read again from any stack."""

_SCALARS = frozenset({str, int, bool, type(None)})
_encoder = msgspec.json.Encoder(order="sorted")
_unsorted_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode(value: object) -> bytes:
    """The canonical bytes of a checked value, or of a struct."""
    return _encoder.encode(value)


def decode(raw: Raw | bytes | UnsetType) -> Json:
    """The value of canonical bytes; null where there are none."""
    return None if isinstance(raw, UnsetType) else cast("Json", _decoder.decode(raw))


def encode_checked(
    field: str,
    value: JsonLike,
    *,
    max_bytes: int | None = None,
    max_depth: int = MAX_DEPTH,
    keep_order: bool = False,
) -> Raw:
    """Canonical bytes of a value from outside, or an error that names the place and the limit.

    With `keep_order` the keys stay in the order in which they came.
    """
    check_json(field, value, max_depth=max_depth)
    try:
        raw = (_unsorted_encoder if keep_order else _encoder).encode(value)
    except UnicodeEncodeError as error:
        raise InvalidValue(field, "holds a lone surrogate, which UTF-8 cannot express") from error
    except (TypeError, ValueError) as error:  # a subclass of a plain type, an integer of thousands of digits
        raise InvalidValue(field, str(error)) from error
    if max_bytes is not None:
        check_size(field, raw, max_bytes)
    return Raw(raw)


def check_canonical(field: str, raw: object) -> None:
    """Raise unless these are bytes that `document` could have made."""
    try:
        canonical = isinstance(raw, Raw) and _encoder.encode(_decoder.decode(raw)) == bytes(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidValue(field, str(error)) from error
    if not canonical:
        raise InvalidValue(field, "is not canonical JSON; make the outcome with `of`")


def check_size(field: str, raw: Raw | bytes, max_bytes: int) -> None:
    size = len(memoryview(raw))
    if size > max_bytes:
        raise LimitExceeded(field, max_bytes, size)


def check_integer(field: str, number: int) -> None:
    """Raise unless this is an integer of at most 64 bits."""
    if type(number) is not int or number.bit_length() > 63:
        raise InvalidValue(field, f"must be an integer of at most 64 bits, not {number!r:.40}")


def check_text(field: str, text: object, max_length: int | None = None) -> str:
    """The same text, or an error where it cannot be written or is too long."""
    if not isinstance(text, str):
        raise InvalidValue(field, f"must be text, not {type(text).__name__}")
    _check_length(field, text, max_length)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidValue(field, "holds a lone surrogate, which UTF-8 cannot express") from error
    return text


def check_name(field: str, name: object, max_bytes: int) -> None:
    """Raise unless this is text that is not empty and not too long."""
    text = check_text(field, name)
    if not text:
        raise InvalidValue(field, "is empty")
    check_size(field, text.encode(), max_bytes)


def check_json(
    field: str, value: object, *, max_depth: int, max_string: int | None = None, depth: int = 0
) -> None:
    """Raise unless this is JSON, nested no deeper than allowed."""
    match value:
        case str():
            _check_length(field, value, max_string)
        case None | int():
            pass
        case float():
            if not isfinite(value):
                raise InvalidValue(field, f"{value} is not JSON")
        case dict() | list() | tuple():
            if depth == max_depth:
                raise LimitExceeded(field, max_depth, depth + 1, "levels of nesting")
            for item in _children(field, cast("dict[object, object] | Sequence[object]", value), max_string):
                check_json(field, item, max_depth=max_depth, max_string=max_string, depth=depth + 1)
        case _:
            raise InvalidValue(field, f"a value of type {type(value).__name__} is not JSON")


def _check_length(field: str, text: str, maximum: int | None) -> None:
    if maximum is not None and len(text) > maximum:
        raise LimitExceeded(field, maximum, len(text), "characters")


def _children(
    field: str, value: dict[object, object] | Sequence[object], max_string: int | None
) -> Iterable[object]:
    """What is in a container and must be checked: not the most of it, where strings may have any length."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidValue(field, f"the key {key!r} is not a string")
        value = [*value.values()]
    return value if max_string is not None else [item for item in value if type(item) not in _SCALARS]
