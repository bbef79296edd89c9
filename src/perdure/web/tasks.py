"""The list of tasks, and the way from an id to a task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from ..operating import Detail, Held, NewerTask, NotAsked, Operator, Question, Row, outcome_of
from ..tasks import InputKind, Status
from ..tasks.codec import Json
from ..tasks.errors import (
    InvalidCursor,
    InvalidValue,
    LimitExceeded,
    MalformedAnswer,
    NotFound,
    TaskError,
    TerminalTask,
)
from .asking import Field, NotAnAnswer, content_of, fields_of, json_of
from .filters import is_web
from .forms import Form, post
from .live import Screen, digest_of
from .renderer import Site
from .security import base_of

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
            "pagination", "pagination", {"found": found, "wanted": wanted, "total": sum(counts.values())}
        )
        return Screen({"tabs": tabs, "pagination": more, **rows}, {"rows": tuple(rows)})

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


RESTS = 10.0
"""Seconds between two looks at a task that has ended: it can only expire."""


class TaskPages:
    def __init__(self, site: Site, operator: Operator) -> None:
        self._site = site
        self._operator = operator

    def routes(self) -> list[BaseRoute]:
        one = "/tasks/{handle}/{task_id}"
        return [
            Route(one, self._task),
            Route(f"/events{one}", self._events),
            post(f"{one}/cancel", self._cancel, self._site.sessions),
            post(f"{one}/answer", self._answer, self._site.sessions),
        ]

    async def _task(self, request: Request) -> Response:
        return self._page(request, await self._detail(request))

    def _page(self, request: Request, detail: Detail, tried: _Tried | None = None) -> Response:
        return self._site.page(
            request,
            "task",
            screen=self._screen(detail, base_of(request), tried),
            events=f"/events/tasks/{detail.row.handle}/{detail.row.task_id}",
            status=200 if tried is None else 422,
            context={"detail": detail},
        )

    async def _events(self, request: Request) -> Response:
        handle, task_id = request.path_params["handle"], request.path_params["task_id"]
        base = base_of(request)
        shown = Shown(lambda: self._detail(request), lambda detail: self._screen(detail, base, None))
        return await self._site.updates(request, f"task {handle} {task_id}", shown.draw)

    async def _detail(self, request: Request) -> Detail:
        try:
            return await self._operator.get(request.path_params["handle"], request.path_params["task_id"])
        except NotFound as error:
            raise HTTPException(404, "This task is not there, or no longer.") from error

    def _screen(self, detail: Detail, base: str, tried: _Tried | None) -> Screen:
        at = f"{base}/tasks/{detail.row.handle}/{detail.row.task_id}"
        context = {
            "detail": detail,
            "row": detail.row,
            "outcome": outcome_of(detail.outcome),
            "at": at,
            "base": base,
        }
        pieces = {
            name: self._site.piece(name, name, context)
            for name in ("summary", "timeline", "arguments", "variables", "checkpoint", "outcome")
        }
        questions = {
            f"question-{digest_of(question.key)}-{question.asked_at}": question
            for question in detail.questions
        }
        for name, question in questions.items():
            pieces[name] = self._question(name, question, tried, context)
        return Screen(pieces, {"questions": tuple(questions)})

    def _question(
        self, name: str, question: Question, tried: _Tried | None, context: Mapping[str, object]
    ) -> Markup:
        """A form. One that was refused keeps what was typed, and is not replaced while it is mended."""
        is_tried = tried is not None and tried.key == question.key
        asked = {
            "question": question,
            "fields": fields_of(question.schema),
            "is_form": question.kind is InputKind.ELICITATION,
            "link": _link_in(question),
            "problems": tried.problems if tried and is_tried else {},
            "given": tried.form if tried and is_tried else None,
        }
        return self._site.piece("question", name, {**context, **asked}, tag="section", keep=is_tried)

    # What can be done

    async def _cancel(self, request: Request, _form: Form) -> Response:
        handle, task_id = request.path_params["handle"], request.path_params["task_id"]
        try:
            await self._operator.cancel(handle, task_id)
        except NotFound as error:
            raise HTTPException(404, "This task is not there, or no longer.") from error
        except TerminalTask:
            pass  # it has ended meanwhile, which its page tells
        return _back_to(request)

    async def _answer(self, request: Request, form: Form) -> Response:
        detail = await self._detail(request)
        key = form.get("key", "")
        question = next((each for each in detail.questions if each.key == key), None)
        if question is None:
            raise HTTPException(409, "This question has been answered already, or was taken back.")
        try:
            value = _answer_in(question, fields_of(question.schema), form)
            await self._operator.answer(detail.row.handle, detail.row.task_id, key, value)
        except NotAnAnswer as error:
            return self._page(request, detail, _Tried(key, form, error.problems))
        except (MalformedAnswer, InvalidValue, LimitExceeded) as error:
            return self._page(request, detail, _Tried(key, form, {"": str(error)}))
        except (NotAsked, TerminalTask) as error:
            raise HTTPException(
                409, "This question has been answered already, or its task has ended."
            ) from error
        return _back_to(request)


class Shown:
    """The page of one task: drawn again only where something changed, and seldom read once it has ended."""

    def __init__(self, look: Callable[[], Awaitable[Detail]], draw: Callable[[Detail], Screen]) -> None:
        self._look = look
        self._draw = draw
        self._drawn: tuple[tuple[int, Held | None], Screen] | None = None
        self._rests_until = 0.0

    async def draw(self) -> Screen:
        if self._drawn is not None and time.monotonic() < self._rests_until:
            return self._drawn[1]
        detail = await self._look()
        if detail.row.status.is_terminal:
            self._rests_until = time.monotonic() + RESTS
        state = detail.row.version, detail.lease
        if self._drawn is None or self._drawn[0] != state:
            self._drawn = state, self._draw(detail)
        return self._drawn[1]


class _Tried(msgspec.Struct, frozen=True):
    """An answer that was refused, and why, by field."""

    key: str
    form: Form
    problems: dict[str, str]


def _answer_in(question: Question, fields: Iterable[Field], form: Form) -> dict[str, Json]:
    """What the form says, in the shape of the kind that was asked."""
    if question.kind is not InputKind.ELICITATION:
        try:
            value = json_of(form.get("answer", ""))
        except ValueError as error:
            raise NotAnAnswer({"": f"The answer {error}"}) from error
        if not isinstance(value, dict):
            raise NotAnAnswer({"": "The answer must be a JSON object"})
        return value
    if form.get("action") != "accept":
        return {"action": "decline"}
    if _link_in(question) is not None:
        return {"action": "accept"}
    return {"action": "accept", "content": content_of(tuple(fields), form)}


def _link_in(question: Question) -> str | None:
    """Where the question is answered, if that is not here."""
    params = question.params if isinstance(question.params, dict) else {}
    url = params.get("url")
    return url if params.get("mode") == "url" and isinstance(url, str) and is_web(url) else None


def _back_to(request: Request) -> Response:
    """A reload of what follows sends nothing twice."""
    handle, task_id = request.path_params["handle"], request.path_params["task_id"]
    return RedirectResponse(f"{base_of(request)}/tasks/{handle}/{task_id}", 303)
