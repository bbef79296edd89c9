"""`Task`: what a running function sees of its task.

Every write of it is fenced by the lease: after another worker has taken the task, each raises ClaimLost.
A plain function, which runs in a thread, calls the coroutines through `anyio.from_thread.run`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn, cast

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
from ..tasks.inputs import ElicitationAnswer, Input, RootsAnswer, SamplingAnswer
from .cancellation import Cancellation
from .errors import TaskCancelled

if TYPE_CHECKING:
    from .run import Run


class Task:
    """A task while it is worked on."""

    def __init__(self, run: Run, scope: str = "") -> None:
        self._run = run
        self._scope = scope
        self._questions = 0

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> NoReturn:
        """Raise: pydantic reads the parameters of tools, and those of a durable function have no task."""
        raise InvalidValue(
            "function",
            "takes a Task, but is not durable; write @tasks.durable directly above the function, below "
            "@server.tool()",
        )

    def within(self, part: str) -> Task:
        """The same task for a part of its work, which numbers its questions for itself."""
        return Task(self._run, f"{self._scope}{part}-")

    @property
    def id(self) -> TaskId:
        return self._run.snapshot.task.task_id

    @property
    def owner(self) -> Owner:
        return self._run.snapshot.task.owner

    @property
    def params(self) -> Json:
        """What the task was created with."""
        return self._run.snapshot.task.original_params

    @property
    def meta(self) -> Json:
        """The `_meta` of the request that became the task, where there was one."""
        return self._run.snapshot.task.meta

    @property
    def attempt(self) -> int:
        """1 the first time, one more each time that it was started again."""
        return self._run.attempt

    @property
    def last_failure(self) -> str | None:
        """Why the attempt before this one came to nothing."""
        return self._run.snapshot.task.last_failure

    # State that survives

    @property
    def variables(self) -> Variables:
        """State that is shared with the client, as last seen here: it may have set some of it."""
        return self._run.snapshot.task.variables

    async def set_variables(self, changes: Mapping[str, JsonLike]) -> Variables:
        """Merge into the variables; they are stored when this returns. `None` takes one away."""
        await self._run.write(
            lambda task, now, config: edits.set_variables(task, changes, now=now, config=config)
        )
        return self.variables

    @property
    def checkpoint(self) -> Variables:
        """State of the work alone, as an earlier attempt left it. No client reads or writes it."""
        return self._run.snapshot.task.checkpoint

    async def save_checkpoint(self, changes: Mapping[str, JsonLike]) -> Variables:
        """Merge into the checkpoint; it is stored when this returns. `None` removes a name."""
        await self._run.write(
            lambda task, now, config: edits.save_checkpoint(task, changes, now=now, config=config)
        )
        return self.checkpoint

    async def report(
        self, message: str | None = None, done: float | None = None, total: float | None = None
    ) -> None:
        """Say how far the work is. Cheap: what is said too often is written a few times a second."""
        progress = None if done is None else Progress(done=done, total=total)
        await self._run.reporter.report(message, progress)

    async def log(self, level: LogLevel, message: JsonLike, *, logger: str | None = None) -> None:
        """Add an entry to the log of the task, which keeps the newest 200 for operators.

        Entries in quick succession are written together. If one cannot be written, that is not an error of
        the function.
        """
        await self._run.log(level, message, logger)

    # Asking the client

    @property
    def inputs(self) -> Mapping[str, Input]:
        """Everything that was ever asked, by key, with its answer where there is one."""
        return self._run.snapshot.task.inputs

    async def elicit(
        self,
        message: str,
        schema: JsonLike = None,
        *,
        key: str | None = None,
        deadline: float | None = None,
    ) -> ElicitationAnswer:
        """Ask the user. Returns at once if an earlier attempt has the answer already.

        If there is no answer within `deadline` seconds (by default the ttl of the task), the task fails.
        Raises ClientCannotAnswer if the client did not declare that it can be asked, and InputFailed if it
        answers with a JSON-RPC error.
        """
        params: JsonLike = {"mode": "form", "message": message, "requestedSchema": schema or _NOTHING_ASKED}
        asked = await self._ask_one(InputKind.ELICITATION, params, key, deadline)
        return cast("ElicitationAnswer", asked.answer)

    async def sample(
        self, params: JsonLike, *, key: str | None = None, deadline: float | None = None
    ) -> SamplingAnswer:
        """Ask the client's model. `params` are those of `sampling/createMessage`."""
        asked = await self._ask_one(InputKind.SAMPLING, params, key, deadline)
        return cast("SamplingAnswer", asked.answer)

    async def roots(self, *, key: str | None = None, deadline: float | None = None) -> RootsAnswer:
        """Ask the client where it lets the server look."""
        asked = await self._ask_one(InputKind.ROOTS, None, key, deadline)
        return cast("RootsAnswer", asked.answer)

    def check_askable(self, requests: Mapping[str, InputRequest]) -> None:
        """Raise ClientCannotAnswer if the client did not declare that it can be asked one of these."""
        self._run.check_askable(requests)

    async def ask(self, requests: Mapping[str, InputRequest]) -> dict[str, Input]:
        """Ask several things at once, each under its own key, and wait until all are answered.

        A key that was asked before, in this attempt or an earlier one, is not asked again. Raises InputFailed
        if one of the answers is a JSON-RPC error.
        """
        return await self._run.ask(requests)

    async def _ask_one(
        self, kind: InputKind, params: JsonLike, key: str | None, deadline: float | None
    ) -> Input:
        request = InputRequest(kind=kind, params=params, deadline=deadline)
        name = key or self._next_key(request)
        return (await self._run.ask({name: request}))[name]

    def _next_key(self, request: InputRequest) -> str:
        """A key that is the same again when the function is run again and asks the same in the same order."""
        self._questions += 1
        text = canonical_json.encode_checked("inputs", request.params)
        digest = hashlib.blake2b(request.kind.encode() + b"\0" + bytes(text), digest_size=6).hexdigest()
        return f"{self._scope}{self._questions}-{digest}"

    # Being cancelled

    @property
    def cancellation(self) -> Cancellation:
        """Whether the task should end. A coroutine is cancelled besides; a thread must look here."""
        return self._run.cancellation

    def check_cancelled(self) -> None:
        """Raise TaskCancelled if the task should end: for plain functions, now and then."""
        if self._run.cancellation.is_requested:
            raise TaskCancelled


_NOTHING_ASKED: JsonLike = {"type": "object", "properties": {}}
