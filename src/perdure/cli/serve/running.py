"""How the server starts, and how it ends: told once, in good order; told twice, dead."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager

import anyio
import uvicorn

from ..feeds.opening import stored_settings
from ..signals import STOPPING, stop_dead_on_the_next
from .asgi import Site, check_dashboard
from .banner import greeting, stand_of
from .network import address_of, bound
from .plan import Plan
from .poller import FeedPoller
from .servers import Hosted

log = logging.getLogger("perdure.serve")

PATIENCE = 2
"""Seconds for open connections, after everything that they wait for has ended."""


class Listener(uvicorn.Server):
    """A uvicorn that leaves signals to us, and says when it can be reached."""

    def __init__(self, site: Site) -> None:
        super().__init__(
            uvicorn.Config(
                site,
                lifespan="off",
                log_config=None,
                log_level="critical",  # the site logs exceptions; a cut connection is not an error
                access_log=False,
                timeout_graceful_shutdown=PATIENCE,
            )
        )
        self.when_reachable: Callable[[], None] = lambda: None

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.when_reachable()


async def run(plan: Plan, hosted: Hosted, say: Callable[[str], None]) -> None:
    """Serve until told to stop."""
    if plan.dashboard:
        check_dashboard()
    poller = await _poller_of(hosted) if plan.feeds else None
    site = Site(hosted, plan, poller)
    with bound(plan.host, plan.port) as listener, anyio.open_signal_receiver(*STOPPING) as signals:
        server = Listener(site)
        async with site.running():
            address, stand = address_of(listener, plan.host), await stand_of(site.storage)
            told = greeting(plan, hosted, address, stand, await hosted.service.host.tools())
            server.when_reachable = lambda: say(told)
            serving = asyncio.create_task(server.serve([listener]))
            impatient = await _told(signals, serving, say)
            server.should_exit = True  # nobody new is let in, while everything that others wait for ends
        await serving
        impatient.cancel()
    say("stopped; what was not finished goes on at the next start")


async def _poller_of(hosted: Hosted) -> FeedPoller:
    """A poller with the settings of this folder, checked before anything is opened."""
    settings = stored_settings()
    if settings.url not in (None, hosted.storage):
        log.warning(
            "the url in the settings of feeds is ignored: this server polls the accounts of its own storage"
        )
    poller = FeedPoller(settings, made_up=hosted.is_sample)
    await poller.check()
    return poller


async def _told(
    signals: AsyncIterator[signal.Signals], serving: asyncio.Task[None], say: Callable[[str], None]
) -> asyncio.Task[None]:
    """Wait until told to stop, and listen for being told again."""
    telling = asyncio.create_task(_next(signals))
    await asyncio.wait({telling, serving}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        telling.cancel()
        serving.result()
        raise RuntimeError("the server ended by itself")
    say(f"{telling.result().name}: finishing what runs; once more to stop at once")
    return asyncio.create_task(stop_dead_on_the_next(signals, say))


async def _next(signals: AsyncIterator[signal.Signals]) -> signal.Signals:
    return await anext(signals)
