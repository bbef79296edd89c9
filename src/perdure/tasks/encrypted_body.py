"""Encrypts and decrypts bodies of stored tasks.

The body of an encrypted task has a field `ciphertexts`. Each ciphertext contains some of the other fields:
`credentials` those of the caller, `contents` all fields that are not needed to list, schedule and expire the
task. The fields that remain readable are the head of the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import msgspec
from msgspec import Raw

from ..storage.errors import NewerFormat
from . import canonical_json
from .encryption import Keyring, Place, Undecryptable, key_id_of
from .errors import CorruptRecord, KeyMissing
from .task_record import TaskRecord

CREDENTIALS = "credentials"
CONTENTS = "contents"
CIPHERTEXTS = "ciphertexts"

READABLE_FIELDS = frozenset(
    {
        "format",
        "task_id",
        "application",
        "owner",
        "session_id",
        "status",
        "created_at",
        "last_updated_at",
        "ttl",
        "retention",
        "poll_interval",
        "original_method",
        "finished_at",
        "client_can",
        "operators_answer",
        "cancel_requested_at",
        "function",
        "held",
        "run_at",
        "released_at",
        "attempts",
        "failures",
        "interruptions",
        "idempotency_key",
        "attended_by",
        "credentials_omitted",
        "encrypted",
    }
)
"""The stored fields that are never encrypted. A field that is not in this set is part of the contents."""

_HIDDEN_FIELDS = (
    frozenset(field.encode_name for field in msgspec.structs.fields(TaskRecord))
    - READABLE_FIELDS
    - {CIPHERTEXTS}
)
_decoder = msgspec.json.Decoder(dict[str, Raw])


def encrypt_body(task: TaskRecord, body: bytes, generation: int, keys: Keyring) -> bytes:
    """Return the body with the fields encrypted that must not be stored in plain text.

    `generation` is the version that the storage record will have. Raise KeyMissing if there is no key.
    """
    fields, ciphertexts = _decoder.decode(body), dict[str, str]()
    if CREDENTIALS in fields:  # first, because they are bound to arguments that are encrypted next
        hidden = {CREDENTIALS: fields.pop(CREDENTIALS)}
        place = _place(task, CREDENTIALS, fields, generation)
        ciphertexts[CREDENTIALS] = keys.encrypt(canonical_json.encode(hidden), place)
    if task.is_encrypted:
        hidden = {name: fields.pop(name) for name in fields.keys() - READABLE_FIELDS}
        place = _place(task, CONTENTS, fields, generation)
        ciphertexts[CONTENTS] = keys.encrypt(canonical_json.encode(hidden), place)
    return canonical_json.encode({**fields, CIPHERTEXTS: ciphertexts})


def decrypt_body(head: TaskRecord, body: str, generation: int, keys: Keyring) -> str:
    """Return the body with all fields. `head` is the task as it is readable without a key.

    Raise KeyMissing if this process does not have the key, and CorruptRecord if the body was tampered with.
    """
    fields = _decoder.decode(body)
    _check_head(head, fields)
    del fields[CIPHERTEXTS]
    for part in (CONTENTS, CREDENTIALS):
        ciphertext = head.ciphertexts.get(part)
        if ciphertext is None:
            continue
        try:
            fields |= _decoder.decode(keys.decrypt(ciphertext, _place(head, part, fields, generation)))
        except Undecryptable as error:
            raise CorruptRecord(head.task_id, f"the ciphertext of its {part} is invalid: {error}") from error
    return canonical_json.encode(fields).decode()


def _check_head(head: TaskRecord, fields: Mapping[str, Raw]) -> None:
    """Raise CorruptRecord if a field is stored in plain text that is only ever stored encrypted.

    Raise NewerFormat if the task has a ciphertext that only a newer version of perdure understands.
    """
    for part in head.ciphertexts.keys() - {CONTENTS, CREDENTIALS}:
        raise NewerFormat(head.task_id, f"this version of perdure does not know the ciphertext {part!r}")
    hidden = _HIDDEN_FIELDS if head.is_encrypted else {CREDENTIALS}
    if head.is_encrypted is not (CONTENTS in head.ciphertexts) or fields.keys() & hidden:
        raise CorruptRecord(head.task_id, "a field that must be encrypted is stored in plain text")


def key_ids(head: TaskRecord) -> frozenset[str]:
    """Return the ids of the keys that are needed to read a task; none if it is not encrypted."""
    return frozenset(key_id_of(ciphertext) for ciphertext in head.ciphertexts.values())


def key_missing(head: TaskRecord) -> KeyMissing:
    """Return the error for a task of which only the head was read."""
    return KeyMissing(head.task_id, ", ".join(sorted(key_ids(head))))


def _place(task: TaskRecord, part: str, fields: Mapping[str, Raw], generation: int) -> Place:
    """Return the place of a ciphertext. `fields` are those that are readable before it is decrypted."""
    return Place(
        application=task.application,
        owner=task.owner,
        task_id=task.task_id,
        call=_call_digest(fields),
        field=part,
        generation=generation,
    )


def _call_digest(fields: Mapping[str, Raw]) -> str:
    """Return a digest of what is called, so that no credentials are used for another call."""
    digest = blake2b(digest_size=16)
    for name in ("original_method", "function", "original_params"):
        value = memoryview(fields.get(name, Raw(b"")))
        digest.update(len(value).to_bytes(8))
        digest.update(value)
    return digest.hexdigest()
