"""What the processes of the storm do besides running work: create, cancel, answer and read, without end."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from random import Random

import msgspec

from perdure.runtime import Runtime
from perdure.tasks import Owner, Snapshot, Status
from perdure.tasks.errors import QuotaExceeded, TaskError, TerminalTask

from ... import task_edits
from .functions import choose
from .journal import Answered, Cancelled, Cancelling, Complained, Created, Journal

OWNERS = tuple(Owner.user("https://issuer.example", f"user {n}") for n in range(4))
REMEMBERED = 300
KEYS_A_SECOND = 3
"""A key is the time it was used first, so that processes that know nothing of each other use the same."""


class Client:
    """One who uses a runtime. Its verbs go on until they are cancelled."""

    def __init__(self, runtime: Runtime, journal: Journal, chance: Random) -> None:
        self._runtime = runtime
        self._journal = journal
        self._chance = chance
        self._known: deque[tuple[Owner, str]] = deque(maxlen=REMEMBERED)
        self._answers = 0

    async def create(self) -> None:
        """New tasks, some of them with a key that others use too, and have used before."""
        while True:
            await self._pause(0.08)
            make = self._create_keyed if self._chance.random() < 0.25 else self._create
            try:
                await make()
            except QuotaExceeded:
                await self._pause(0.5)
            except TaskError as error:
                self._complain("create", error)

    async def _create(self) -> None:
        owner = self._chance.choice(OWNERS)
        task_id = await self.submit(owner, choose(self._chance), self._chance.getrandbits(20))
        if self._chance.random() < 0.1:
            await self.cancel_one(owner, task_id)

    async def _create_keyed(self) -> None:
        number = int(time.monotonic() * KEYS_A_SECOND) - self._chance.choice((0, 0, 1, 2, 30))
        said = Random(number)
        await self.submit(said.choice(OWNERS), choose(said), number, f"key {number}")

    async def submit(self, owner: Owner, function: str, argument: int, key: str | None = None) -> str:
        made = await self._runtime.submit(function, {"n": argument}, owner=owner, idempotency_key=key)
        self._journal.add(Created(task=made.task.task_id, function=function, argument=argument, key=key))
        self._known.append((owner, made.task.task_id))
        return made.task.task_id

    async def cancel(self) -> None:
        """Any task, waiting or running or ended."""
        while True:
            await self._pause(0.3)
            if self._known:
                await self.cancel_one(*self._chance.choice(self._known))

    async def cancel_one(self, owner: Owner, task_id: str) -> None:
        self._journal.add(Cancelling(task=task_id))
        try:
            told = (await self._runtime.cancel(owner, task_id)).task
        except TerminalTask:
            return
        except TaskError as error:
            self._complain("cancel", error)
            return
        self._journal.add(Cancelled(task=task_id, is_ended=told.is_terminal, attempts=told.attempts))

    async def read(self) -> None:
        """What was seen is noted by the storage."""
        while True:
            await self._pause(0.03)
            if self._known:
                owner, task_id = self._chance.choice(self._known)
                try:
                    await self._runtime.store.get(owner, task_id)
                except TaskError as error:
                    self._complain("read", error)

    async def answer(self) -> None:
        """Whatever is asked of anybody."""
        while True:
            await self._pause(0.2)
            await self.answer_all()

    async def answer_all(self) -> None:
        for asked in await task_edits.all_tasks(self._runtime.store, Status.INPUT_REQUIRED):
            await self._answer(asked)

    async def _answer(self, asked: Snapshot) -> None:
        task = asked.task
        given = {key: self._next_answer() for key in task.outstanding}
        try:
            told = await self._runtime.answer(task.owner, task.task_id, given)
        except TerminalTask:
            return
        except TaskError as error:
            self._complain("answer", error)
            return
        stands = {key: said_in(told, key) for key in given}
        self._journal.add(Answered(task=task.task_id, answers=stands))

    def _next_answer(self) -> dict[str, str | dict[str, str]]:
        self._answers += 1
        return {"action": "accept", "content": {"said": f"{self._journal.who} {self._answers}"}}

    def _complain(self, verb: str, error: Exception) -> None:
        self._journal.add(Complained(text=f"{verb} raised {type(error).__name__}: {error}"))

    async def _pause(self, most: float) -> None:
        await asyncio.sleep(self._chance.uniform(0, most))


class _Answer(msgspec.Struct, frozen=True):
    content: dict[str, msgspec.Raw]


def said_in(snapshot: Snapshot, key: str) -> str:
    """What was said to this question, as the function hears it."""
    raw = snapshot.task.inputs[key].answer_json
    if not isinstance(raw, msgspec.Raw):
        return ""
    return bytes(msgspec.json.decode(raw, type=_Answer).content["said"]).decode()
