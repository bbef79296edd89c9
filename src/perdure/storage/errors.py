"""The errors that a storage raises.

    PerdureError
    └── StorageError
        ├── InvalidArgument      an argument is invalid; nothing was sent to the engine
        ├── CannotOpen           the storage cannot be opened; the message explains what to do
        │   ├── UnknownScheme    no engine is registered for this URL scheme
        │   ├── MissingExtra     the engine's driver is not installed
        │   ├── ForeignStorage   the file, schema or table belongs to another application
        │   ├── MissingSchema    the tables do not exist or are too old; run `perdure migrate`
        │   ├── NewerSchema      a newer version of perdure wrote this storage
        │   └── UnsafeServer     the server is configured so that it can lose acknowledged writes
        ├── StorageReadOnly      the storage is read-only, or the user lacks write permission
        ├── StorageFull          there is no space left
        ├── StorageCorrupt       stored data is damaged and cannot be read
        ├── NotReadableHere      this process cannot read a record that is intact (retryable)
        │   └── NewerFormat      a newer version of perdure wrote the record
        ├── StorageBusy          the call timed out, usually because of concurrent writes (retryable)
        ├── StorageUnavailable   the server is unreachable or overloaded (retryable)
        ├── StorageFailed        any other failure of the engine; see the cause
        │   └── OutcomeUnknown   it is unknown whether a write was applied
        ├── TargetNotEmpty       the target of a copy already contains records or another copy
        ├── CopyMismatch         a copy differs from its source
        └── StorageClosed        the storage is closed

A version conflict is not an error: it is a result of `commit`. If a commit raises an error, nothing was
written, unless the error is StorageFailed. In that case, read the records before you write again.
"""

from __future__ import annotations


class PerdureError(Exception):
    """The base class of all errors that perdure raises."""

    retryable: bool = False
    """Whether the same call may succeed if the caller repeats it later."""


class StorageError(PerdureError):
    """The base class of all storage errors."""


class InvalidArgument(StorageError):
    """Raised when an argument violates the storage contract. Nothing was sent to the engine."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class CannotOpen(StorageError):
    """Raised when a storage cannot be opened. `remedy` explains what to do."""

    def __init__(self, location: str, reason: str, remedy: str) -> None:
        super().__init__(f"cannot open {location}: {reason}; {remedy}")
        self.location = location
        self.reason = reason
        self.remedy = remedy


class UnknownScheme(CannotOpen):
    """Raised when no engine is registered for the scheme of a URL."""


class MissingExtra(CannotOpen):
    """Raised when the driver package that an engine needs is not installed."""


class ForeignStorage(CannotOpen):
    """Raised when the file, schema or table belongs to another application."""


class MissingSchema(CannotOpen):
    """Raised when the tables do not exist or are too old. `perdure migrate` creates or migrates them."""


class NewerSchema(CannotOpen):
    """Raised when a newer version of perdure wrote the storage."""


class UnsafeServer(CannotOpen):
    """Raised when a server is configured in a way that can lose acknowledged writes."""


class StorageReadOnly(StorageError):
    """Raised when the storage is read-only, or the user does not have permission to write to it."""


class StorageFull(StorageError):
    """Raised when there is no space left for a write."""


class StorageCorrupt(StorageError):
    """Raised when stored data is damaged and cannot be read."""


class NotReadableHere(StorageError):
    """Raised when a record is intact, but this process cannot read it. The record is left unchanged."""

    retryable = True

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class NewerFormat(NotReadableHere):
    """Raised when a record was written by a newer version of perdure. The record is left unchanged."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(
            key,
            f"{key} was written by a newer version of perdure and is left unchanged: {reason}; "
            "upgrade perdure and restart this process",
        )
        self.reason = reason


class StorageBusy(StorageError):
    """Raised when a call timed out or was rolled back, usually because of concurrent writes."""

    retryable = True


class StorageUnavailable(StorageError):
    """Raised when the server is unreachable or overloaded. Nothing was written."""

    retryable = True


class StorageFailed(StorageError):
    """Raised when no other error class describes the failure. `__cause__` is the error of the engine, if any.

    A commit that failed may have been written, so read the records before you write again.
    """


class OutcomeUnknown(StorageFailed):
    """Raised when it is unknown whether a write was applied, for example because its response was lost."""


class TargetNotEmpty(StorageError):
    """Raised when the target of a copy already contains records, or another copy that is not finished.

    If `can_merge` is True, the copy can be repeated with `merge=True`.
    """

    def __init__(self, reason: str, *, can_merge: bool = False) -> None:
        super().__init__(reason)
        self.can_merge = can_merge


class CopyMismatch(StorageError):
    """Raised when a copy differs from its source, for example because a process wrote during the copy."""

    def __init__(
        self, space: str, partition: str, key: str, reason: str = "the copy differs from the source"
    ) -> None:
        super().__init__(f"{space}/{partition}/{key}: {reason}; empty the target and copy again")
        self.space = space
        self.partition = partition
        self.key = key
        self.reason = reason


class StorageClosed(StorageError):
    """Raised by every call to a closed storage, and by a call that is waiting when the storage is closed."""
