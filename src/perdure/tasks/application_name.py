"""The application of a task: the server or program to which the task belongs.

Several applications can share a storage. The tasks of each application have their own partitions (groups of
records) and lanes (timer queues), which contain its name. The clients and workers of one application
therefore cannot access, run or recover the tasks of another one.
"""

from __future__ import annotations

from functools import lru_cache
from unicodedata import is_normalized

from .canonical_json import check_size, check_text
from .errors import InvalidValue

MAX_APPLICATION_BYTES = 100
"""Maximum size of an escaped name, in which each `%`, `:` and `/` takes 3 bytes."""

_ESCAPES = str.maketrans({"%": "%25", ":": "%3A", "/": "%2F"})


@lru_cache(maxsize=1024)  # it is called for every read of a task
def escape_application(name: str) -> str:
    """Return the name with `%`, `:` and `/` escaped, for use in the names of partitions and lanes.

    Raise InvalidValue if the name is empty or too long, or if users could confuse it with another name: if it
    is not printable, is not normalized (NFC), or starts or ends with a space.
    """
    check_text("application", name)
    if not name or name != name.strip() or not name.isprintable() or not is_normalized("NFC", name):
        raise InvalidValue(
            "application",
            "must be a non-empty printable name in Unicode normal form NFC, without spaces at its start or "
            f"end, not {name!r:.120}",
        )
    escaped = name.translate(_ESCAPES)
    check_size("application", escaped.encode(), MAX_APPLICATION_BYTES)
    return escaped


def application_of(partition: str) -> str:
    """Return the application of the tasks in a partition, from the name of the partition."""
    escaped = partition.partition(":")[0]
    return escaped.replace("%2F", "/").replace("%3A", ":").replace("%25", "%")
