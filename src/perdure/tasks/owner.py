"""The owner of a task, and the storage partition that contains the tasks of an owner.

The owner is a user or a client (usually named by a verified token), a session, the single local user, or
anonymous. perdure never reads the owner from the parameters of a request.

The names in an owner can contain any character. Separators are escaped, so different owners or
applications never share a partition.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import msgspec

from ..storage.limits import MAX_PARTITION_BYTES
from .application_name import MAX_APPLICATION_BYTES, escape_application
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
        for name in (self.kind, self.issuer, self.subject):
            if type(name) is not str:  # checked first, because `_partition_name` requires a hashable owner
                reason = f"kind, issuer and subject must be str, not {type(name).__name__}"
                raise InvalidValue("owner", reason)
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
        """Return the owner for a session.

        It is used by servers that have no authentication and bind tasks to sessions.
        """
        return cls("session", "", _required("session_id", session_id))

    @classmethod
    def local(cls) -> Owner:
        """Return the owner for the single user of a stdio server or of a local program."""
        return cls("local")

    @classmethod
    def anonymous(cls) -> Owner:
        """Return the owner of all anonymous tasks.

        Each of these tasks has its own partition and a secret id.
        """
        return cls("anonymous")

    @property
    def is_anonymous(self) -> bool:
        return self.kind == "anonymous"

    @property
    def digest(self) -> str:
        """A short hash that identifies the owner in logs and traces, where its name must not appear."""
        return hashlib.blake2b(_partition_name(self).encode(), digest_size=6).hexdigest()


def partition_of(application: str, owner: Owner, task_id: str) -> str:
    """Return the name of the partition that contains this task.

    `task_id` matters only for anonymous owners.
    """
    name = f"anonymous::{task_id}" if owner.is_anonymous else _partition_name(owner)
    return f"{escape_application(application)}:{name}"


@lru_cache(maxsize=4096)  # it is called for every read of a task
def _partition_name(owner: Owner) -> str:
    """Return the part of a partition name that identifies the owner.

    Raise InvalidValue if the owner is invalid, and LimitExceeded if the result is too long.
    """
    if owner.kind not in get_args(OwnerKind):
        kinds = ", ".join(get_args(OwnerKind))
        raise InvalidValue("owner", f"unknown kind {owner.kind!r}; use one of: {kinds}")
    for text in (owner.issuer, owner.subject):
        check_text("owner", text)
    name = f"{owner.kind}:{owner.issuer.translate(_ESCAPES)}:{owner.subject.translate(_ESCAPES)}"
    check_size("owner", name.encode(), MAX_OWNER_BYTES)
    return name


def _required(field: str, name: str) -> str:
    if not name:
        raise InvalidValue(field, "must not be empty")
    return name
