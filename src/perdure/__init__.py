"""Durable tasks for MCP servers: long-running tool calls that survive restarts, stored in your database.

The public names are imported on first use, so that a worker does not load what only a server needs.
Type checkers read them from `__init__.pyi`.
"""

from importlib import import_module, metadata

_MODULES = {
    ".mcp": ("Tasks",),
    ".mcp.client": ("ClientTask", "ClientTasks", "TaskState"),
    ".mcp.errors": (
        "AnswersNotSupported",
        "ClientTaskError",
        "ConnectionLost",
        "ExtensionNotInstalled",
        "InvalidTaskResponse",
        "NotDurable",
        "TasksNotSupported",
        "TaskWasCancelled",
        "WaitTimeout",
    ),
    ".runtime": ("App", "Runtime", "RuntimeConfig", "Task", "current_task"),
    ".runtime.task": ("Accepted", "Elicited", "Refused"),
    ".runtime.errors": (
        "ClientCannotAnswer",
        "CredentialsNotStored",
        "InputFailed",
        "Pause",
        "QueueFull",
        "Retry",
        "RunError",
        "TaskCancelled",
        "TaskFailed",
        "TooManyWaiting",
        "UnknownFunction",
    ),
    ".runtime.workflow": ("Output", "Param", "Step", "Workflow"),
    ".storage.errors": (
        "CannotOpen",
        "CopyMismatch",
        "NewerFormat",
        "NotReadableHere",
        "OutcomeUnknown",
        "PerdureError",
        "StorageBusy",
        "StorageClosed",
        "StorageCorrupt",
        "StorageError",
        "StorageFailed",
        "StorageFull",
        "StorageReadOnly",
        "StorageUnavailable",
        "TargetNotEmpty",
    ),
    ".tasks": (
        "InputKind",
        "InputRequest",
        "Owner",
        "Progress",
        "Snapshot",
        "Status",
        "StoreConfig",
        "Variables",
    ),
    ".tasks.errors": (
        "AuthenticationRequired",
        "ClaimLost",
        "IdempotencyKeyReused",
        "IllegalTransition",
        "InvalidCursor",
        "InvalidValue",
        "KeyMissing",
        "LimitExceeded",
        "MalformedAnswer",
        "NotFound",
        "QuestionChanged",
        "QuotaExceeded",
        "TaskError",
        "TerminalTask",
        "WrongVariableType",
    ),
    ".tasks.inputs": ("Input", "Root"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return metadata.version("perdure")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return [*_HOMES, "__version__"]
