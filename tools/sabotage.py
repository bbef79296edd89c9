"""`make sabotage`: mutation testing. It breaks a line for each parity row; the tests of the row must fail.

Each mutant in sabotage.toml specifies a row, a file of the package, a piece of code and its replacement. The
mutant is applied to a copy of the sources, and the tests of its row run on this copy, with the engines that
`make test` uses for the same seed. Surviving mutants are reported, and so are rows without a mutant.

    python -m tools.sabotage [ROW ...] [--third 1|2|3]

The tests are collected once. Each run loads only the test files of its row, and all runs share the database
servers.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from tests import engines, fork_server, servers

from .parity import ROOT, Proof, collect, rows, say

MUTANTS = Path(__file__).with_name("sabotage.toml")
TESTS_FAILED = 1
TIMEOUT = 600.0
"""Seconds after which a run is stopped. A mutant that makes the tests hang counts as killed."""


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    row: int
    file: str
    old: str
    new: str


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mutant: list[Mutant]


def apply(mutant: Mutant, sources: Path) -> None:
    path = sources / "perdure" / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(f"row {mutant.row}: {mutant.old!r} must occur exactly once in {mutant.file}")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")


class MutantRun(msgspec.Struct, frozen=True):
    mutant: Mutant
    is_killed: bool
    seconds: float


def run(mutant: Mutant, proofs: list[Proof]) -> MutantRun:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src"
        shutil.copytree(ROOT / "src", sources)
        apply(mutant, sources)
        failure = run_tests(mutant.row, sorted({proof.file for proof in proofs}), sources)
    seconds = time.monotonic() - started
    word = "SURVIVED" if failure is None else "killed"
    say(f"{word:8} row {mutant.row:3} {seconds:5.0f} s  {failure or ''}")
    return MutantRun(mutant, failure is not None, seconds)


def run_tests(row: int, files: list[str], sources: Path) -> str | None:
    """Return the first test of the row that fails on these sources, or None if all tests pass."""
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", f"--row={row}", *files]
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    environment.pop(fork_server.ADDRESS, None)  # the fork server has imported the original sources
    try:
        ended = subprocess.run(  # noqa: S603 - our own command
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return f"the tests did not end within {TIMEOUT:.0f} s"
    failures = re.findall(r"^(?:FAILED|ERROR) (tests/\S.*?)(?: - .*)?$", ended.stdout, re.MULTILINE)
    if ended.returncode == TESTS_FAILED or failures:
        return failures[0] if failures else "a test"
    if ended.returncode:
        raise ValueError(f"row {row}: the tests could not run\n{ended.stdout[-3000:]}{ended.stderr}")
    return None


def load_mutants() -> list[Mutant]:
    return msgspec.convert(tomllib.loads(MUTANTS.read_text(encoding="utf-8")), Plan).mutant


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.sabotage")
    parser.add_argument("rows", type=int, nargs="*", help="run only the mutants of these rows (default: all)")
    parser.add_argument("--third", type=int, choices=(1, 2, 3), help="run every third mutant from this index")
    options = parser.parse_args()
    mutants = load_mutants()
    chosen = [each for each in mutants if not options.rows or each.row in options.rows]
    if options.third:
        chosen = chosen[options.third - 1 :: 3]
    say(f"ENGINE_SEED={engines.seed()}")
    started = time.monotonic()
    proofs = collect()
    servers.host()  # start the database servers that all runs share
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(run, chosen, [proofs.get(each.row, []) for each in chosen]))
    survivors = [each.mutant for each in runs if not each.is_killed]
    for each in survivors:
        say(f"row {each.row}: mutant survived ({each.new.strip()!r} in {each.file})")
    uncovered = {row.number for row in rows()} - {each.row for each in mutants}
    for number in sorted(uncovered):
        say(f"row {number} has no mutant")
    minutes = (time.monotonic() - started) / 60
    say(f"sabotage: {len(chosen) - len(survivors)} of {len(chosen)} mutants killed in {minutes:.1f} minutes")
    sys.exit(1 if survivors or uncovered else 0)


if __name__ == "__main__":
    main()
