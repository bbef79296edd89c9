"""What can go wrong in a storage, as one tree.

    PerdureError
    └── StorageError
        ├── InvalidArgument      the call breaks the contract; nothing was sent to the engine
        ├── CannotOpen           the storage cannot be opened; the message names the remedy
        │   ├── UnknownScheme    no engine answers to this URL
        │   ├── MissingExtra     the engine's driver is not installed
        │   ├── ForeignFile      the file is not one of ours
        │   └── NewerSchema      a later perdure wrote this file
        ├── StorageReadOnly      the engine may not write
        ├── StorageFull          the engine has no room left
        ├── StorageCorrupt       what is stored can no longer be read
        ├── StorageBusy          others held the storage for too long (retryable)
        ├── StorageFailed        the engine failed in some other way, see the cause
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


class ForeignFile(CannotOpen):
    """The file exists and holds something else."""


class NewerSchema(CannotOpen):
    """A later version of perdure wrote this storage."""


class StorageReadOnly(StorageError):
    """The engine may not write."""


class StorageFull(StorageError):
    """The engine has no room left for what was to be written."""


class StorageCorrupt(StorageError):
    """What is stored can no longer be read."""


class StorageBusy(StorageError):
    """Others held the storage for longer than we were told to wait."""

    retryable = True


class StorageFailed(StorageError):
    """The engine failed; its own error is the cause. A commit may have been written or not: read first."""


class StorageClosed(StorageError):
    """The storage was closed before this call, or while it waited."""
