"""What `make run` shows is true."""

from __future__ import annotations

import re
import subprocess
import sys

from .rows import row


@row(97)
def test_the_demonstration_ends_in_a_second_process_what_a_killed_one_began() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "perdure.demo"], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert "killed with SIGKILL after page 5" in shown
    assert "page 6 of 2026, attempt 2" in shown
    assert not re.search(r"page [1-4] of 2026, attempt 2", shown)
    assert "input_required" in shown
    assert "5. The result, after 2 attempts: {'by': 'Ana', 'report': '12 pages of 2026'}" in shown
