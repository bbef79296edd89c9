"""Encrypts the fields of tasks with AES-256-GCM. Each task has its own key, derived from a master key.

A ciphertext starts with the id of its master key, so a process that lacks the key can report which key it
needs. A ciphertext is bound to its place, which is one field in one version of one task: it cannot be
decrypted anywhere else. It is not bound to one storage, so a copy of the storage can be read with the same
keys.
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
"""Maximum number of task keys that a keyring caches."""

EncryptedPart: TypeAlias = Literal["credentials", "everything"]
"""What is encrypted: only the credentials of the caller, or all fields except those needed to list, schedule
and expire the task."""


class Undecryptable(Exception):
    """Raised when a ciphertext is damaged, or was created for another task, call, field or version."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The place of a ciphertext: the task, call, field and version for which it was created."""

    application: str
    owner: Owner
    task_id: str
    call: str
    """A digest of the method and the function of the call. For credentials, it also covers the parameters."""
    field: str
    version: int
    """The version of the storage record. Each write of a task increases it, and encrypts the fields again."""


def new_key() -> str:
    """Return a new random master key, as text."""
    return urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode().rstrip("=")


def key_id_of(ciphertext: str) -> str:
    """Return the id of the master key with which a ciphertext was created."""
    return ciphertext.partition(".")[0]


class Keyring:
    """The master keys of a process. The first key encrypts. Each key decrypts what it has encrypted."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        masters = [_parse(key, number) for number, key in enumerate(keys, 1)]
        self._masters = {_id_of(master): master for master in masters}
        if len(self._masters) != len(masters):
            raise InvalidValue("encryption_keys", "contains the same key twice")
        self.key_ids = tuple(self._masters)
        """The ids of the keys. They are not secret, because they do not reveal the keys."""
        self.missing_keys: dict[str, dict[str, Place]] = {}
        """Keys that this process needed but does not have. Maps each application to a dict from key id to the
        `Place` of one ciphertext that needs the key."""
        self._cipher = lru_cache(maxsize=MAX_CACHED_KEYS)(self._new_cipher)

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self.key_ids)})"

    def __bool__(self) -> bool:
        return bool(self._masters)

    def encrypt(self, plain: bytes, place: Place) -> str:
        """Return `plain`, encrypted for `place` with the first key. Raise KeyMissing if there are no keys."""
        if not self.key_ids:
            raise KeyMissing(place.task_id)
        key_id, nonce = self.key_ids[0], secrets.token_bytes(NONCE_BYTES)
        encrypted = self._cipher(key_id, place.task_id).encrypt(nonce, plain, _associated_data(place))
        return f"{key_id}.{b64encode(nonce + encrypted).decode()}"

    def decrypt(self, ciphertext: str, place: Place) -> bytes:
        """Decrypt a ciphertext that was created for `place`.

        Raise KeyMissing if this process does not have the key, and Undecryptable if the ciphertext is damaged
        or belongs to another place.
        """
        key_id, _, text = ciphertext.partition(".")
        if not _KEY_ID.fullmatch(key_id):
            raise Undecryptable("the key id is damaged")
        if key_id not in self._masters:
            self.missing_keys.setdefault(place.application, {})[key_id] = place
            raise KeyMissing(place.task_id, key_id)
        try:
            raw = b64decode(text, validate=True)
            cipher = self._cipher(key_id, place.task_id)
            return cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], _associated_data(place))
        except (InvalidTag, ValueError) as error:  # binascii.Error is a ValueError
            reason = "it is damaged, or was created for another task, call, field or version"
            raise Undecryptable(reason) from error

    def _new_cipher(self, key_id: str, task_id: str) -> AESGCM:
        return AESGCM(_derive(self._masters[key_id], f"perdure task {task_id}"))


def _associated_data(place: Place) -> bytes:
    return b"perdure 1 " + msgspec.json.encode(place)


def _parse(key: object, number: int) -> bytes:
    """Return the bytes of a key.

    Raise InvalidValue if it is invalid; the message does not contain the key.
    """
    try:
        master = urlsafe_b64decode(f"{key.strip()}=") if isinstance(key, str) else b""
    except (binascii.Error, ValueError):
        master = b""
    if len(master) != KEY_BYTES:
        raise InvalidValue(
            "encryption_keys", f"key {number} is not a valid perdure key; make one with: perdure key"
        )
    return master


def _id_of(master: bytes) -> str:
    return _derive(master, "perdure key id")[:KEY_ID_BYTES].hex()


def _derive(master: bytes, purpose: str) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose.encode()).derive(master)
