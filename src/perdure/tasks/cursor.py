"""Cursors for paginated lists. A cursor contains a position in the list and a signature.

A cursor stays valid if the task at its position is deleted. The signature prevents clients from forging
cursors. It also covers the owner, the filter and the sort order, so a cursor is valid only for its own list.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

import msgspec

from ..storage.records_and_changes import Position
from . import canonical_json
from .errors import InvalidCursor

_SIGNATURE_BYTES = 16
_position_decoder = msgspec.json.Decoder(Position)


class CursorScope(msgspec.Struct, frozen=True, kw_only=True):
    """The list to which a cursor belongs: the partition of the owner, the filter and the sort order."""

    partition: str
    status: str | None
    method: str | None
    session_id: str | None
    newest_first: bool


def encode_cursor(position: Position, scope: CursorScope, key: bytes) -> str:
    payload = canonical_json.encode(position)
    return urlsafe_b64encode(_signature(payload, scope, key) + payload).decode()


def decode_cursor(cursor: str, scope: CursorScope, key: bytes) -> Position:
    try:
        signed = urlsafe_b64decode(cursor.encode("ascii"))
    except (AttributeError, ValueError) as error:
        raise InvalidCursor from error
    signature, payload = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, _signature(payload, scope, key)):
        raise InvalidCursor
    return _position_decoder.decode(payload)


def _signature(payload: bytes, scope: CursorScope, key: bytes) -> bytes:
    return hmac.digest(key, canonical_json.encode(scope) + b"\0" + payload, sha256)[:_SIGNATURE_BYTES]
