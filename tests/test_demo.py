"""What `make run` shows is true."""

from __future__ import annotations

import re
import subprocess
import sys

from .rows import row


@row(97)
def test_the_demonstration_loses_nothing_that_was_acknowledged() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "perdure.demo"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert re.search(r"killed with SIGKILL after \d{3,} tasks were acknowledged", shown)
    assert "Acknowledged and lost: 0." in shown
    assert "variables {'page': 3, 'rows': [1, 2, 3]}, asked ['name']" in shown
    assert "completed" in shown
    assert "0 findings" in shown
