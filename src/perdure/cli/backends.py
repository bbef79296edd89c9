"""The URL of a storage: how it is shown, and whether a command can work with what it names."""

from __future__ import annotations

import re

from ..storage import exists, is_shared
from .errors import CannotDo

_PLACE = re.compile(r"(?P<scheme>[^:/?@]+:)//(?:[^/?@]*@)?(?P<place>[^?@]*)(?:\?[^@]*)?")
NAME_IT = "name yours with --url or PERDURE_URL"


def shown(url: str) -> str:
    """Return a URL without user, password and options; if it is not clear which part is the password, only
    its scheme.
    """
    found = _PLACE.fullmatch(url)
    return f"{url.partition(':')[0]}:..." if found is None else f"{found['scheme']}//{found['place']}"


def check_shared(url: str) -> None:
    """Refuse a storage whose records end with the process."""
    if not is_shared(url):
        scheme = url.partition(":")[0]
        raise CannotDo(f"{scheme}: storage is private to one process; use a file or a server")


def check_exists(url: str, *, remedy: str = NAME_IT) -> None:
    """Refuse a storage that opening would create: its name may be misspelt."""
    check_shared(url)
    if not exists(url):
        raise CannotDo(f"storage not found: {shown(url)}; {remedy}")
