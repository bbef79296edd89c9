"""What operators do with a whole storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.operating.errors import MaintenanceError
from perdure.operating.maintenance import LiveClaims, copy_storage
from perdure.storage.copy import CopyProgress

pytestmark = pytest.mark.anyio


async def test_a_storage_is_not_copied_onto_itself(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)

    def ignore(_: CopyProgress | LiveClaims) -> None: ...

    with pytest.raises(MaintenanceError, match="source and target are the same storage"):
        await copy_storage(
            f"sqlite:///{tmp_path}/tasks.db",
            f"sqlite:///{tmp_path}/link/tasks.db",
            merge=True,
            on_progress=ignore,
            on_live_claims=ignore,
        )
