"""Serves the task list, the search by id, and the page of one task with its forms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from ..operating import (
    ClaimSummary,
    NewerTask,
    NoOpenQuestion,
    Operator,
    Question,
    TaskDetail,
    TaskSummary,
    outcome_json,
)
from ..operating.forms import InvalidAnswer, form_fields, parse_form, parse_json
from ..tasks import Failure, InputKind, Status, Success
from ..tasks.canonical_json import Json
from ..tasks.errors import (
    InvalidValue,
    LimitExceeded,
    MalformedAnswer,
    NotFound,
    TaskError,
    TerminalTask,
)
from .filters import is_http_url
from .forms import Form, input_name, post_route
from .live import PageFragments, digest
from .renderer import Renderer
from .results import result_blocks
from .security import mount_path

PAGE_SIZE = 50
MAX_CACHED_ROWS = 2000
"""Maximum number of rendered table rows in the cache."""
MAX_SCANNED = 20_000
"""Maximum number of tasks that a search by id reads. `perdure tasks show` searches all tasks."""
FINISHED_REFRESH_SECONDS = 10.0
"""Minimum number of seconds between two reads of a finished task, which can only expire or be deleted."""
TASK_PATH = "/tasks/{locator}/{task_id}"


class TaskPages:
    """The routes of the task list, of the search by id, and of the page of one task."""

    def __init__(self, renderer: Renderer, operator: Operator) -> None:
        self._renderer = renderer
        self._operator = operator
        self._rows: dict[tuple[str, str, str, int], Markup] = {}
        self._search_lock = asyncio.Lock()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/tasks", self._list),
            Route("/tasks/find", self._find),
            Route("/events/tasks", self._list_events),
            Route(TASK_PATH, self._task),
            Route(f"/events{TASK_PATH}", self._task_events),
            post_route(f"{TASK_PATH}/cancel", self._cancel, self._renderer.signer),
            post_route(f"{TASK_PATH}/answer", self._answer, self._renderer.signer),
        ]

    # List and search

    async def _list(self, request: Request) -> Response:
        query = _ListQuery(request)
        return self._renderer.page(
            request,
            "tasks",
            page=await self._list_fragments(query),
            events=f"/events/tasks?{query.encode()}",
            context={"query": query},
        )

    async def _list_events(self, request: Request) -> Response:
        query = _ListQuery(request)
        return await self._renderer.event_stream(
            request, f"tasks {query.encode()}", lambda: self._list_fragments(query)
        )

    async def _list_fragments(self, query: _ListQuery) -> PageFragments:
        found, counts = await asyncio.gather(
            self._operator.tasks(
                statuses=None if query.status is None else [query.status],
                name=query.name,
                application=query.application,
                after=query.after,
                limit=PAGE_SIZE,
            ),
            self._operator.counts(),
        )
        newest_first = sorted(
            (*found.tasks, *found.newer), key=lambda task: (task.created_at, task.task_id), reverse=True
        )
        rows = {f"task-{task.task_id}": self._row(task, query.base) for task in newest_first}
        tabs = self._renderer.fragment(
            "tabs", "tabs", {"counts": counts, "query": query}, tag="nav", label="Task status"
        )
        pagination = self._renderer.fragment(
            "pagination", "pagination", {"found": found, "query": query, "total": sum(counts.values())}
        )
        return PageFragments({"tabs": tabs, "pagination": pagination, **rows}, {"rows": tuple(rows)})

    def _row(self, task: TaskSummary | NewerTask, base: str) -> Markup:
        """Return the table row of a task. The row of a readable task is cached until its version changes."""
        name, context = f"task-{task.task_id}", {"row": task, "base": base}
        if isinstance(task, NewerTask):
            return self._renderer.fragment("newer_row", name, context, tag="tr")
        key = base, task.locator, task.task_id, task.version
        if key not in self._rows:
            if len(self._rows) >= MAX_CACHED_ROWS:
                self._rows.clear()
            self._rows[key] = self._renderer.fragment("task_row", name, context, tag="tr")
        return self._rows[key]

    async def _find(self, request: Request) -> Response:
        """Redirect to the page of the task whose id starts with the text in the query string."""
        text = request.query_params.get("id", "").strip()
        try:
            async with self._search_lock:  # one search at a time, because each may read many tasks
                task = (await self._operator.find(text, max_scanned=MAX_SCANNED)).summary
        except NotFound as error:
            raise HTTPException(
                404,
                f"None of the newest {MAX_SCANNED:,} tasks has an id that starts with {text!r}. "
                "`perdure tasks show` searches all tasks.",
            ) from error
        except TaskError as error:
            raise HTTPException(404, f"{str(error)[:1].upper()}{str(error)[1:]}.") from error
        return RedirectResponse(f"{mount_path(request)}/tasks/{task.locator}/{task.task_id}", 303)

    # One task

    async def _task(self, request: Request) -> Response:
        return self._task_page(request, await self._detail(request))

    def _task_page(
        self, request: Request, detail: TaskDetail, rejected: _RejectedAnswer | None = None
    ) -> Response:
        return self._renderer.page(
            request,
            "task",
            page=self._task_fragments(detail, mount_path(request), rejected),
            events=f"/events{_task_path(request)}",
            status=200 if rejected is None else 422,
            context={"detail": detail},
        )

    async def _task_events(self, request: Request) -> Response:
        base = mount_path(request)
        page = CachedTaskPage(
            lambda: self._detail(request), lambda detail: self._task_fragments(detail, base, None)
        )
        return await self._renderer.event_stream(request, _task_path(request), page.get)

    async def _detail(self, request: Request) -> TaskDetail:
        return await self._operator.get(request.path_params["locator"], request.path_params["task_id"])

    def _task_fragments(
        self, detail: TaskDetail, base: str, rejected: _RejectedAnswer | None
    ) -> PageFragments:
        blocks = result_blocks(detail.outcome.value) if isinstance(detail.outcome, Success) else []
        shown = "\n".join(block.text for block in blocks)
        if isinstance(detail.outcome, Failure):
            shown = detail.outcome.message
        message = _unless_shown(detail.summary.message, shown)
        context = {
            "detail": detail,
            "row": detail.summary,
            "outcome": outcome_json(detail.outcome),
            "blocks": blocks,
            "message": message,
            "failure": _unless_shown(detail.summary.last_failure, f"{shown}\n{message}"),
            "at": f"{base}/tasks/{detail.summary.locator}/{detail.summary.task_id}",
            "base": base,
        }
        fragments = {
            name: self._renderer.fragment(name, name, context)
            for name in ("summary", "timeline", "arguments", "variables", "checkpoint", "log", "outcome")
        }
        questions = {
            f"question-{digest(question.key)}-{question.asked_at}": question for question in detail.questions
        }
        for name, question in questions.items():
            fragments[name] = self._question(name, question, rejected, context)
        return PageFragments(fragments, {"questions": tuple(questions)})

    def _question(
        self, name: str, question: Question, rejected: _RejectedAnswer | None, context: Mapping[str, object]
    ) -> Markup:
        """Render the form of a question. After a rejected answer, the form keeps the user's input."""
        if rejected is not None and rejected.key != question.key:
            rejected = None
        form = {
            "question": question,
            "fields": form_fields(question.schema),
            "is_form": question.kind is InputKind.ELICITATION,
            "link": _external_url(question),
            "problems": rejected.problems if rejected else {},
            "given": rejected.form if rejected else None,
        }
        return self._renderer.fragment(
            "question", name, {**context, **form}, tag="section", keep=rejected is not None
        )

    async def _cancel(self, request: Request, _form: Form) -> Response:
        with suppress(TerminalTask):  # the task has finished in the meantime, which its page shows
            await self._operator.cancel(request.path_params["locator"], request.path_params["task_id"])
        return _redirect_to_task(request)

    async def _answer(self, request: Request, form: Form) -> Response:
        detail = await self._detail(request)
        key = form.get("key", "")
        question = next((each for each in detail.questions if each.key == key), None)
        if question is None:
            raise HTTPException(409, "This question is no longer open.")
        try:
            value = _parse_answer(question, form)
            await self._operator.answer(detail.summary.locator, detail.summary.task_id, key, value)
        except InvalidAnswer as error:
            return self._task_page(request, detail, _RejectedAnswer(key, form, error.problems))
        except (MalformedAnswer, InvalidValue, LimitExceeded) as error:
            return self._task_page(request, detail, _RejectedAnswer(key, form, {"": str(error)}))
        except (NoOpenQuestion, TerminalTask) as error:
            raise HTTPException(409, "This question is no longer open.") from error
        return _redirect_to_task(request)


class _ListQuery:
    """The filter and the position of a task list, parsed from the URL of the page."""

    def __init__(self, request: Request) -> None:
        params = request.query_params
        self.base = mount_path(request)
        self.status = _parse_status(params.get("status"))
        self.name = params.get("name", "").strip() or None
        self.application = params.get("application") or None
        self.after = params.get("after") or None

    def encode(self, **changes: str | None) -> str:
        """Return the query string of this list, with some parameters changed."""
        own = {"status": self.status, "name": self.name, "application": self.application, "after": self.after}
        params = {**own, **changes}
        return urlencode({name: value for name, value in params.items() if value})


def _parse_status(text: str | None) -> Status | None:
    try:
        return Status(text) if text else None
    except ValueError as error:
        raise HTTPException(404, f"Unknown status. Use one of {', '.join(Status)}.") from error


class CachedTaskPage:
    """The page of one task. It is rendered only when the task or its claim changes.

    Finished tasks are read less often.
    """

    def __init__(
        self, query: Callable[[], Awaitable[TaskDetail]], render: Callable[[TaskDetail], PageFragments]
    ) -> None:
        self._query = query
        self._render = render
        self._cached: tuple[tuple[int, ClaimSummary | None], PageFragments] | None = None
        self._fresh_until = 0.0

    async def get(self) -> PageFragments:
        if self._cached is not None and time.monotonic() < self._fresh_until:
            return self._cached[1]
        detail = await self._query()
        if detail.summary.status.is_terminal:
            self._fresh_until = time.monotonic() + FINISHED_REFRESH_SECONDS
        version = detail.summary.version, detail.claim
        if self._cached is None or self._cached[0] != version:
            self._cached = version, self._render(detail)
        return self._cached[1]


class _RejectedAnswer(msgspec.Struct, frozen=True):
    """An invalid answer, with the problem of each invalid field."""

    key: str
    form: Form
    problems: dict[str, str]


def _parse_answer(question: Question, form: Form) -> dict[str, Json]:
    """Return the answer in a submitted form, in the format that this kind of question requires."""
    if question.kind is not InputKind.ELICITATION:
        try:
            value = parse_json(form.get("answer", ""))
        except ValueError as error:
            raise InvalidAnswer({"": f"The answer {error}"}) from error
        if not isinstance(value, dict):
            raise InvalidAnswer({"": "The answer must be a JSON object"})
        return value
    if form.get("action") != "accept":
        return {"action": "decline"}
    if _external_url(question) is not None:
        return {"action": "accept"}
    fields = form_fields(question.schema)
    texts = {field.name: form.getlist(input_name(field)) for field in fields}
    return {"action": "accept", "content": parse_form(fields, texts)}


def _unless_shown(text: str | None, shown: str) -> str | None:
    """Return a text, or None if the page shows it already."""
    return None if text is None or text in shown else text


def _external_url(question: Question) -> str | None:
    url = question.external_url
    return url if url is not None and is_http_url(url) else None


def _task_path(request: Request) -> str:
    return TASK_PATH.format_map(request.path_params)


def _redirect_to_task(request: Request) -> Response:
    """Redirect to the page of the task, so that reloading it does not send the form again."""
    return RedirectResponse(mount_path(request) + _task_path(request), 303)
