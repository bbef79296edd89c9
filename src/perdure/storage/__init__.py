"""Storage of durable records. Every engine implements the same contract of seven methods, called verbs.

To read the code, start with `records_and_changes` (types), `contract`, and `memory` (the simplest engine).
"""

from .contract import Engine, MaintenanceReport, StorageInfo
from .page_builder import MAX_PAGE_BYTES, is_last_page
from .records_and_changes import (
    Accepted,
    Address,
    Change,
    ChangeResult,
    Committed,
    Conflict,
    Delete,
    Guard,
    Insert,
    InsertIfAbsent,
    Kept,
    LanePosition,
    Micros,
    Missing,
    PageRequest,
    Position,
    Purged,
    Record,
    Refused,
    Replace,
    Space,
    Tag,
)
from .registry import is_shared_storage, migrate_storage, open_storage, register_engine, storage_exists
from .storage import Storage
from .watch import Watch

__all__ = [
    "MAX_PAGE_BYTES",
    "Accepted",
    "Address",
    "Change",
    "ChangeResult",
    "Committed",
    "Conflict",
    "Delete",
    "Engine",
    "Guard",
    "Insert",
    "InsertIfAbsent",
    "Kept",
    "LanePosition",
    "MaintenanceReport",
    "Micros",
    "Missing",
    "PageRequest",
    "Position",
    "Purged",
    "Record",
    "Refused",
    "Replace",
    "Space",
    "Storage",
    "StorageInfo",
    "Tag",
    "Watch",
    "is_last_page",
    "is_shared_storage",
    "migrate_storage",
    "open_storage",
    "register_engine",
    "storage_exists",
]
