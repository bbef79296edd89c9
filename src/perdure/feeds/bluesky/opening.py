"""From the settings to a `Bluesky`, with everything checked before anything is asked."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import httpx2

from ..errors import InvalidSettings
from ..requests import Budget, Requests
from ..settings import Bluesky as BlueskySettings
from ..settings import Settings
from .client import PATIENCE, Client, Reader
from .session import Session, SignedIn
from .session_file import SessionFile
from .source import TIMELINE, Bluesky, HintingBluesky

IDLE = 60.0
"""Seconds for which a connection that nobody needs stays open."""


@asynccontextmanager
async def open_bluesky(
    settings: Settings,
    *,
    budget: Budget | None = None,
    environ: Mapping[str, str] = os.environ,
    patience: float = PATIENCE,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> AsyncGenerator[Bluesky]:
    """Open Bluesky as these settings want it read. The budget is that of the server that has the feeds.
    `transport` sends the requests in another way than over connections of its own.
    """
    bluesky = settings.bluesky
    _check(bluesky)
    password = _password(bluesky, environ)
    connections = settings.polling.connections
    feeds = Requests(budget or Budget(connections), settings.polling)
    others = Requests(
        Budget(connections, clock=feeds.budget.clock, on_wait=feeds.budget.on_wait), settings.polling
    )
    limits = httpx2.Limits(max_keepalive_connections=connections, keepalive_expiry=IDLE)
    # Each client sees to its own patience, for an answer as a whole.
    async with httpx2.AsyncClient(
        limits=limits, timeout=None, headers={"user-agent": "perdure"}, transport=transport
    ) as http:
        if bluesky.identifier is None or password is None:
            public = Client(http, bluesky.service, feeds, patience=patience)
            pds = Client(http, bluesky.pds, others, patience=patience)
            yield _reading(bluesky, public, pds)
        else:
            pds = Client(http, bluesky.pds, feeds, patience=patience)
            public = Client(http, bluesky.service, others, patience=patience)
            file = SessionFile.default(bluesky.pds, bluesky.identifier, environ)
            signed_in = SignedIn(pds, Session(pds, bluesky.identifier, password, file=file))
            yield _reading(bluesky, signed_in, signed_in, unsigned=public)


def _reading(
    settings: BlueskySettings, feeds: Reader, records: Reader, *, unsigned: Reader | None = None
) -> Bluesky:
    """Only who is to look for hints has a way to do it."""
    if settings.hints is None:
        return Bluesky(feeds, records, unsigned=unsigned)
    return HintingBluesky(feeds, records, settings.hints, unsigned=unsigned)


def _check(settings: BlueskySettings) -> None:
    for name, url in (("service", settings.service), ("pds", settings.pds)):
        if not _is_address(url):
            raise InvalidSettings(f"bluesky.{name}", "must be an http or https address, without a password")
    if settings.identifier is not None and not _is_private(settings.pds):
        raise InvalidSettings("bluesky.pds", "must be https: a password goes there")
    hints = settings.hints
    if hints is not None and hints != TIMELINE and not hints.startswith("at://"):
        raise InvalidSettings("bluesky.hints", f"must be `timeline` or a list's at:// address, not {hints!r}")
    if hints == TIMELINE and settings.identifier is None:
        raise InvalidSettings(
            "bluesky.hints", "a timeline is somebody's: set bluesky.identifier, or use a list"
        )


def _is_address(url: str) -> bool:
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host) and not parsed.userinfo


def _is_private(url: str) -> bool:
    """Whether nobody on the way can read what is sent there."""
    parsed = httpx2.URL(url)
    return parsed.scheme == "https" or parsed.host in ("127.0.0.1", "::1", "localhost")


def _password(settings: BlueskySettings, environ: Mapping[str, str]) -> str | None:
    """None: nobody needs one."""
    if settings.identifier is None:
        return None
    if password := environ.get(settings.password_variable):
        return password
    raise InvalidSettings(
        "bluesky.identifier",
        f"{settings.identifier} needs a password; set {settings.password_variable} to an app password",
    )
