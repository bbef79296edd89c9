"""Encryption of what a task stores: AES-256-GCM, with a key for each task.

A ciphertext starts with the id of the master key, so that a reader without that key knows which one it lacks.
It is bound to its place: the same bytes in another task, call, field or version of the record cannot be
decrypted. It is not bound to a storage, so a copy of the storage can be read with the same keys.
"""

from __future__ import annotations

import binascii
import re
import secrets
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from .errors import InvalidValue, KeyMissing
from .owner import Owner

KEY_BYTES = 32
KEY_ID_BYTES = 4
NONCE_BYTES = 12
_KEY_ID = re.compile(rf"[0-9a-f]{{{2 * KEY_ID_BYTES}}}")
MAX_CACHED_KEYS = 1024
"""Maximum number of keys of tasks that a process keeps in memory."""

EncryptedPart: TypeAlias = Literal["credentials", "everything"]
"""What is encrypted: only the credentials of the caller, or everything that is not needed to list, schedule
and expire the task."""


class Undecryptable(Exception):
    """Raised when a ciphertext is damaged, or was moved here from another place."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The place of a ciphertext, to which it is bound."""

    application: str
    owner: Owner
    task_id: str
    call: str
    """A digest of what is called: the function, and for credentials its arguments too."""
    field: str
    generation: int
    """The version of the storage record. Each write of a task encrypts all of it again."""


def new_key() -> str:
    """Return a new random key, as text."""
    return urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode().rstrip("=")


def key_id_of(ciphertext: str) -> str:
    """Return the id of the key that encrypted a ciphertext."""
    return ciphertext.partition(".")[0]


class Keyring:
    """The master keys of a process. The first one encrypts; all of them decrypt."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        masters = [_parse(key, number) for number, key in enumerate(keys, 1)]
        self._masters = {_id_of(master): master for master in masters}
        if len(self._masters) != len(masters):
            raise InvalidValue("encryption_keys", "contains the same key twice")
        self.key_ids = tuple(self._masters)
        """The ids of the keys. They can be shown: they do not reveal the keys."""
        self.missing_key_ids: dict[str, set[str]] = {}
        """By application: the ids of keys that were needed to read a task, and that this process lacks."""
        self._cipher = lru_cache(maxsize=MAX_CACHED_KEYS)(self._new_cipher)

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self.key_ids)})"

    def __bool__(self) -> bool:
        return bool(self._masters)

    def encrypt(self, plain: bytes, place: Place) -> str:
        """Encrypt with the first key. Raise KeyMissing if there is none."""
        if not self.key_ids:
            raise KeyMissing(place.task_id)
        key_id, nonce = self.key_ids[0], secrets.token_bytes(NONCE_BYTES)
        encrypted = self._cipher(key_id, place.task_id).encrypt(nonce, plain, _associated_data(place))
        return f"{key_id}.{b64encode(nonce + encrypted).decode()}"

    def decrypt(self, ciphertext: str, place: Place) -> bytes:
        """Decrypt what was encrypted for this place.

        Raise KeyMissing if this process does not have the key, and Undecryptable if the ciphertext is damaged
        or belongs to another place.
        """
        key_id, _, text = ciphertext.partition(".")
        if not _KEY_ID.fullmatch(key_id):
            raise Undecryptable("its key id is damaged")
        if key_id not in self._masters:
            self.missing_key_ids.setdefault(place.application, set()).add(key_id)
            raise KeyMissing(place.task_id, key_id)
        try:
            raw = b64decode(text, validate=True)
            cipher = self._cipher(key_id, place.task_id)
            return cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], _associated_data(place))
        except (InvalidTag, ValueError) as error:  # binascii.Error is a ValueError
            raise Undecryptable("it is damaged, or belongs to another task or version") from error

    def _new_cipher(self, key_id: str, task_id: str) -> AESGCM:
        return AESGCM(_derive(self._masters[key_id], f"perdure task {task_id}"))


def _associated_data(place: Place) -> bytes:
    return b"perdure 1 " + msgspec.json.encode(place)


def _parse(key: object, number: int) -> bytes:
    """Return the bytes of a key. The error does not show the key."""
    try:
        master = urlsafe_b64decode(f"{key.strip()}=") if isinstance(key, str) else b""
    except (binascii.Error, ValueError):
        master = b""
    if len(master) != KEY_BYTES:
        raise InvalidValue(
            "encryption_keys", f"key {number} is not a key of perdure; make one with: perdure key"
        )
    return master


def _id_of(master: bytes) -> str:
    return _derive(master, "perdure key id")[:KEY_ID_BYTES].hex()


def _derive(master: bytes, purpose: str) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose.encode()).derive(master)
