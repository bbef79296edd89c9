"""The owner of a task, and the storage partition that contains the tasks of an owner.

The owner of a task always comes from the authenticated request. Its name can contain any character:
separators are escaped, so two different owners never share a partition. Nor do two applications.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import msgspec

from ..storage.limits import MAX_PARTITION_BYTES
from .application import MAX_APPLICATION_BYTES, escape_application
from .canonical_json import check_size, check_text
from .errors import InvalidValue

OwnerKind: TypeAlias = Literal["user", "client", "session", "local", "anonymous"]

MAX_OWNER_BYTES = MAX_PARTITION_BYTES - MAX_APPLICATION_BYTES - len(":")

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
        """Return the owner for the user who is the subject of a verified token."""
        return cls("user", issuer, _required("subject", subject))

    @classmethod
    def client(cls, issuer: str, client_id: str) -> Owner:
        """Return the owner for the client of a verified token that has no subject."""
        return cls("client", issuer, _required("client_id", client_id))

    @classmethod
    def session(cls, session_id: str) -> Owner:
        """Return the owner for a session, for servers without authentication that bind tasks to sessions."""
        return cls("session", "", _required("session_id", session_id))

    @classmethod
    def local(cls) -> Owner:
        """Return the owner for the single user of a stdio server."""
        return cls("local")

    @classmethod
    def anonymous(cls) -> Owner:
        """Return the anonymous owner. Each anonymous task has its own partition and a secret id."""
        return cls("anonymous")

    @property
    def is_anonymous(self) -> bool:
        return self.kind == "anonymous"

    @property
    def digest(self) -> str:
        """A hash that identifies the owner in logs and traces without revealing the owner's name."""
        return hashlib.blake2b(_partition_name(self).encode(), digest_size=6).hexdigest()


def partition_of(application: str, owner: Owner, task_id: str) -> str:
    """Return the name of the partition in which the owner's task is stored."""
    name = f"anonymous::{task_id}" if owner.is_anonymous else _partition_name(owner)
    return f"{escape_application(application)}:{name}"


@lru_cache(maxsize=4096)  # every read of a task needs it
def _partition_name(owner: Owner) -> str:
    """Return the name of an owner within an application. Raise LimitExceeded if it is too long."""
    name = f"{owner.kind}:{owner.issuer.translate(_ESCAPES)}:{owner.subject.translate(_ESCAPES)}"
    check_size("owner", name.encode(), MAX_OWNER_BYTES)
    return name


def _required(field: str, name: str) -> str:
    if not name:
        raise InvalidValue(field, "must not be empty")
    return name
