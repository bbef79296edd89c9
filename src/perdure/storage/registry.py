"""The registry of engines. The scheme of a URL selects an engine, whose module is imported on first use."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import cast

import msgspec

from .contract import Engine
from .errors import MissingExtra, UnknownScheme
from .install_advice import install_extra
from .storage import Storage

_REDIS_SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
_SECRET_URL = re.compile(r"(?P<scheme>[^:/?@]+:)//(?:[^/?@]*@)?(?P<place>[^?@]*)(?:\?[^@]*)?")

_OWN_EXTRA = re.compile(r"perdure\[(?P<extra>[^]]+)\]")


class _EngineEntry(msgspec.Struct, frozen=True):
    module: str
    function: str
    package: str
    migrator: str | None = None
    exists: str | None = None
    is_shared: bool = True


_POSTGRES = _EngineEntry("perdure.storage.postgres", "open_engine", "perdure[postgres]", "migrate")
_engines: dict[str, _EngineEntry] = {
    "memory": _EngineEntry("perdure.storage.memory", "open_engine", "perdure", is_shared=False),
    "sqlite": _EngineEntry("perdure.storage.sqlite", "open_engine", "perdure", exists="file_exists"),
    "postgres": _POSTGRES,
    "postgresql": _POSTGRES,
    **dict.fromkeys(_REDIS_SCHEMES, _EngineEntry("perdure.storage.redis", "open_engine", "perdure[redis]")),
    "dynamodb": _EngineEntry("perdure.storage.dynamodb", "open_engine", "perdure[dynamodb]", "migrate"),
}


def register_engine(
    scheme: str,
    opener: str,
    *,
    package: str,
    migrator: str | None = None,
    exists: str | None = None,
    is_shared: bool = True,
) -> None:
    """Register a custom engine for URLs whose scheme is `scheme`.

    `opener` has the form `"package.module:function"` and is imported when it is first used. If a module is
    missing, the error message recommends `pip install <package>`. Set `is_shared` to False if each process
    has its own records.

    `migrator` and `exists` are the names of optional functions in the same module. `async def migrate(url)`
    creates or migrates the tables. It is needed if opening the engine does not do so.
    `def exists(url) -> bool` returns whether the file exists. It is needed if opening the engine creates a
    missing file.
    """
    module, _, function = opener.partition(":")
    _engines[scheme] = _EngineEntry(module, function, package, migrator, exists, is_shared)


async def open_storage(url: str) -> Storage:
    """Open the storage at a URL, such as `sqlite:///a.db`, `postgresql://...`, `redis://...` or `memory:`."""
    entry = _entry_for(url)
    return Storage(await cast("Callable[[str], Awaitable[Engine]]", _load(url, entry, entry.function))(url))


async def migrate_storage(url: str) -> None:
    """Create the tables of a storage, or migrate them to the newest schema.

    An engine without a migration function is opened and closed, because opening it creates or migrates its
    tables.
    """
    entry = _entry_for(url)
    if entry.migrator is None:
        await (await open_storage(url)).close()
    else:
        await cast("Callable[[str], Awaitable[None]]", _load(url, entry, entry.migrator))(url)


def is_shared_storage(url: str) -> bool:
    """Return whether another process that opens this URL, now or later, sees the same records."""
    return _entry_for(url).is_shared


def storage_exists(url: str) -> bool:
    """Return False if opening this URL would create a new file, otherwise True. No server is contacted."""
    entry = _entry_for(url)
    if entry.exists is None:
        return True
    return cast("Callable[[str], bool]", _load(url, entry, entry.exists))(url)


def _entry_for(url: str) -> _EngineEntry:
    scheme, colon, _ = url.partition(":")
    entry = _engines.get(scheme) if colon else None
    if entry is not None:
        return entry
    redacted = redact_url(url)
    if url == redacted and not colon and url not in {"", *_engines}:  # most likely the name of a file
        raise UnknownScheme(url, "unknown URL scheme", f"for a SQLite file, use sqlite:///{url}")
    schemes = ", ".join(sorted(_engines))
    raise UnknownScheme(redacted, "unknown URL scheme", f"use one of these schemes: {schemes}")


def _load(url: str, entry: _EngineEntry, function: str) -> object:
    try:
        return getattr(import_module(entry.module), function)
    except ModuleNotFoundError as error:
        reason = f"the module {error.name} is not installed"
        own = _OWN_EXTRA.fullmatch(entry.package)
        advice = f"run: pip install '{entry.package}'" if own is None else install_extra(own["extra"])
        raise MissingExtra(redact_url(url), reason, advice) from error


def redact_url(url: str) -> str:
    """Return `url` for messages, without user, password and query parameters.

    If it is not clear where a password would end, return only the scheme.
    """
    if "@" not in url and "?" not in url:
        return url
    found = _SECRET_URL.fullmatch(url)
    return f"{url.partition(':')[0]}:..." if found is None else f"{found['scheme']}//{found['place']}"
