"""Encrypts and decrypts the bodies of stored tasks.

The body of an encrypted task has a field `ciphertexts`, which replaces the encrypted fields. This field has
up to two entries. The ciphertext `credentials` contains the credentials of the caller. The ciphertext
`contents` contains all other fields except those needed to list, schedule and expire the task. The fields
that remain readable are called the head of the task.
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
"""The fields that are never encrypted. If the store encrypts `everything` and not only the `credentials`, the
ciphertext `contents` contains all other fields. The credentials have a ciphertext of their own."""

_HIDDEN_FIELDS = (
    frozenset(field.encode_name for field in msgspec.structs.fields(TaskRecord))
    - READABLE_FIELDS
    - {CIPHERTEXTS}
)
_decoder = msgspec.json.Decoder(dict[str, Raw])


def encrypt_body(task: TaskRecord, body: bytes, version: int, keys: Keyring) -> bytes:
    """Encrypt the fields of `body` that must not be stored in plain text, and return the new body.

    `version` is that of the storage record that will contain the body. Raise KeyMissing if there is no key.
    """
    fields, ciphertexts = _decoder.decode(body), dict[str, str]()
    if CREDENTIALS in fields:  # first, because they are bound to the parameters, which are encrypted next
        hidden = {CREDENTIALS: fields.pop(CREDENTIALS)}
        place = _place(task, CREDENTIALS, fields, version)
        ciphertexts[CREDENTIALS] = keys.encrypt(canonical_json.encode(hidden), place)
    if task.is_encrypted:
        hidden = {name: fields.pop(name) for name in fields.keys() - READABLE_FIELDS}
        place = _place(task, CONTENTS, fields, version)
        ciphertexts[CONTENTS] = keys.encrypt(canonical_json.encode(hidden), place)
    return canonical_json.encode({**fields, CIPHERTEXTS: ciphertexts})


def decrypt_body(head: TaskRecord, body: str, version: int, keys: Keyring) -> str:
    """Return the body with all fields decrypted. `head` is the task decoded from `body` before decryption.

    Raise KeyMissing if this process does not have the key, CorruptRecord if the body is damaged or was
    tampered with, and NewerFormat if only a newer version of perdure can decrypt it.
    """
    fields = _decoder.decode(body)
    _check_head(head, fields)
    del fields[CIPHERTEXTS]
    for part in (CONTENTS, CREDENTIALS):
        ciphertext = head.ciphertexts.get(part)
        if ciphertext is None:
            continue
        try:
            fields |= _decoder.decode(keys.decrypt(ciphertext, _place(head, part, fields, version)))
        except Undecryptable as error:
            raise CorruptRecord(head.task_id, f"the ciphertext of its {part} is invalid: {error}") from error
    return canonical_json.encode(fields).decode()


def _check_head(head: TaskRecord, fields: Mapping[str, Raw]) -> None:
    """Raise CorruptRecord if a field that must be encrypted is stored in plain text.

    Also raise it if `is_encrypted` is set but the encrypted contents are missing, or the other way round.
    Raise NewerFormat if the task has an encrypted part that this version of perdure does not support.
    """
    for part in head.ciphertexts.keys() - {CONTENTS, CREDENTIALS}:
        reason = f"it has an encrypted part {part!r}, which this version of perdure does not support"
        raise NewerFormat(head.task_id, reason)
    hidden = _HIDDEN_FIELDS if head.is_encrypted else {CREDENTIALS}
    if fields.keys() & hidden:
        raise CorruptRecord(head.task_id, "a field that must be encrypted is stored in plain text")
    if head.is_encrypted and CONTENTS not in head.ciphertexts:
        raise CorruptRecord(head.task_id, "it is marked as encrypted but has no encrypted contents")
    if not head.is_encrypted and CONTENTS in head.ciphertexts:
        raise CorruptRecord(head.task_id, "it has encrypted contents but is not marked as encrypted")


def key_ids(head: TaskRecord) -> frozenset[str]:
    """Return the ids of the keys that are needed to decrypt a task.

    Return an empty set if it is not encrypted.
    """
    return frozenset(key_id_of(ciphertext) for ciphertext in head.ciphertexts.values())


def key_missing(head: TaskRecord) -> KeyMissing:
    """Return a KeyMissing error that lists the ids of all keys needed to decrypt this task."""
    return KeyMissing(head.task_id, ", ".join(sorted(key_ids(head))))


def _place(task: TaskRecord, part: str, fields: Mapping[str, Raw], version: int) -> Place:
    """Return the place of a ciphertext.

    `fields` are the fields that can be read without decrypting this ciphertext.
    """
    return Place(
        application=task.application,
        owner=task.owner,
        task_id=task.task_id,
        call=_call_digest(fields),
        field=part,
        version=version,
    )


def _call_digest(fields: Mapping[str, Raw]) -> str:
    """Return a digest of the call.

    The ciphertext of the credentials is bound to this digest, so it cannot be used for a different call.
    """
    digest = blake2b(digest_size=16)
    for name in ("original_method", "function", "original_params"):
        value = memoryview(fields.get(name, Raw(b"")))
        digest.update(len(value).to_bytes(8))
        digest.update(value)
    return digest.hexdigest()
