"""The owner of a task, and the storage partition that is derived from it.

An owner is taken only from the authenticated request. It can contain any character: separators are escaped,
so that no two owners share a partition and no partition is a prefix of another.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import msgspec

from ..storage.limits import MAX_PARTITION_BYTES
from .canonical_json import check_size, check_text
from .errors import InvalidValue

OwnerKind: TypeAlias = Literal["user", "client", "session", "local", "anonymous"]

_ESCAPES = str.maketrans({"%": "%25", ":": "%3A", "\0": "%00"})


class Owner(msgspec.Struct, frozen=True):
    """The owner of a task. Create one with `user`, `client`, `session`, `local` or `anonymous`."""

    kind: OwnerKind
    issuer: str = ""
    subject: str = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(OwnerKind):
            raise InvalidValue("owner", f"unknown kind {self.kind!r}; use {', '.join(get_args(OwnerKind))}")
        for name in (self.issuer, self.subject):
            check_text("owner", name)
        _partition_name(self)

    @classmethod
    def user(cls, issuer: str, subject: str) -> Owner:
        """Return the owner for the subject of a verified token."""
        return cls("user", issuer, _required("subject", subject))

    @classmethod
    def client(cls, issuer: str, client_id: str) -> Owner:
        """Return the owner for the client of a verified token without a subject."""
        return cls("client", issuer, _required("client_id", client_id))

    @classmethod
    def session(cls, session_id: str) -> Owner:
        """Return the owner for a session, on a server without authentication that binds tasks to sessions."""
        return cls("session", "", _required("session_id", session_id))

    @classmethod
    def local(cls) -> Owner:
        """Return the owner for the only user of a stdio server."""
        return cls("local")

    @classmethod
    def anonymous(cls) -> Owner:
        """Return the anonymous owner. Each of its tasks is in its own partition, protected by the task id."""
        return cls("anonymous")

    @property
    def is_anonymous(self) -> bool:
        return self.kind == "anonymous"

    @property
    def digest(self) -> str:
        """A hash that identifies the owner in logs and traces without revealing it."""
        return hashlib.blake2b(_partition_name(self).encode(), digest_size=6).hexdigest()


def partition_of(owner: Owner, task_id: str) -> str:
    """Return the partition that stores this task of this owner."""
    return f"anonymous::{task_id}" if owner.is_anonymous else _partition_name(owner)


@lru_cache(maxsize=4096)  # needed whenever a task is read
def _partition_name(owner: Owner) -> str:
    """Return the partition of a named owner. Raise LimitExceeded if it is longer than 512 bytes."""
    name = f"{owner.kind}:{owner.issuer.translate(_ESCAPES)}:{owner.subject.translate(_ESCAPES)}"
    check_size("owner", name.encode(), MAX_PARTITION_BYTES)
    return name


def _required(field: str, name: str) -> str:
    if not name:
        raise InvalidValue(field, "must not be empty")
    return name
