"""`open_storage(url)`: the URL's scheme picks the engine, whose module is imported only then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Protocol, cast

import msgspec

from .contract import Engine
from .errors import MissingExtra, UnknownScheme
from .port import Storage


class OpenEngine(Protocol):
    """What an engine offers to be opened by: `async def open_engine(url)` in some module."""

    async def __call__(self, url: str) -> Engine: ...


class _Known(msgspec.Struct, frozen=True):
    module: str
    function: str
    install: str
    migrator: str | None = None
    existing: str | None = None
    is_shared: bool = True


_POSTGRES = _Known("perdure.storage.postgres", "open_engine", "perdure[postgres]", "migrate")
_REDIS = _Known("perdure.storage.redis", "open_engine", "perdure[redis]")
_known: dict[str, _Known] = {
    "memory": _Known("perdure.storage.memory", "open_engine", "perdure", is_shared=False),
    "sqlite": _Known("perdure.storage.sqlite", "open_engine", "perdure", existing="exists"),
    "postgres": _POSTGRES,
    "postgresql": _POSTGRES,
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+cluster": _REDIS,
    "rediss+cluster": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+sentinel": _REDIS,
    "dynamodb": _Known("perdure.storage.dynamodb", "open_engine", "perdure[dynamodb]", "migrate"),
}


def register_engine(
    scheme: str,
    opener: str,
    *,
    install: str,
    migrator: str | None = None,
    existing: str | None = None,
    is_shared: bool = True,
) -> None:
    """Let URLs of this scheme open an engine of your own.

    `opener` is `"package.module:function"`, imported at the first use; `install` is what `pip install`
    must be told where that module, or something it imports, is not there. Two more may name a function of the
    same module: `migrator`, where tables are to be made by hand (`async def migrate(url)`), and `existing`,
    where opening makes what is not there yet (`def exists(url) -> bool`). `is_shared` is False where each
    process has records of its own.
    """
    module, _, function = opener.partition(":")
    _known[scheme] = _Known(module, function, install, migrator, existing, is_shared)


async def open_storage(url: str) -> Storage:
    """Open the storage that a URL names: `memory:`, `sqlite:///tasks.db`, `postgresql://...`, `redis://...`,
    `dynamodb://...`.
    """
    known = _find(url)
    return Storage(await cast("OpenEngine", _load(url, known, known.function))(url))


async def migrate_storage(url: str) -> None:
    """Make or change the tables that the storage needs, and nothing else.

    Engines that do so whenever they are opened are opened, and closed again.
    """
    known = _find(url)
    if known.migrator is None:
        await (await open_storage(url)).close()
    else:
        await cast("Callable[[str], Awaitable[None]]", _load(url, known, known.migrator))(url)


def is_shared(url: str) -> bool:
    """Whether another process that opens this URL, now or later, sees the same records."""
    return _find(url).is_shared


def exists(url: str) -> bool:
    """Whether there is something to open. False: opening this URL would make a new, empty file."""
    known = _find(url)
    if known.existing is None:
        return True
    return cast("Callable[[str], bool]", _load(url, known, known.existing))(url)


def _find(url: str) -> _Known:
    scheme, colon, _ = url.partition(":")
    known = _known.get(scheme) if colon else None
    if known is None:
        names = ", ".join(sorted(_known))
        raise UnknownScheme(_told(url), "its scheme names no engine", f"begin the URL with one of {names}")
    return known


def _load(url: str, known: _Known, function: str) -> object:
    try:
        return getattr(import_module(known.module), function)
    except ModuleNotFoundError as error:
        reason = f"the module {error.name} is not installed"
        raise MissingExtra(_told(url), reason, f"run: pip install '{known.install}'") from error


def _told(url: str) -> str:
    """As much of a URL as may be shown: a name before the host, and an option, may be a password."""
    return f"{url.partition(':')[0]}:..." if "@" in url or "?" in url else url
