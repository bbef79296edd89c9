"""The storage that a command was told to work with: whether it is one, and how it is named to people."""

from __future__ import annotations

import re

from ..storage import exists, is_shared
from .ending import CannotDo

_PLACE = re.compile(r"(?P<scheme>[^:/?@]+:)//(?:[^/?@]*@)?(?P<place>[^?@]*)(?:\?[^@]*)?")


def shown(url: str) -> str:
    """A URL without user, password and options; without anything but its scheme, where it is not plain which
    part is a password.
    """
    found = _PLACE.fullmatch(url)
    return f"{url.partition(':')[0]}:..." if found is None else f"{found['scheme']}//{found['place']}"


def check_shared(url: str, *, by: str = "") -> None:
    """Refuse records that are gone with the process. `by` says how a storage is named to the command."""
    if not is_shared(url):
        scheme = url.partition(":")[0]
        raise CannotDo(f"the storage {scheme}: is within one process; name a file or a server{by}")


def check_there(url: str, *, remedy: str) -> None:
    """Refuse what opening would make: a file that is not there yet, or whose name is misspelt."""
    if not exists(url):
        raise CannotDo(f"there is no storage {shown(url)}; {remedy}")
