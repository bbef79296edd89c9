"""The pages of tasks: the list, one task, and what can be done to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from ..operating import Detail, NotAsked, Operator, Question, Row, outcome_of
from ..tasks import InputKind, Status
from ..tasks.codec import Json
from ..tasks.errors import InvalidCursor, LimitExceeded, MalformedAnswer, NotFound, TaskError, TerminalTask
from .asking import Field, NotAnAnswer, content_of, fields_of, json_of
from .forms import Form, post
from .guarding import base_of
from .screens import Screen
from .site import Site

PAGE = 50
MOST_DRAWN = 2000
"""Rows that are kept as they were drawn."""
WORDS = {
    Status.WORKING: "working",
    Status.INPUT_REQUIRED: "needs input",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}


class TaskPages:
    def __init__(self, site: Site, operator: Operator) -> None:
        self._site = site
        self._operator = operator
        self._rows: dict[tuple[str, str, str, int], Markup] = {}

    def routes(self) -> list[BaseRoute]:
        one = "/tasks/{handle}/{task_id}"
        return [
            Route("/tasks", self._list),
            Route("/tasks/find", self._find),
            Route("/events/tasks", self._list_events),
            Route(one, self._task),
            Route(f"/events{one}", self._task_events),
            post(f"{one}/cancel", self._cancel, self._site.sessions),
            post(f"{one}/answer", self._answer, self._site.sessions),
        ]

    # The list

    async def _list(self, request: Request) -> Response:
        wanted = _Wanted(request)
        return self._site.page(
            request,
            "tasks",
            screen=await self._list_screen(wanted),
            events=f"/events/tasks?{wanted.query()}",
            context={"wanted": wanted, "words": WORDS},
        )

    async def _list_events(self, request: Request) -> Response:
        wanted = _Wanted(request)
        return await self._site.updates(request, lambda: self._list_screen(wanted))

    async def _list_screen(self, wanted: _Wanted) -> Screen:
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
        rows = {f"task-{row.task_id}": self._row(row, wanted) for row in found.rows}
        tabs = self._site.piece(
            "tabs", "tabs", {"counts": counts, "wanted": wanted, "words": WORDS}, tag="nav"
        )
        more = self._site.piece(
            "more", "more", {"found": found, "wanted": wanted, "total": sum(counts.values())}
        )
        return Screen({"tabs": tabs, "more": more, **rows}, {"rows": tuple(rows)})

    def _row(self, row: Row, wanted: _Wanted) -> Markup:
        """Drawn once for each version of the task: nothing else in it changes."""
        key = wanted.base, row.handle, row.task_id, row.version
        if key not in self._rows:
            if len(self._rows) >= MOST_DRAWN:
                self._rows.clear()
            context = {"row": row, "base": wanted.base, "words": WORDS}
            self._rows[key] = self._site.piece("task_row", f"task-{row.task_id}", context, tag="tr")
        return self._rows[key]

    async def _find(self, request: Request) -> Response:
        """From an id, or the first letters of one, to its page."""
        text = request.query_params.get("id", "").strip()
        try:
            row = (await self._operator.find(text)).row
        except NotFound as error:
            raise HTTPException(404, f"No task's id begins with {text!r}.") from error
        except TaskError as error:
            raise HTTPException(404, f"{str(error)[:1].upper()}{str(error)[1:]}.") from error
        return RedirectResponse(f"{base_of(request)}/tasks/{row.handle}/{row.task_id}", 303)

    # One task

    async def _task(self, request: Request) -> Response:
        return self._task_page(request, await self._detail(request))

    def _task_page(self, request: Request, detail: Detail, tried: _Tried | None = None) -> Response:
        return self._site.page(
            request,
            "task",
            screen=self._task_screen(detail, base_of(request), tried),
            events=f"/events/tasks/{detail.row.handle}/{detail.row.task_id}",
            status=200 if tried is None else 422,
            context={"detail": detail},
        )

    async def _task_events(self, request: Request) -> Response:
        handle, task_id = request.path_params["handle"], request.path_params["task_id"]
        await self._detail(request)
        base = base_of(request)

        async def draw() -> Screen:
            return self._task_screen(await self._operator.get(handle, task_id), base, None)

        return await self._site.updates(request, draw)

    async def _detail(self, request: Request) -> Detail:
        try:
            return await self._operator.get(request.path_params["handle"], request.path_params["task_id"])
        except NotFound as error:
            raise HTTPException(404, "This task is not there, or no longer.") from error

    def _task_screen(self, detail: Detail, base: str, tried: _Tried | None) -> Screen:
        at = f"{base}/tasks/{detail.row.handle}/{detail.row.task_id}"
        context = {
            "detail": detail,
            "row": detail.row,
            "outcome": outcome_of(detail.outcome),
            "at": at,
            "words": WORDS,
            "base": base,
        }
        pieces = {
            name: self._site.piece(name, name, context)
            for name in ("summary", "timeline", "arguments", "variables", "outcome")
        }
        questions = {
            f"question-{place}-{question.asked_at}": question
            for place, question in enumerate(detail.questions)
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
            return self._task_page(request, detail, _Tried(key, form, error.problems))
        except (MalformedAnswer, LimitExceeded) as error:
            return self._task_page(request, detail, _Tried(key, form, {"": str(error)}))
        except (NotAsked, TerminalTask) as error:
            raise HTTPException(
                409, "This question has been answered already, or its task has ended."
            ) from error
        return _back_to(request)


class _Tried(msgspec.Struct, frozen=True):
    """An answer that was refused, and why, by field."""

    key: str
    form: Form
    problems: dict[str, str]


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
    return {"action": "accept", "content": content_of(tuple(fields), form)}


def _back_to(request: Request) -> Response:
    """A reload of what follows sends nothing twice."""
    handle, task_id = request.path_params["handle"], request.path_params["task_id"]
    return RedirectResponse(f"{base_of(request)}/tasks/{handle}/{task_id}", 303)
