"""Parses the options of an engine from the query string of a storage URL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec

from .errors import CannotOpen

T = TypeVar("T", bound=msgspec.Struct)


def parse_options(query: str, options: type[T], location: str, help_text: str) -> T:
    """Parse `query` into an `options` struct. If `query` is invalid, raise CannotOpen with `help_text`."""
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict"))
    except ValueError:  # not chained, because its message may contain a password
        raise CannotOpen(location, "the options must be written as NAME=VALUE", help_text) from None
    return convert_options(given, options, location, help_text)


def convert_options(given: Mapping[str, str], options: type[T], location: str, help_text: str) -> T:
    """Convert `given` to an `options` struct. If a value is invalid, raise CannotOpen with `help_text`."""
    known = {field.encode_name for field in msgspec.structs.fields(options)}
    unknown = [name for name in given if name not in known]
    if unknown and options.__struct_config__.forbid_unknown_fields:
        raise CannotOpen(location, f"unknown option {unknown[0]!r}", help_text)
    try:
        return msgspec.convert(given, options, strict=False)
    except ValueError as error:  # its message contains the name of the option, but not its value
        raise CannotOpen(location, str(error), help_text) from error
