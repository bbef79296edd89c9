"""`SecretContents`: the base class of structs with contents that callers or tools sent, and may be secret."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class SecretContents(msgspec.Struct, frozen=True):
    """A struct whose `repr` shows only the fields in `shown_in_repr`, so the others do not appear in logs."""

    shown_in_repr: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        shown = "".join(f"{name}={getattr(self, name)!r}, " for name in self.shown_in_repr)
        return f"{type(self).__name__}({shown}...)"
