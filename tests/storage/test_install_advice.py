"""The command that installs a missing extra names the place from which perdure was installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from perdure.cli.importer import EXTRAS
from perdure.storage.install_advice import UNKNOWN_ORIGIN, install_extra

from ..markers import server
from ..wheels import PLACE

UNKNOWN = f"pip install 'perdure[web] @ {UNKNOWN_ORIGIN}'"
ROOT = Path(__file__).parents[2]


def installed_from(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str | None) -> None:
    """Let the environment have a distribution of perdure with this `direct_url.json`."""
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: perdure\nVersion: 1\n")
    if text is not None:
        (folder / "direct_url.json").write_text(text)
    found = metadata.PathDistribution(folder)

    def distribution(_: str) -> metadata.Distribution:
        return found

    monkeypatch.setattr(metadata, "distribution", distribution)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (
            '{"url": "file:///home/a%20b/perdure", "dir_info": {"editable": true}}',
            "pip install --editable '/home/a b/perdure[web]'",
        ),
        ('{"url": "file:///src/perdure", "dir_info": {}}', "pip install 'perdure[web] @ file:///src/perdure'"),
        (
            '{"url": "file:///w/perdure-1-py3-none-any.whl", "archive_info": {"hashes": {}}}',
            "pip install 'perdure[web] @ file:///w/perdure-1-py3-none-any.whl'",
        ),
        ('{"url": "https://host/p.git", "vcs_info": {"vcs": "git"}}', UNKNOWN),
        ("not JSON", UNKNOWN),
        (None, UNKNOWN),
    ],
)  # fmt: skip
def test_the_command_names_where_perdure_came_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, command: str
) -> None:
    installed_from(monkeypatch, tmp_path, text)
    assert install_extra("web") == f"install the web extra with: {command}"


WITHOUT = """
import importlib.abc, json, sys

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in json.loads(sys.argv[2]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
__import__(sys.argv[1])
"""


@server
@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("perdure.feeds.bluesky", "httpx2", "feeds"),
        ("perdure.storage.dynamodb.engine", "aiobotocore", "dynamodb"),
        ("perdure.storage.kit.state_machine", "hypothesis", "kit"),
        ("perdure.storage.postgres.engine", "asyncpg", "postgres"),
        ("perdure.storage.redis.engine", "redis", "redis"),
    ],
)
def test_importing_a_module_whose_extra_is_missing_says_what_to_install(
    module: str, package: str, extra: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT, module, json.dumps([package])],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    last = ended.stderr.splitlines()[-1]
    reason = f"ModuleNotFoundError: the {extra} extra is not installed (no module named {package!r}); "
    assert last.startswith(f"{reason}install it with: pip install ")


def test_the_modules_of_the_extras_are_those_that_the_extras_install() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for module, extra in EXTRAS.items():
        package = {"yaml": "pyyaml"}.get(module, module)
        assert [each for each in declared[extra] if re.match(rf"{package}\b", each)] != []


def test_messages_and_pages_name_an_unknown_place_alike() -> None:
    assert UNKNOWN_ORIGIN == PLACE


def test_no_message_advises_to_install_from_an_index() -> None:
    sources = [path for path in (ROOT / "src").rglob("*.py") if path.name != "install_advice.py"]
    found = [str(path) for path in sources if re.search(r"pip install '?perdure", path.read_text())]
    assert sources
    assert not found
