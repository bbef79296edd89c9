"""With what a command ends that could not do what it was asked to.

0   it was done
1   it did not succeed now: nobody answered, a task or an account is not in the state for it, something was
    found amiss. The same command may succeed later
2   it cannot be done as it was asked for: until somebody changes the command, the settings or the storage,
    it stays so
"""

from __future__ import annotations

from typing import TypeAlias

from ..feeds.errors import (
    AmbiguousName,
    CorruptFeed,
    FollowsNobody,
    InvalidActor,
    InvalidSettings,
    NotAuthorized,
    UnknownAccount,
)
from ..operating import AmbiguousId, TooShort
from ..storage.errors import PerdureError, StorageError, StorageFailed
from ..tasks.errors import CorruptRecord, InvalidCursor, InvalidValue, MalformedAnswer, NotFound

NOT_NOW, ASKED_WRONGLY = 1, 2


class CannotDo(Exception):
    """Something that cannot be done as it was asked for. The message says what to do."""


Expected: TypeAlias = CannotDo | PerdureError
"""What a command tells in one sentence. Anything else is a mistake of ours, and is shown in full."""

_WRONGLY = (
    *(CannotDo, StorageError),
    *(NotFound, TooShort, AmbiguousId, InvalidCursor, InvalidValue, MalformedAnswer, CorruptRecord),
    *(
        InvalidSettings,
        FollowsNobody,
        NotAuthorized,
        UnknownAccount,
        AmbiguousName,
        InvalidActor,
        CorruptFeed,
    ),
)


def code_of(error: Expected) -> int:
    """1 or 2. An engine that failed for a reason of its own may not fail the next time."""
    if isinstance(error, StorageFailed) or (isinstance(error, PerdureError) and error.retryable):
        return NOT_NOW
    return ASKED_WRONGLY if isinstance(error, _WRONGLY) else NOT_NOW
