"""Renders pages, fragments, event streams and error pages from the templates."""

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

from ..storage.errors import InvalidArgument, NotReadableHere, StorageError
from ..tasks import Status
from ..tasks.errors import InvalidCursor, NotFound, TaskError
from . import filters
from .forms import CSRF_FIELD, input_attributes, input_name, input_type
from .live import LiveUpdates, LiveView, PageFragments, Render, digest
from .security import SECURITY_HEADERS, SessionSigner, mount_path, relative_path

log = logging.getLogger("perdure.web")

PING_SECONDS = 15
"""Number of seconds between two pings on an event stream. Pings prevent proxies from closing the stream."""
RECONNECT_MS = 2000
"""Milliseconds after which a browser reconnects to an event stream that was interrupted."""


class Renderer:
    """Renders templates with the values that all pages share."""

    def __init__(
        self,
        *,
        signer: SessionSigner,
        live: LiveUpdates,
        read_only: bool,
        feeds: bool,
        server_name: str | None = None,
        first_task: str | None = None,
    ) -> None:
        self.signer = signer
        self.live = live
        self.read_only = read_only
        self._csrf_placeholder = f"csrf-{secrets.token_hex(16)}"
        """A placeholder for the CSRF token, which is inserted when a page is sent to a browser."""
        self._templates = Environment(
            loader=PackageLoader("perdure.web"),
            autoescape=True,
            undefined=StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._globals: dict[str, object] = {
            "statuses": list(Status),
            "read_only": read_only,
            "has_feeds": feeds,
            "server_name": server_name,
            "first_task": first_task,
            "has_token": signer.is_enabled,
            "input_name": input_name,
            "input_type": input_type,
            "input_attributes": input_attributes,
            "csrf_input": Markup('<input type="hidden" name="{}" value="{}">').format(
                CSRF_FIELD, self._csrf_placeholder
            ),
        }
        self._templates.tests.update(http_url=filters.is_http_url)
        self._templates.filters.update(
            time_tag=filters.time_tag,
            duration=filters.duration,
            number=filters.number,
            pretty_json=filters.pretty_json,
        )

    def fragment(
        self,
        template: str,
        name: str,
        context: Mapping[str, object],
        *,
        tag: str = "div",
        label: str | None = None,
        keep: bool = False,
    ) -> Markup:
        """Render a fragment: an element with an id, and a digest that shows whether it has changed.

        `label` is the accessible name of the element. With `keep`, updates do not replace the element.
        """
        inner = Markup(self._render(f"fragments/{template}", {**context, "name": name}))  # noqa: S704 (escaped)
        return _FRAGMENT.format(
            tag=tag,
            name=name,
            digest="kept" if keep else digest(inner),
            kind=template.replace("_", "-"),
            label="" if label is None else Markup(' aria-label="{}"').format(label),
            inner=inner,
        )

    def _render(self, template: str, context: Mapping[str, object]) -> str:
        return self._templates.get_template(f"{template}.html").render({**self._globals, **context})

    def page(
        self,
        request: Request,
        template: str,
        *,
        page: PageFragments | None = None,
        events: str | None = None,
        status: int = 200,
        context: Mapping[str, object] | None = None,
    ) -> HTMLResponse:
        """Render a page. `events` is the path of the event stream with which the browser updates the page."""
        layout = {
            "base": mount_path(request),
            "here": relative_path(request),
            "page": page,
            "events": None if events is None else mount_path(request) + events,
            "is_logged_in": request.state.is_authenticated and template != "login",
        }
        html = self._render(template, {**layout, **(context or {})})
        return HTMLResponse(self._insert_csrf_token(html, request), status)

    async def event_stream(self, request: Request, name: str, render: Render) -> Response:
        """Return an event stream that sends the changes of a page.

        For all requests with the same `name`, the page is rendered only once.
        """
        if not self.live.has_capacity:
            raise HTTPException(503, "Too many open pages. Close some and reload.")
        name = f"{mount_path(request)} {name}"
        view = await self.live.view(name, render)
        return EventSourceResponse(self._events(request, name, view), ping=PING_SECONDS)

    async def _events(self, request: Request, name: str, view: LiveView) -> AsyncGenerator[ServerSentEvent]:
        yield ServerSentEvent(comment="perdure", retry=RECONNECT_MS)
        changes = self.live.changes(name, view)
        try:
            async for change in changes:
                yield ServerSentEvent(self._insert_csrf_token(change.to_json(), request), event="update")
        finally:
            await changes.aclose()
        if self.live.is_running:  # otherwise the server is stopping, and the browser should reconnect
            yield ServerSentEvent("{}", event="end")

    def _insert_csrf_token(self, text: str, request: Request) -> str:
        """Insert the CSRF token of the browser. Fragments are shared by all browsers, but tokens are not."""
        return text.replace(self._csrf_placeholder, self.signer.csrf_token(request.state.browser))

    async def error_page(self, request: Request, error: Exception) -> Response:
        """Render an error page without a traceback."""
        status, detail = _status_and_detail(error)
        if status == 503:
            log.warning("cannot render a page of the dashboard: %s", error)
        if status == 500:
            log.error("cannot render a page of the dashboard", exc_info=error)
        context = {"title": _TITLES.get(status, "Request failed"), "detail": detail}
        response = self.page(request, "error", status=status, context=context)
        # The security middleware adds these headers, but not to responses to unexpected errors.
        response.headers.update(SECURITY_HEADERS)
        if isinstance(error, HTTPException):
            response.headers.update(error.headers or {})
        return response


def _status_and_detail(error: Exception) -> tuple[int, str]:
    match error:
        case HTTPException(status_code=404, detail="Not Found") | InvalidArgument():
            return 404, "Page not found."
        case HTTPException():
            return error.status_code, error.detail
        case NotFound():
            return 404, "Task not found. It may have expired."
        case InvalidCursor():
            return 404, "Invalid page link. Start from the first page."
        case NotReadableHere() | TaskError():
            return 409, f"{error}."
        case StorageError():
            return 503, "The storage is unavailable. Try again shortly."
        case _:
            return 500, "Internal error. See the server log."


_TITLES = {403: "Forbidden", 404: "Not found", 500: "Server error", 503: "Unavailable"}

_FRAGMENT = Markup(
    '<{tag} id="{name}" data-digest="{digest}" class="fragment f-{kind}"{label}>{inner}</{tag}>\n'
)
