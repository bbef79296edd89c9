"""Who a task belongs to, and the storage partition that follows from it.

An owner comes from the authenticated request alone. Any character is legal in it: the encoding escapes what
it uses itself, so that no two owners share a partition and none is a prefix of another's.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import msgspec

from ..storage.limits import MAX_PARTITION_BYTES
from . import codec
from .errors import InvalidValue

OwnerKind: TypeAlias = Literal["user", "client", "session", "local", "anonymous"]

_ESCAPES = str.maketrans({"%": "%25", ":": "%3A", "\0": "%00"})


class Owner(msgspec.Struct, frozen=True):
    """Use the constructors below."""

    kind: OwnerKind
    issuer: str = ""
    subject: str = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(OwnerKind):
            raise InvalidValue("owner", f"is of no kind that there is: {self.kind!r}")
        for name in (self.issuer, self.subject):
            codec.check_text("owner", name)
        _partition_name(self)

    @classmethod
    def user(cls, issuer: str, subject: str) -> Owner:
        """The subject of a verified token."""
        return cls("user", issuer, _required("subject", subject))

    @classmethod
    def client(cls, issuer: str, client_id: str) -> Owner:
        """The client of a verified token that has no subject."""
        return cls("client", issuer, _required("client_id", client_id))

    @classmethod
    def session(cls, session_id: str) -> Owner:
        """A session, where a server without authentication chose to bind tasks to it."""
        return cls("session", "", _required("session_id", session_id))

    @classmethod
    def local(cls) -> Owner:
        """The one user of a stdio server."""
        return cls("local")

    @classmethod
    def anonymous(cls) -> Owner:
        """Anybody. Each task is a partition of its own, and its id the key to it."""
        return cls("anonymous")

    @property
    def is_anonymous(self) -> bool:
        return self.kind == "anonymous"

    @property
    def digest(self) -> str:
        """Names the owner in logs and traces without saying who it is."""
        return hashlib.blake2b(_partition_name(self).encode(), digest_size=6).hexdigest()


def partition_of(owner: Owner, task_id: str) -> str:
    """Where this owner's task of this id stands."""
    return f"anonymous::{task_id}" if owner.is_anonymous else _partition_name(owner)


@lru_cache(maxsize=4096)  # an owner is encoded whenever one of its tasks is read
def _partition_name(owner: Owner) -> str:
    """The owner as a name of at most 512 bytes, or an error that says why not."""
    name = f"{owner.kind}:{owner.issuer.translate(_ESCAPES)}:{owner.subject.translate(_ESCAPES)}"
    codec.check_size("owner", name.encode(), MAX_PARTITION_BYTES)
    return name


def _required(field: str, name: str) -> str:
    if not name:
        raise InvalidValue(field, "is empty, so it tells nobody apart")
    return name
