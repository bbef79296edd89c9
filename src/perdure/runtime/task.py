"""`Task`: the task of a running function, with which the function reads and writes its state.

After another worker has claimed the task, every write raises ClaimLost. A plain function, which runs in a
thread, calls the coroutines with `anyio.from_thread.run`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

import anyio
import msgspec

from ..storage.time_types import Duration, to_seconds
from ..tasks import (
    InputKind,
    InputRequest,
    Json,
    LogLevel,
    Owner,
    Progress,
    TaskId,
    Variables,
    canonical_json,
    edits,
)
from ..tasks.canonical_json import JsonLike
from ..tasks.errors import InvalidValue
from ..tasks.inputs import Capability, ElicitationAnswer, Input, InputError, Root, RootsAnswer
from .errors import TaskCancelled

if TYPE_CHECKING:
    from .run import Run


class Model(Protocol):
    """A pydantic model."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]: ...
    @classmethod
    def model_validate(cls, obj: Any) -> Any: ...  # noqa: ANN401


M = TypeVar("M", bound=Model)
D = TypeVar("D")


class Accepted(msgspec.Struct, Generic[D], frozen=True):
    """The answer if the user submitted a form, or agreed to open the page of `task.elicit_url`."""

    data: D
    """The submitted model if `schema` was a model, or else the submitted values, by the names of fields."""
    action: Literal["accept"] = "accept"


class Refused(msgspec.Struct, frozen=True):
    """The answer if the user declined, or closed the form without a decision."""

    action: Literal["decline", "cancel"]
    data: None = None


Elicited: TypeAlias = Accepted[D] | Refused
"""The answer to `task.elicit`. Type checkers infer from its `action` whether there is `data`."""


class Task:
    """The task of a running function."""

    def __init__(self, run: Run, scope: str = "") -> None:
        self._run = run
        self._scope = scope
        self._questions = 0

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> NoReturn:
        """Raise InvalidValue, because a tool that is not durable has a parameter of this type.

        The parameters of a durable tool, which pydantic reads, do not include this one.
        """
        raise InvalidValue(
            "function",
            "has a Task parameter, but is not durable; write @tasks.durable directly above the function, "
            "below @server.tool(); with FastMCP, write task: Task = Depends(current_task)",
        )

    def scoped(self, part: str) -> Task:
        """Return the same task for a part of its work, whose questions are numbered separately."""
        return Task(self._run, f"{self._scope}{part}-")

    def again(self) -> Task:
        """Return the same task for another call of its function, whose questions are numbered anew."""
        return Task(self._run, self._scope)

    @property
    def id(self) -> TaskId:
        return self._run.snapshot.task.task_id

    @property
    def owner(self) -> Owner:
        return self._run.snapshot.task.owner

    @property
    def params(self) -> Json:
        """The parameters of the stored call."""
        return self._run.snapshot.task.original_params

    @property
    def arguments(self) -> Mapping[str, Json]:
        """The arguments of the call."""
        params = self.params
        arguments = params.get("arguments") if isinstance(params, dict) else None
        return arguments if isinstance(arguments, dict) else {}

    @property
    def meta(self) -> Mapping[str, Json]:
        """The `_meta` of the request that became the task; empty if there was none."""
        meta = self._run.snapshot.task.meta
        return meta if isinstance(meta, dict) else {}

    @property
    def credentials_not_stored(self) -> bool:
        """Whether the caller had credentials that were not stored, because there was no key."""
        return self._run.snapshot.task.credentials_not_stored

    @property
    def is_encrypted(self) -> bool:
        """Whether the contents of the task are encrypted, and must not be logged."""
        return self._run.snapshot.task.is_encrypted

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1 for the first, and one more for each further start."""
        return self._run.attempt

    @property
    def has_retries(self) -> bool:
        """Whether the function is run again if this attempt fails with an exception that may be retried."""
        return self._run.has_retries

    @property
    def last_error(self) -> str | None:
        """Why the previous attempt failed or was interrupted. None if there was none."""
        return self._run.snapshot.task.last_failure

    # State that is kept for later attempts

    @property
    def variables(self) -> Variables:
        """State that is shared with the client, as last read. The client can change it, too."""
        return self._run.snapshot.task.variables

    async def set_variables(self, changes: Mapping[str, JsonLike]) -> Variables:
        """Change some variables, which are stored when this returns. The value `None` removes a variable."""
        await self._run.write(
            lambda task, now, config: edits.set_variables(task, changes, now=now, config=config)
        )
        return self.variables

    @property
    def checkpoint(self) -> Variables:
        """The state that this attempt or an earlier one has saved. Clients cannot read or write it."""
        return self._run.snapshot.task.checkpoint

    async def save_checkpoint(self, changes: Mapping[str, JsonLike]) -> Variables:
        """Change parts of the checkpoint, which are stored when this returns. `None` removes a part."""
        await self._run.write(
            lambda task, now, config: edits.save_checkpoint(task, changes, now=now, config=config)
        )
        return self.checkpoint

    async def report_progress(
        self, progress: float | None = None, total: float | None = None, message: str | None = None
    ) -> None:
        """Report progress. Frequent reports are combined, and written a few times a second."""
        reported = None if progress is None else Progress(done=progress, total=total)
        await self._run.reporter.report(message, reported)

    async def log(self, level: LogLevel, message: JsonLike, *, logger: str | None = None) -> None:
        """Add an entry to the log of the task, which keeps the newest 200 for operators.

        Entries in quick succession are written together. If one cannot be written, that is not an error of
        the function.
        """
        await self._run.log(level, message, logger)

    # Asking the client

    @property
    def questions(self) -> Mapping[str, Input]:
        """All questions that the task has asked, by key, with their answers if there are any."""
        return self._run.snapshot.task.inputs

    @property
    def client_capabilities(self) -> tuple[str, ...]:
        """What the client declared that it can be asked, or everything if operators may answer too."""
        task = self._run.snapshot.task
        if task.client_can is None or task.operators_answer:
            return tuple(Capability)
        return task.client_can

    @overload
    async def elicit(
        self, message: str, schema: type[M], *, key: str | None = None, deadline: Duration | None = None
    ) -> Elicited[M]: ...
    @overload
    async def elicit(
        self,
        message: str,
        schema: Mapping[str, JsonLike] | None = None,
        *,
        key: str | None = None,
        deadline: Duration | None = None,
    ) -> Elicited[dict[str, Any]]: ...
    async def elicit(
        self,
        message: str,
        schema: type[Model] | Mapping[str, JsonLike] | None = None,
        *,
        key: str | None = None,
        deadline: Duration | None = None,
    ) -> Elicited[Any]:
        """Ask the user to fill in a form, which is described by a pydantic model or a JSON schema. Return at
        once if an earlier attempt got the answer.

        If there is no answer within `deadline`, the task fails. By default, the deadline is the
        `input_deadline` of the function or, if it has none, the ttl of the task. Raise ClientCannotAnswer if
        the client did not declare that it can be asked, and InputFailed if it answers with a JSON-RPC error.
        """
        is_model = isinstance(schema, type)
        form: JsonLike = _form_of(schema.model_json_schema()) if is_model else schema or EMPTY_FORM
        params: JsonLike = {"mode": "form", "message": message, "requestedSchema": form}
        asked = await self.ask_one(InputKind.ELICITATION, params, key=key, deadline=deadline)
        answer = cast("ElicitationAnswer", asked.answer)
        if answer.action != "accept":
            return Refused(answer.action)
        return Accepted(schema.model_validate(answer.values) if is_model else answer.values)

    async def elicit_url(
        self, message: str, url: str, *, key: str | None = None, deadline: Duration | None = None
    ) -> Elicited[None]:
        """Ask the user to open a page. The answer says whether the user agreed, not what happened on it."""
        name = key or self._question_key(InputKind.ELICITATION, {"message": message, "url": url})
        params: JsonLike = {
            "mode": "url",
            "message": message,
            "url": url,
            "elicitationId": f"{self.id}-{name}",
        }
        asked = await self.ask_one(InputKind.ELICITATION, params, key=name, deadline=deadline)
        action = cast("ElicitationAnswer", asked.answer).action
        return Accepted(None) if action == "accept" else Refused(action)

    async def sample(
        self,
        messages: Sequence[Mapping[str, JsonLike]],
        *,
        max_tokens: int,
        key: str | None = None,
        deadline: Duration | None = None,
        **params: JsonLike,
    ) -> dict[str, Any]:
        """Ask the client's model. Messages, `params` and the result are those of `sampling/createMessage`."""
        request: JsonLike = {"messages": list(messages), "maxTokens": max_tokens, **params}
        asked = await self.ask_one(InputKind.SAMPLING, request, key=key, deadline=deadline)
        return cast("dict[str, Any]", asked.raw_answer)

    async def list_roots(self, *, key: str | None = None, deadline: Duration | None = None) -> list[Root]:
        """Ask the client for the directories to which it gives access."""
        asked = await self.ask_one(InputKind.ROOTS, None, key=key, deadline=deadline)
        return cast("RootsAnswer", asked.answer).roots

    def check_askable(self, requests: Mapping[str, InputRequest]) -> None:
        """Raise ClientCannotAnswer if the client did not declare that it can answer one of these."""
        self._run.check_askable(requests)

    async def ask(self, requests: Mapping[str, InputRequest]) -> dict[str, Input]:
        """Ask several questions at once, each under its own key, and wait until all are answered.

        A key that was asked before, in this attempt or an earlier one, is not asked again. Raise InputFailed
        if one of the answers is a JSON-RPC error.
        """
        return await self._run.ask(requests)

    async def ask_one(
        self,
        kind: InputKind,
        params: JsonLike,
        *,
        key: str | None = None,
        deadline: Duration | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
        timeout_error: InputError | None = None,
    ) -> Input:
        """Ask one question. Without a key, the question is identified by its contents and its position.

        If there is no answer within `timeout`, store `timeout_error` as the answer, and raise InputFailed.
        """
        seconds = None if deadline is None else to_seconds(deadline)
        name = key or self._question_key(kind, params)
        if key is None and name in self.questions:
            params = self.questions[name].params  # which may have another elicitation id
        request = InputRequest(kind=kind, params=params, deadline=seconds)
        with anyio.move_on_after(timeout):
            return (await self._run.ask({name: request}))[name]
        error = timeout_error or InputError(code=0, message="there was no answer in time")
        await self._run.withdraw(name, request, error)
        return (await self._run.ask({name: request}))[name]  # an answer may have come just in time

    def _question_key(self, kind: InputKind, params: JsonLike) -> str:
        """Return a key that is the same if the function is run again and asks the same in the same order."""
        self._questions += 1
        if isinstance(params, Mapping):  # a function that runs again may use another elicitation id
            params = {name: value for name, value in params.items() if name != "elicitationId"}
        text = canonical_json.canonical(canonical_json.encode_checked("inputs", params))
        digest = hashlib.blake2b(kind.encode() + b"\0" + text, digest_size=6).hexdigest()
        return f"{self._scope}{self._questions}-{digest}"

    # Cancellation

    def is_cancelled(self) -> bool:
        """Return whether the task should end. A coroutine is cancelled; a plain function must call this."""
        return self._run.cancellation.is_requested

    def check_cancelled(self) -> None:
        """Raise TaskCancelled if the task should end. A plain function should call this regularly."""
        if self.is_cancelled():
            raise TaskCancelled


EMPTY_FORM: JsonLike = {"type": "object", "properties": {}}


def _form_of(schema: dict[str, Any]) -> JsonLike:
    """Return the schema of a model without the type `null`, which forms do not allow."""
    properties: dict[str, Any] = schema.get("properties", {})
    return {**schema, "properties": {name: _field_of(each) for name, each in properties.items()}}


def _field_of(schema: dict[str, Any]) -> dict[str, Any]:
    types = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(types) != 1:
        return schema
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    if rest.get("default") is None:
        rest.pop("default", None)
    return {**types[0], **rest}


_current: ContextVar[Task | None] = ContextVar("perdure_current_task", default=None)


def current_task() -> Task:
    """Return the task that is running in this context. Raise RuntimeError outside a task."""
    task = _current.get()
    if task is None:
        raise RuntimeError(
            "no task is running here; call current_task() in a durable function or in code that it calls"
        )
    return task


def find_current_task() -> Task | None:
    """Return the task whose function runs here, or None."""
    return _current.get()


def stored_credentials(task: Task) -> Json:
    """Return the credentials of the caller as they were stored, or None if there are none.

    Only for adapters of frameworks, which must not show a function a token that has expired.
    """
    return task._run.snapshot.task.credentials  # pyright: ignore[reportPrivateUsage] # noqa: SLF001


def set_current_task(task: Task) -> None:
    """Let `current_task` return this task from now on, in the current context."""
    _current.set(task)
