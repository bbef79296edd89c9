"""What can go wrong in a storage, as one tree.

    PerdureError
    └── StorageError
        ├── InvalidArgument      the call breaks the contract; nothing was sent to the engine
        ├── CannotOpen           the storage cannot be opened; the message names the remedy
        │   ├── UnknownScheme    no engine answers to this URL
        │   ├── MissingExtra     the engine's driver is not installed
        │   ├── ForeignStorage   what stands there is not ours
        │   ├── MissingSchema    our tables are not there, and this client was told not to make them
        │   ├── NewerSchema      a later perdure wrote this storage
        │   └── UnsafeServer     the server is set up to lose what it acknowledged
        ├── StorageReadOnly      the engine may not write
        ├── StorageFull          the engine has no room left
        ├── StorageCorrupt       what is stored can no longer be read
        ├── NewerFormat          a newer version of perdure wrote this record (retryable)
        ├── StorageBusy          others held the storage for too long (retryable)
        ├── StorageUnavailable   the server cannot be reached, or takes no more for now (retryable)
        ├── StorageFailed        the engine failed in some other way, see the cause
        │   └── OutcomeUnknown   the answer to a write was lost on its way
        ├── TargetNotEmpty       a copy would mix with what is there
        ├── CopyDiffers          a copy is not what it was copied from
        └── StorageClosed        the storage was closed before

A version conflict is not an error here: it is an answer of `commit`. Nothing of a call that raised was
written, except after StorageFailed: whether that commit was written is then unknown until somebody reads.
"""

from __future__ import annotations


class PerdureError(Exception):
    """Any error that perdure raises on purpose."""

    #: Whether the same call may succeed later, with nothing changed by the caller.
    retryable: bool = False


class StorageError(PerdureError):
    """Something that the storage could not do."""


class InvalidArgument(StorageError):
    """A call that breaks the contract."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class CannotOpen(StorageError):
    """The storage cannot be opened as it stands."""

    def __init__(self, location: str, reason: str, remedy: str) -> None:
        super().__init__(f"cannot open {location}: {reason}; {remedy}")
        self.location = location
        self.reason = reason
        self.remedy = remedy


class UnknownScheme(CannotOpen):
    """No engine answers to this URL."""


class MissingExtra(CannotOpen):
    """The engine is known, but its driver is not installed."""


class ForeignStorage(CannotOpen):
    """Something else stands where the storage should be."""


class MissingSchema(CannotOpen):
    """The tables are not there, or are older than this perdure; `perdure migrate` makes them."""


class NewerSchema(CannotOpen):
    """A later version of perdure wrote this storage."""


class UnsafeServer(CannotOpen):
    """The server would drop records that it acknowledged, by the way it is set up."""


class StorageReadOnly(StorageError):
    """The engine may not write."""


class StorageFull(StorageError):
    """The engine has no room left for what was to be written."""


class StorageCorrupt(StorageError):
    """What is stored can no longer be read."""


class NewerFormat(StorageError):
    """A newer version of perdure wrote this record. It is left exactly as it is."""

    retryable = True

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(
            f"{key} was written by a newer version of perdure and is left as it is: {reason}; "
            "upgrade this process to work with it"
        )
        self.key = key
        self.reason = reason


class StorageBusy(StorageError):
    """Others held the storage for longer than we were told to wait."""

    retryable = True


class StorageUnavailable(StorageError):
    """The server cannot be reached, or takes no more for now. Nothing was written."""

    retryable = True


class StorageFailed(StorageError):
    """The engine failed; its own error is the cause. A commit may have been written or not: read first."""


class OutcomeUnknown(StorageFailed):
    """The connection broke, or time ran out, after a write was sent: it may have happened or not."""


class TargetNotEmpty(StorageError):
    """A copy would mix with what is there already."""


class CopyDiffers(StorageError):
    """A copy is not what it was copied from: somebody wrote meanwhile, or other records were there."""

    def __init__(
        self, space: str, partition: str, key: str, reason: str = "it is not the same record"
    ) -> None:
        super().__init__(f"{space}/{partition}/{key}: {reason}; empty the target, and copy again")
        self.space = space
        self.partition = partition
        self.key = key
        self.reason = reason


class StorageClosed(StorageError):
    """The storage was closed before this call, or while it waited."""
