"""The errors of a storage.

    PerdureError
    └── StorageError
        ├── InvalidArgument      the call violates the contract; nothing was sent to the engine
        ├── CannotOpen           the storage cannot be opened; the message says what to do
        │   ├── UnknownScheme    no engine has this URL scheme
        │   ├── MissingExtra     the engine's driver is not installed
        │   ├── ForeignStorage   the file, schema or table belongs to another application
        │   ├── MissingSchema    the tables do not exist, and this client must not create them
        │   ├── NewerSchema      a newer version of perdure wrote this storage
        │   └── UnsafeServer     the server is configured to lose acknowledged writes
        ├── StorageReadOnly      the engine cannot write
        ├── StorageFull          there is no space left
        ├── StorageCorrupt       stored data cannot be read
        ├── NewerFormat          a newer version of perdure wrote this record (retryable)
        ├── StorageBusy          concurrent writes blocked this call for too long (retryable)
        ├── StorageUnavailable   the server is unreachable or overloaded (retryable)
        ├── StorageFailed        any other failure of the engine; see the cause
        │   └── OutcomeUnknown   no response to a write; it may have been applied
        ├── TargetNotEmpty       the target of a copy already contains records
        ├── CopyMismatch         a copy differs from its source
        └── StorageClosed        the storage is closed

A version conflict is not an error: it is a result of `commit`. A call that raised has written nothing, except
after StorageFailed: whether that commit was written is unknown until the records are read.
"""

from __future__ import annotations


class PerdureError(Exception):
    """The base class of all errors that perdure raises."""

    #: Whether the same call may succeed later without a change by the caller.
    retryable: bool = False


class StorageError(PerdureError):
    """The base class of the errors of a storage."""


class InvalidArgument(StorageError):
    """Raised when a call violates the contract."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class CannotOpen(StorageError):
    """Raised when a storage cannot be opened."""

    def __init__(self, location: str, reason: str, remedy: str) -> None:
        super().__init__(f"cannot open {location}: {reason}; {remedy}")
        self.location = location
        self.reason = reason
        self.remedy = remedy


class UnknownScheme(CannotOpen):
    """Raised when no engine has the scheme of a URL."""


class MissingExtra(CannotOpen):
    """Raised when the driver of an engine is not installed."""


class ForeignStorage(CannotOpen):
    """Raised when the file, schema or table belongs to another application."""


class MissingSchema(CannotOpen):
    """Raised when the tables do not exist or are too old. `perdure migrate` creates or migrates them."""


class NewerSchema(CannotOpen):
    """Raised when a newer version of perdure wrote the storage."""


class UnsafeServer(CannotOpen):
    """Raised when the configuration of a server lets it lose acknowledged writes."""


class StorageReadOnly(StorageError):
    """Raised when the engine cannot write."""


class StorageFull(StorageError):
    """Raised when there is no space left for a write."""


class StorageCorrupt(StorageError):
    """Raised when stored data cannot be read."""


class NewerFormat(StorageError):
    """Raised when a newer version of perdure wrote a record, which is left unchanged."""

    retryable = True

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(
            f"{key} was written by a newer version of perdure and is left unchanged: {reason}; "
            "upgrade this process to use it"
        )
        self.key = key
        self.reason = reason


class StorageBusy(StorageError):
    """Raised when concurrent writes blocked a call for longer than its timeout."""

    retryable = True


class StorageUnavailable(StorageError):
    """Raised when the server is unreachable or overloaded. Nothing was written."""

    retryable = True


class StorageFailed(StorageError):
    """Raised when the engine failed; its error is the cause. Read before writing again: a commit may have
    been written.
    """


class OutcomeUnknown(StorageFailed):
    """Raised when the connection was lost, or a timeout expired, after a write was sent."""


class TargetNotEmpty(StorageError):
    """Raised when the target of a copy already contains records."""


class CopyMismatch(StorageError):
    """Raised when a copy differs from its source, because one of them was written to or had other records."""

    def __init__(
        self, space: str, partition: str, key: str, reason: str = "the copy differs from the source"
    ) -> None:
        super().__init__(f"{space}/{partition}/{key}: {reason}; empty the target and copy again")
        self.space = space
        self.partition = partition
        self.key = key
        self.reason = reason


class StorageClosed(StorageError):
    """Raised when a call is made to a closed storage, or is waiting when the storage is closed."""
