"""`open_storage(url)`: the URL's scheme picks the engine, whose module is imported only then."""

from __future__ import annotations

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


_known: dict[str, _Known] = {
    "memory": _Known("perdure.storage.memory", "open_engine", "perdure"),
    "sqlite": _Known("perdure.storage.sqlite", "open_engine", "perdure"),
}


def register_engine(scheme: str, opener: str, *, install: str) -> None:
    """Let URLs of this scheme open an engine of your own.

    `opener` is `"package.module:function"`, imported at the first use; `install` is what `pip install`
    must be told where that module, or something it imports, is not there.
    """
    module, _, function = opener.partition(":")
    _known[scheme] = _Known(module, function, install)


async def open_storage(url: str) -> Storage:
    """Open the storage that a URL names: `memory:`, `sqlite:///tasks.db`."""
    scheme, colon, _ = url.partition(":")
    known = _known.get(scheme) if colon else None
    if known is None:
        names = ", ".join(sorted(_known))
        raise UnknownScheme(url, "its scheme names no engine", f"begin the URL with one of {names}")
    return Storage(await _load(url, known)(url))


def _load(url: str, known: _Known) -> OpenEngine:
    try:
        return cast("OpenEngine", getattr(import_module(known.module), known.function))
    except ModuleNotFoundError as error:
        reason = f"the module {error.name} is not installed"
        raise MissingExtra(url, reason, f"run: pip install '{known.install}'") from error
