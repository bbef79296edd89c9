"""The list of tasks, and the way from an id to a task."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from ..operating import NewerTask, Operator, Row
from ..tasks import Status
from ..tasks.errors import InvalidCursor, NotFound, TaskError
from .guarding import base_of
from .screens import Screen
from .site import Site

PAGE = 50
MOST_DRAWN = 2000
"""Rows that are kept as they were drawn."""
MOST_FOUND = 20_000
"""Tasks among which one is looked for by its id. The command looks among all."""


class ListPages:
    def __init__(self, site: Site, operator: Operator) -> None:
        self._site = site
        self._operator = operator
        self._rows: dict[tuple[str, str, str, int], Markup] = {}
        self._finding = asyncio.Lock()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/tasks", self._list),
            Route("/tasks/find", self._find),
            Route("/events/tasks", self._events),
        ]

    async def _list(self, request: Request) -> Response:
        wanted = _Wanted(request)
        return self._site.page(
            request,
            "tasks",
            screen=await self._screen(wanted),
            events=f"/events/tasks?{wanted.query()}",
            context={"wanted": wanted},
        )

    async def _events(self, request: Request) -> Response:
        wanted = _Wanted(request)
        return await self._site.updates(request, f"tasks {wanted.query()}", lambda: self._screen(wanted))

    async def _screen(self, wanted: _Wanted) -> Screen:
        try:
            found, counts = await asyncio.gather(
                self._operator.tasks(
                    statuses=None if wanted.status is None else [wanted.status],
                    name=wanted.name,
                    after=wanted.after,
                    limit=PAGE,
                ),
                self._operator.counts(),
            )
        except InvalidCursor as error:
            raise HTTPException(404, "This link leads to no page of the list.") from error
        newest_first = sorted(
            (*found.rows, *found.newer), key=lambda row: (row.created_at, row.task_id), reverse=True
        )
        rows = {f"task-{row.task_id}": self._row(row, wanted) for row in newest_first}
        tabs = self._site.piece("tabs", "tabs", {"counts": counts, "wanted": wanted}, tag="nav")
        more = self._site.piece(
            "more", "more", {"found": found, "wanted": wanted, "total": sum(counts.values())}
        )
        return Screen({"tabs": tabs, "more": more, **rows}, {"rows": tuple(rows)})

    def _row(self, row: Row | NewerTask, wanted: _Wanted) -> Markup:
        """Drawn once for each version of the task: nothing else in it changes."""
        if isinstance(row, NewerTask):
            context = {"row": row, "base": wanted.base}
            return self._site.piece("newer_row", f"task-{row.task_id}", context, tag="tr")
        key = wanted.base, row.handle, row.task_id, row.version
        if key not in self._rows:
            if len(self._rows) >= MOST_DRAWN:
                self._rows.clear()
            context = {"row": row, "base": wanted.base}
            self._rows[key] = self._site.piece("task_row", f"task-{row.task_id}", context, tag="tr")
        return self._rows[key]

    async def _find(self, request: Request) -> Response:
        """From an id, or the first letters of one, to its page."""
        text = request.query_params.get("id", "").strip()
        try:
            async with self._finding:  # a walk over many tasks, and so one at a time
                row = (await self._operator.find(text, among=MOST_FOUND)).row
        except NotFound as error:
            raise HTTPException(
                404,
                f"None of the newest {MOST_FOUND:,} tasks has an id that begins with {text!r}; "
                "`perdure tasks show` looks at all.",
            ) from error
        except TaskError as error:
            raise HTTPException(404, f"{str(error)[:1].upper()}{str(error)[1:]}.") from error
        return RedirectResponse(f"{base_of(request)}/tasks/{row.handle}/{row.task_id}", 303)


class _Wanted:
    """Which part of the list a page shows, as its address says."""

    def __init__(self, request: Request) -> None:
        params = request.query_params
        self.base = base_of(request)
        self.status = _status_in(params.get("status"))
        self.name = params.get("name", "").strip() or None
        self.after = params.get("after") or None

    def query(self, **other: str | None) -> str:
        """The address of this part, or of another."""
        every = {"status": self.status, "name": self.name, "after": self.after, **other}
        return urlencode({name: value for name, value in every.items() if value})


def _status_in(text: str | None) -> Status | None:
    try:
        return Status(text) if text else None
    except ValueError as error:
        raise HTTPException(404, "There is no such status.") from error
