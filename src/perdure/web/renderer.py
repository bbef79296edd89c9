"""What all pages share: the templates, who is asking, the pieces that are kept up to date, and errors."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ..storage.errors import InvalidArgument, NewerFormat, StorageError
from ..tasks import Status
from ..tasks.errors import TaskError
from . import filters
from .forms import KEY
from .live import Draw, Live, Screen, View, digest_of, owned
from .security import HEADERS, Sessions, base_of, path_of

log = logging.getLogger("perdure.web")

PING = 15
"""Seconds after which an open page is sent a sign of life."""
RETRY = 2000
"""Milliseconds after which a page that lost its server asks for it again."""


class Site:
    def __init__(self, *, sessions: Sessions, live: Live, read_only: bool, feeds: bool) -> None:
        self.sessions = sessions
        self.live = live
        self.read_only = read_only
        self._key_word = f"key-{secrets.token_hex(16)}"
        """Stands for the key of a form until a page is sent to somebody."""
        self._templates = Environment(
            loader=PackageLoader("perdure.web"),
            autoescape=True,
            undefined=StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._always: dict[str, object] = {
            "statuses": list(Status),
            "read_only": read_only,
            "has_feeds": feeds,
            "has_token": sessions.are_needed,
            "form_key": Markup('<input type="hidden" name="{}" value="{}">').format(KEY, self._key_word),
        }
        self._templates.filters.update(
            moment=filters.moment, span=filters.span, number=filters.number, document=filters.document
        )

    def piece(
        self, template: str, name: str, context: Mapping[str, object], *, tag: str = "div", keep: bool = False
    ) -> Markup:
        """A piece of a screen: an element that says what it is and how it is, or that it is to be kept."""
        inner = Markup(self._render(f"fragments/{template}", {**context, "name": name}))  # noqa: S704 (escaped)
        return _PIECES[tag].format(
            name=name,
            digest="kept" if keep else digest_of(inner),
            kind=template.replace("_", "-"),
            inner=inner,
        )

    def _render(self, template: str, context: Mapping[str, object]) -> str:
        return self._templates.get_template(f"{template}.html").render({**self._always, **context})

    def page(
        self,
        request: Request,
        template: str,
        *,
        screen: Screen | None = None,
        events: str | None = None,
        status: int = 200,
        context: Mapping[str, object] | None = None,
    ) -> HTMLResponse:
        """A whole page. `events` is the path that tells what becomes of its screen."""
        surroundings = {
            "base": base_of(request),
            "here": path_of(request),
            "screen": screen,
            "events": None if events is None else base_of(request) + events,
            "is_logged_in": request.state.is_known and template != "login",
        }
        html = self._render(template, {**surroundings, **(context or {})})
        return HTMLResponse(owned(html, self._keys_of(request)), status)

    async def updates(self, request: Request, name: str, draw: Draw) -> Response:
        """The changes of a screen, as they come, for as long as the page is open.

        All who ask for the same name see the same screen.
        """
        if not self.live.has_room:
            raise HTTPException(503, "Too many pages are open.")
        name = f"{base_of(request)} {name}"
        view = await self.live.view(name, draw)
        return EventSourceResponse(self._events(name, view, self._keys_of(request)), ping=PING)

    async def _events(
        self, name: str, view: View, keys: Mapping[str, str]
    ) -> AsyncGenerator[ServerSentEvent]:
        yield ServerSentEvent(comment="perdure", retry=RETRY)
        changes = self.live.changes(name, view)
        try:
            async for change in changes:
                yield ServerSentEvent(change.as_json(keys), event="screen")
        finally:
            await changes.aclose()
        if self.live.is_running:  # what it showed is gone; where the server ends, the browser is to come back
            yield ServerSentEvent("{}", event="over")

    def _keys_of(self, request: Request) -> dict[str, str]:
        return {self._key_word: self.sessions.form_key(request.state.browser)}

    async def failed(self, request: Request, error: Exception) -> Response:
        """What went wrong, in the words of who raised it; never a stack."""
        status, detail = _told(error)
        if status == 503:
            log.warning("a page could not be shown: %s", error)
        if status == 500:
            log.error("a page could not be shown", exc_info=error)
        context = {"title": _TITLES.get(status, "Not possible"), "detail": detail}
        answer = self.page(request, "error", status=status, context=context)
        answer.headers.update(HEADERS)  # what nobody expected is answered outside of the guard
        if isinstance(error, HTTPException):
            answer.headers.update(error.headers or {})
        return answer


def _told(error: Exception) -> tuple[int, str]:
    match error:
        case HTTPException(status_code=404, detail="Not Found") | InvalidArgument():
            return 404, "There is no such page."
        case HTTPException():
            return error.status_code, error.detail
        case NewerFormat():
            return 409, f"Written by a newer version: {error}."
        case StorageError():
            return 503, "The storage does not answer just now."
        case TaskError():
            return 409, f"{error}."
        case _:
            return 500, "Something went wrong here; the log tells what."


_TITLES = {403: "Refused", 404: "Not found", 500: "Failed", 503: "Busy"}

_PIECE = 'id="{name}" data-digest="{digest}" class="piece p-{kind}">{inner}'
_PIECES = {tag: Markup(f"<{tag} {_PIECE}</{tag}>\n") for tag in ("div", "nav", "section", "tr")}  # noqa: S704
