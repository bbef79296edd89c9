"""Durable records: one contract of seven verbs, and the engines that keep it.

Read `record` (the words), then `contract` (the promises), then an engine: `memory` is the plainest.
"""

from .contract import About, Engine, Maintenance, Watch
from .page import MAX_PAGE_BYTES, is_last_page
from .port import Storage
from .record import (
    Address,
    Answer,
    Change,
    Committed,
    Conflict,
    Delete,
    Done,
    Guard,
    Insert,
    Keep,
    Kept,
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
from .registry import exists, is_shared, migrate_storage, open_storage, register_engine

__all__ = [
    "MAX_PAGE_BYTES",
    "About",
    "Address",
    "Answer",
    "Change",
    "Committed",
    "Conflict",
    "Delete",
    "Done",
    "Engine",
    "Guard",
    "Insert",
    "Keep",
    "Kept",
    "Maintenance",
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
    "Tag",
    "Watch",
    "exists",
    "is_last_page",
    "is_shared",
    "migrate_storage",
    "open_storage",
    "register_engine",
]
