"""`make sabotage`: break one line under each parity row, and see that its tests notice.

Each entry of sabotage.toml names a row, a file of the package, the line to break and what to put there. It is
applied to a copy of the sources, and the tests of that row are run on the copy. A row whose tests stay green
is reported; so is a claimed row without an entry.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from .parity import ROOT, rows, say

PLAN = Path(__file__).with_name("sabotage.toml")
TESTS_FAILED = 1
PATIENCE = 900.0
"""Seconds. On five engines a row may take minutes; one that is broken must not take for ever."""


class Sabotage(msgspec.Struct, frozen=True, kw_only=True):
    row: int
    file: str
    old: str
    new: str


class Plan(msgspec.Struct, frozen=True):
    sabotage: list[Sabotage]


def apply(sabotage: Sabotage, sources: Path) -> None:
    path = sources / "perdure" / sabotage.file
    text = path.read_text(encoding="utf-8")
    if text.count(sabotage.old) != 1:
        raise ValueError(f"row {sabotage.row}: {sabotage.old!r} is not exactly once in {sabotage.file}")
    path.write_text(text.replace(sabotage.old, sabotage.new), encoding="utf-8")


def is_noticed(sabotage: Sabotage) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src"
        shutil.copytree(ROOT / "src", sources)
        apply(sabotage, sources)
        return not stays_green(sabotage.row, sources)


def stays_green(row: int, sources: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", f"--row={row}", "tests"]
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    try:
        run = subprocess.run(  # noqa: S603 - our own command
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return False  # a test that never ends is not green
    if run.returncode not in (0, TESTS_FAILED):
        raise ValueError(f"row {row}: the tests could not run\n{run.stdout[-3000:]}{run.stderr}")
    return run.returncode == 0


def planned() -> list[Sabotage]:
    return msgspec.convert(tomllib.loads(PLAN.read_text(encoding="utf-8")), Plan).sabotage


def main() -> None:
    wanted = {int(argument) for argument in sys.argv[1:]}
    plan = planned()
    chosen = [each for each in plan if not wanted or each.row in wanted]
    with ThreadPoolExecutor(2) as pool:
        noticed = list(pool.map(is_noticed, chosen))
    green = [each for each, seen in zip(chosen, noticed, strict=True) if not seen]
    for each in green:
        say(f"row {each.row} stayed green with {each.new.strip()!r} in {each.file}")
    bare = {row.number for row in rows() if row.is_claimed} - {each.row for each in plan}
    for number in sorted(bare):
        say(f"row {number} is claimed and nothing sabotages it")
    say(f"sabotage: {len(chosen) - len(green)} of {len(chosen)} were noticed")
    sys.exit(1 if green or bare else 0)


if __name__ == "__main__":
    main()
