"""JSON as perdure stores it: without whitespace, and with the exact value of every number.

Canonical JSON also has its keys sorted by code point, so the same value is always encoded as the same bytes,
in every version of perdure. perdure's own records are canonical. Values from a caller, such as arguments and
results, keep the order of their keys.

Floats keep their exact value, and so do integers of up to 4300 digits (Python's limit). Values that JSON
cannot represent (NaN, infinity, dates, keys that are not strings) are rejected, never converted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TypeAlias, cast

import msgspec
from msgspec import Raw, UnsetType

from .errors import InvalidValue, LimitExceeded

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A decoded JSON value."""

JsonLike: TypeAlias = "bool | int | float | str | Sequence[JsonLike] | Mapping[str, JsonLike] | None"
"""A value that can be encoded as JSON. Unlike `Json`, this type also accepts tuples, and containers with a
more specific type, such as `list[str]`."""

MAX_DEPTH = 100
"""Maximum nesting depth of a JSON value. It is low enough that decoding never exhausts the stack."""

_UNPAIRED_SURROGATE = "contains an unpaired surrogate, which cannot be encoded as UTF-8"
_SCALARS = frozenset({str, int, bool, type(None)})
_encoder = msgspec.json.Encoder(order="sorted")
_ordered_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode(value: object) -> bytes:
    """Return the canonical bytes of a struct, or of a value that has already been checked."""
    return _encoder.encode(value)


def canonical(raw: Raw) -> bytes:
    """Return a result of `encode_checked` as canonical bytes, which do not depend on the order of keys."""
    return encode(decode(raw))


def encode_in_order(value: object) -> bytes:
    """Return a value that has already been checked as JSON, with the keys of objects in their order."""
    return _ordered_encoder.encode(value)


def decode(raw: Raw | bytes | UnsetType) -> Json:
    """Return the decoded value, or None for UNSET."""
    return None if isinstance(raw, UnsetType) else cast("Json", _decoder.decode(raw))


def encode_checked(
    field: str, value: JsonLike, *, max_bytes: int | None = None, max_depth: int = MAX_DEPTH
) -> Raw:
    """Check a value from a caller and return it as JSON, with the keys of objects in their order.

    Raise InvalidValue if the value cannot be encoded as JSON, is nested too deeply or is too large.
    """
    check_json(field, value, max_depth=max_depth)
    try:
        raw = _ordered_encoder.encode(value)
    except UnicodeEncodeError as error:
        raise InvalidValue(field, _UNPAIRED_SURROGATE) from error
    except (TypeError, ValueError) as error:  # for example an integer with thousands of digits
        raise InvalidValue(field, str(error)) from error
    if max_bytes is not None:
        check_size(field, raw, max_bytes)
    return Raw(raw)


def check_encoded(field: str, raw: object) -> None:
    """Raise InvalidValue unless `raw` contains JSON as `encode_checked` returns it."""
    try:
        is_encoded = isinstance(raw, Raw) and _ordered_encoder.encode(_decoder.decode(raw)) == bytes(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidValue(field, str(error)) from error
    if not is_encoded:
        raise InvalidValue(field, "is not JSON without whitespace; create it with Success.of or Failure.of")


def check_size(field: str, raw: Raw | bytes, max_bytes: int) -> None:
    size = len(memoryview(raw))
    if size > max_bytes:
        raise LimitExceeded(field, max_bytes, size)


def check_integer(field: str, number: int) -> None:
    """Raise InvalidValue unless `number` is a signed 64-bit integer."""
    if type(number) is not int or number.bit_length() > 63:
        raise InvalidValue(field, f"must be a signed 64-bit integer, not {number!r:.40}")


def check_text(field: str, text: object, max_length: int | None = None) -> str:
    """Return `text`. Raise InvalidValue if it is not a `str`, is not valid Unicode, or is too long."""
    if not isinstance(text, str):
        raise InvalidValue(field, f"must be str, not {type(text).__name__}")
    _check_length(field, text, max_length)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidValue(field, _UNPAIRED_SURROGATE) from error
    return text


def check_name(field: str, name: object, max_bytes: int) -> None:
    """Raise InvalidValue unless `name` is a string of 1 to `max_bytes` bytes in UTF-8."""
    text = check_text(field, name)
    if not text:
        raise InvalidValue(field, "must not be empty")
    check_size(field, text.encode(), max_bytes)


def check_json(
    field: str, value: object, *, max_depth: int, max_string: int | None = None, depth: int = 0
) -> None:
    """Raise InvalidValue unless `value` can be encoded as JSON and respects the given limits.

    `max_string` is the maximum number of characters in a string. `depth` is the nesting depth of `value`.
    """
    match value:
        case str():
            _check_length(field, value, max_string)
        case None | int():
            pass
        case float():
            if not isfinite(value):
                raise InvalidValue(field, f"{value} is not allowed in JSON; use a finite number")
        case dict() | list() | tuple():
            if depth == max_depth:
                raise LimitExceeded(field, max_depth, depth + 1, "levels of nesting")
            for item in _children(field, cast("dict[object, object] | Sequence[object]", value), max_string):
                check_json(field, item, max_depth=max_depth, max_string=max_string, depth=depth + 1)
        case _:
            raise InvalidValue(field, f"type {type(value).__name__} cannot be encoded as JSON")


def _check_length(field: str, text: str, maximum: int | None) -> None:
    if maximum is not None and len(text) > maximum:
        raise LimitExceeded(field, maximum, len(text), "characters")


def _children(
    field: str, value: dict[object, object] | Sequence[object], max_string: int | None
) -> Iterable[object]:
    """Return the items of a container that must be checked.

    Without `max_string`, strings, integers, booleans and None are left out, because no check can reject them.
    """
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidValue(field, f"the keys of a JSON object must be strings, not {key!r}")
        value = [*value.values()]
    return value if max_string is not None else [item for item in value if type(item) not in _SCALARS]
