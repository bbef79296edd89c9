"""The application of a task: the server or program to which the task belongs.

Several applications can share a storage. The name of the application is part of the partitions and lanes of
its tasks, so a process of one application never reads, runs or recovers the tasks of another.
"""

from __future__ import annotations

from functools import lru_cache
from unicodedata import is_normalized

from .canonical_json import check_size, check_text
from .errors import InvalidValue

MAX_APPLICATION_BYTES = 100
"""Maximum size of an escaped name. Each of the characters `%`, `:` and `/` takes 3 bytes."""

_ESCAPES = str.maketrans({"%": "%25", ":": "%3A", "/": "%2F"})


@lru_cache(maxsize=1024)  # every read of a task needs it
def escape_application(name: str) -> str:
    """Return the name as it appears in partitions and lanes, without their separators.

    Raise InvalidValue if the name is empty or too long, or if it could be confused with another name: it
    must be printable, normalized (NFC), and without spaces at its start and end.
    """
    check_text("application", name)
    if not name or name != name.strip() or not name.isprintable() or not is_normalized("NFC", name):
        raise InvalidValue(
            "application", f"must be a printable name without spaces at its start and end, not {name!r:.120}"
        )
    escaped = name.translate(_ESCAPES)
    check_size("application", escaped.encode(), MAX_APPLICATION_BYTES)
    return escaped


def application_of(partition: str) -> str:
    """Return the application to which a partition belongs."""
    escaped = partition.partition(":")[0]
    return escaped.replace("%2F", "/").replace("%3A", ":").replace("%25", "%")
