"""`FakeBluesky`: real HTTP on loopback over a world. It is an AppView, and a PDS if it wants tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from types import TracebackType
from urllib.parse import parse_qs

import httpx2
import msgspec

from perdure.storage import Micros

from ..simulation import Refusal, World
from . import control
from .faults import Fault, Faults, Limit, broken
from .http import Listener, Request, Response
from .sessions import Sessions
from .views import Views, encode

GONE = 499
FEED = "app.bsky.feed.getAuthorFeed"
FOLLOWS = "app.bsky.graph.follow"
_JSON = {"content-type": "application/json; charset=utf-8"}


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the server saw it."""

    path: str
    """The method's name."""
    actor: str | None
    cursor: str | None
    is_authorized: bool
    """Whether it came with a token, good or bad."""
    status: int
    """499 if the client did not wait for the response."""
    started: float
    ended: float
    connection: int
    size: int
    """Of the answer's body."""


class FakeBluesky:
    """An `async with` starts and stops it, in this event loop."""

    def __init__(
        self,
        world: World,
        *,
        requires_auth: bool = False,
        latency: float = 0.0,
        port: int = 0,
        clock: Callable[[], Micros] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.world = world
        self.requires_auth = requires_auth
        """As a PDS does: what needs no token at an AppView needs one here."""
        self.latency = latency
        """Seconds that every answer takes."""
        self.gate = asyncio.Event()
        """While it is not set, requests wait for their answers."""
        self.gate.set()
        self.in_flight = 0
        """Requests that have no answer yet."""
        self.gives_etags = True
        self.sessions = Sessions(world, clock)
        self.faults = Faults(world.seed)
        self.limit = Limit(clock)
        self.log: list[Asked] = []
        self.url = ""
        self._port = port
        self._views = Views(world)
        self._pages: dict[tuple[str, int, str | None, bool], tuple[tuple[object, ...], bytes]] = {}
        self._listener = Listener(self._handle)
        self._failure: Exception | None = None

    async def __aenter__(self) -> FakeBluesky:
        self.url = f"http://127.0.0.1:{await self._listener.start(self._port)}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._listener.close()
        if self._failure is not None and error is None:
            raise self._failure

    # What tests ask of it

    def fail(self, fault: Fault) -> None:
        """Let something go wrong with the next answers."""
        self.faults.add(fault)

    def warm(self) -> None:
        """Encode everything now, so that no measurement has to wait for it."""
        for row in self.world.rows.values():
            self._views.item(row)

    def asked(self, path: str = FEED, *, actor: str | None = None) -> list[Asked]:
        """The requests for a method, as they ended."""
        return [each for each in self.log if each.path == path and actor in (None, each.actor)]

    def max_in_flight(self, path: str = FEED, *, actor: str | None = None) -> int:
        """Return the maximum number of requests for a method that were in flight at the same time."""
        asked = self.asked(path, actor=actor)
        changes = sorted([(each.started, 1) for each in asked] + [(each.ended, -1) for each in asked])
        most = now = 0
        for _, change in changes:
            now += change
            most = max(most, now)
        return most

    # A request

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        """Answer a request without HTTP, for a transport in virtual time."""
        response = await self._handle(
            Request(
                connection=0,
                method=request.method,
                path=request.url.path,
                query=parse_qs(request.url.query.decode(), keep_blank_values=True),
                headers={name.lower(): value for name, value in request.headers.items()},
                body=request.content,
            )
        )
        if response.stops_after is not None:
            raise httpx2.RemoteProtocolError("the connection was cut")
        return httpx2.Response(response.status, headers=response.headers, content=response.body)

    async def _handle(self, request: Request) -> Response:
        if request.path.startswith("/_fake/"):
            return self._safely(lambda: Response(body=encode(control.done(self, request)), headers=_JSON))
        started = time.monotonic()
        fault = self.faults.befalling(request, _actor(request))
        try:
            await self._wait(fault)
        except asyncio.CancelledError:
            self._note(request, Response(status=GONE), started)
            raise
        response = self._safely(lambda: self._answered(request, fault))
        self._note(request, response, started)
        return response if fault is None else broken(response, fault)

    async def _wait(self, fault: Fault | None) -> None:
        """As long as an answer takes."""
        self.in_flight += 1
        try:
            await asyncio.sleep(self.latency + (fault.seconds if fault and fault.how == "slow" else 0))
            await self.gate.wait()
        finally:
            self.in_flight -= 1

    def _safely(self, answer: Callable[[], Response]) -> Response:
        """An answer, or what went wrong as one. A failure of our own is raised again at the end."""
        try:
            return answer()
        except Refusal as refusal:
            return self._refused(refusal)
        except Exception as error:
            self._failure = error
            return self._refused(Refusal(500, "InternalServerError", repr(error)))

    def _answered(self, request: Request, fault: Fault | None) -> Response:
        self.limit.take()
        viewer = self._viewer(request)
        if fault is not None and fault.how == "refused":
            raise Refusal(fault.status, fault.error, fault.message)
        return self._tagged(request, self._answer(request, viewer))

    def _note(self, request: Request, response: Response, started: float) -> None:
        self.log.append(
            Asked(
                path=_method(request),
                actor=_actor(request),
                cursor=request.one("cursor"),
                is_authorized="authorization" in request.headers,
                status=response.status,
                started=started,
                ended=time.monotonic(),
                connection=request.connection,
                size=len(response.body),
            )
        )

    def _viewer(self, request: Request) -> str | None:
        """Who asks. Refusal: a token that is not good, or none where one is needed."""
        method = _method(request)
        if method.startswith("com.atproto."):
            return None
        viewer = self.sessions.viewer(request.headers.get("authorization"))
        if viewer is None and (self.requires_auth or method == "app.bsky.feed.getTimeline"):
            raise Refusal(401, "AuthMissing", "Authentication Required")
        return viewer

    def _tagged(self, request: Request, body: bytes) -> Response:
        headers = {**_JSON, **self.limit.headers(is_refusal=False)}
        if request.method != "GET" or not self.gives_etags:
            return Response(body=body, headers=headers)
        etag = _etag(body)
        if etag in request.headers.get("if-none-match", ""):
            return Response(status=304, headers={**self.limit.headers(is_refusal=False), "etag": etag})
        return Response(body=body, headers={**headers, "etag": etag})

    def _refused(self, refusal: Refusal) -> Response:
        return Response(
            status=refusal.status,
            body=encode({"error": refusal.error, "message": refusal.message}),
            headers={**_JSON, **self.limit.headers(is_refusal=refusal.status == 429)},
        )

    # The methods

    def _answer(self, request: Request, viewer: str | None) -> bytes:
        match _method(request):
            case "com.atproto.server.createSession":
                credentials = msgspec.json.decode(request.body, type=dict[str, str])
                return encode(self.sessions.create(credentials["identifier"], credentials["password"]))
            case "com.atproto.server.refreshSession":
                return encode(self.sessions.refresh(request.headers.get("authorization")))
            case "app.bsky.actor.getProfiles":
                return self._views.profiles(self.world.profiles(request.query.get("actors", [])))
            case "app.bsky.graph.getFollows":
                return self._follows(request)
            case "com.atproto.repo.listRecords":
                return self._records(request)
            case "app.bsky.feed.getPosts":
                rows = [self.world.rows.get(uri) for uri in request.query.get("uris", [])]
                return self._views.posts(row for row in rows if row is not None and row.is_visible)
            case _:
                return self._feed(request, viewer)

    def _feed(self, request: Request, viewer: str | None) -> bytes:
        limit, cursor = _limit(request), request.one("cursor")
        match _method(request):
            case "app.bsky.feed.getAuthorFeed":
                pins = request.one("includePins") == "true"
                return self._author_feed(_needed(request, "actor"), limit, cursor, pins=pins, viewer=viewer)
            case "app.bsky.feed.getTimeline":
                shown = self.world.timeline(viewer or "", limit, cursor)
            case "app.bsky.feed.getListFeed":
                shown = self.world.list_feed(_needed(request, "list"), limit, cursor)
            case _:
                raise Refusal(501, "MethodNotImplemented", "Method Not Implemented")
        return self._views.page(shown)

    def _author_feed(
        self, actor: str, limit: int, cursor: str | None, *, pins: bool, viewer: str | None
    ) -> bytes:
        """A page is put together once, and again when anything has changed: polls ask much more often."""
        self.world.find(actor, viewer=viewer)
        asked = (actor, limit, cursor, pins)
        stamp = (self.world.changes, *msgspec.structs.astuple(self.world.knobs))
        known = self._pages.get(asked)
        if known is None or known[0] != stamp:
            shown = self.world.author_feed(actor, limit, cursor, include_pins=pins)
            known = self._pages[asked] = stamp, self._views.page(shown)
        return known[1]

    def _follows(self, request: Request) -> bytes:
        actor = _needed(request, "actor")
        followed, cursor = self.world.follows(actor, _limit(request), request.one("cursor"))
        return self._views.follows(self.world.find(actor), followed, cursor)

    def _records(self, request: Request) -> bytes:
        if request.one("collection") == FOLLOWS:
            return self._follow_records(request)
        rows, cursor = self.world.list_records(
            _needed(request, "repo"),
            _needed(request, "collection"),
            _limit(request),
            request.one("cursor"),
            reverse=request.one("reverse") == "true",
        )
        return self._views.records(rows, cursor)

    def _follow_records(self, request: Request) -> bytes:
        """In the order of following; a deactivated account is still among them."""
        account = self.world.find(_needed(request, "repo"))
        begin = int(request.one("cursor") or "0")
        part = list(account.follows)[begin : begin + _limit(request)]
        records = [
            {
                "uri": f"at://{account.did}/{FOLLOWS}/{begin + number:013}",
                "cid": "bafyrei",
                "value": {"$type": FOLLOWS, "subject": did},
            }
            for number, did in enumerate(part)
        ]
        cursor = {"cursor": f"{begin + len(part):013}"} if part else {}
        return encode({"records": records, **cursor})


@lru_cache(512)
def _etag(body: bytes) -> str:
    return f'W/"{len(body):x}-{blake2b(body, digest_size=15).hexdigest()}"'


def _method(request: Request) -> str:
    return request.path.removeprefix("/xrpc/")


def _actor(request: Request) -> str | None:
    return request.one("actor") or request.one("repo")


def _needed(request: Request, name: str) -> str:
    value = request.one(name)
    if value is None:
        raise Refusal(400, "InvalidRequest", f'Params must have the property "{name}"')
    return value


def _limit(request: Request) -> int:
    limit = request.one("limit") or "50"
    if not limit.isdecimal():
        raise Refusal(400, "InvalidRequest", "limit must be an integer")
    return int(limit)
