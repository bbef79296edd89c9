"""The files of docs/guides/writing-an-engine.md test an engine: here, SQLite under another scheme."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ..doc_pages.pages import DOCS, blocks_of

GUIDE = DOCS / "guides" / "writing-an-engine.md"
ENGINE = """
from perdure.storage.sqlite.engine import open_engine as open_sqlite


async def open_engine(url):
    return await open_sqlite(url.replace("mine:", "sqlite:"))
"""
ANY_URL = '"mine://..."'
NEW_URL = "my_package.new_url()"
NEW = """
from itertools import count
from pathlib import Path

numbers = count()


def new_url():
    return f"mine:///{Path.cwd() / str(next(numbers))}.db"
"""
CONFTEST = """
from hypothesis import settings

settings.register_profile("few", max_examples=3)
settings.load_profile("few")
"""
"""The files of the page are tested here, and not SQLite: a few random histories are enough."""


def test_the_files_of_the_guide_run_every_check_on_an_engine_of_ones_own(tmp_path: Path) -> None:
    files = {block.title: block.text for block in blocks_of(GUIDE) if block.title is not None}
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "engine.py").write_text(ENGINE, "utf-8")
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace(ANY_URL, NEW_URL), "utf-8")
    with (tmp_path / "my_package" / "__init__.py").open("a") as file:
        file.write(NEW)
    (tmp_path / "conftest.py").write_text(CONFTEST, "utf-8")
    assert ANY_URL in files["test_my_engine.py"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    assert re.search(r"^\d{2,} passed, \d skipped", ended.stdout, re.MULTILINE), ended.stdout
    assert "does not have the capability 'damage'" in ended.stdout
