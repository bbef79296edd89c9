"""`make steady`: runs the tests with six seeds. Other processes keep all cores busy during the last two runs.

It writes the results, and the slowest tests of the first run, to benchmarks/TESTS.md, and fails if a run
fails. The output of a failed run is kept in .venv/steady-SEED.log.

    python -m tools.steady COMMAND ...        COMMAND runs the tests
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing import Process

import msgspec

from .parity import ROOT, say

PAGE = ROOT / "benchmarks" / "TESTS.md"
BY_HAND = "\n## Single runs\n"
"""The heading of the last section, which is written by hand and kept."""
LOGS = ROOT / ".venv"
QUIET_RUNS, BUSY_RUNS = 4, 2
SLOWEST = 10


class Run(msgspec.Struct, frozen=True):
    seed: str
    is_busy: bool
    seconds: float
    passed: int
    failed: tuple[str, ...]
    slowest: tuple[str, ...]


def spin() -> None:
    while True:
        pass


@contextmanager
def load(*, is_busy: bool) -> Generator[None]:
    """If `is_busy`, keep every core busy until the `with` block ends."""
    spinning = [Process(target=spin, daemon=True) for _ in range(os.cpu_count() or 1)] if is_busy else []
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.join()


def run(command: Sequence[str], seed: str, *, is_busy: bool) -> Run:
    started = time.monotonic()
    with load(is_busy=is_busy):
        ended = subprocess.run(  # noqa: S603 - our own command
            [*command, f"--durations={SLOWEST}"],
            cwd=ROOT,
            env={**os.environ, "ENGINE_SEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
    if ended.returncode:
        (LOGS / f"steady-{seed}.log").write_text(ended.stdout + ended.stderr, encoding="utf-8")
    failed = re.findall(r"^(?:FAILED|ERROR) (.{1,300})", ended.stdout, re.MULTILINE)
    if ended.returncode and not failed:
        failed = [ended.stdout[-2000:] + ended.stderr[-2000:]]
    passed = re.search(r"(\d+) passed", ended.stdout)
    return Run(
        seed=seed,
        is_busy=is_busy,
        seconds=time.monotonic() - started,
        passed=int(passed[1]) if passed else 0,
        failed=tuple(failed),
        slowest=tuple(re.findall(r"^\d+\.\d+s .*$", ended.stdout, re.MULTILINE)[:SLOWEST]),
    )


def page(runs: Sequence[Run]) -> str:
    processor = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    lines = [
        "# How long the tests take",
        "",
        "Written by `make steady`, which runs the tests with six seeds, twice while other processes keep",
        "every core busy. The seed chooses the database server for most tests (tests/engines.py).",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {processor}. The times do not include installation and `make check`.",
        "",
        "| seed | under load | passed | failed | minutes |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {each.seed} | {'yes' if each.is_busy else 'no'} | {each.passed} | {len(each.failed)} |"
        f" {each.seconds / 60:.1f} |"
        for each in runs
    ]
    lines += ["", "The slowest tests of the first run:", "", "```text", *runs[0].slowest, "```", ""]
    return "\n".join(lines)


def main() -> None:
    command = sys.argv[1:]
    stamp = f"{datetime.now(UTC):%Y%m%d}"
    runs: list[Run] = []
    for number in range(QUIET_RUNS + BUSY_RUNS):
        done = run(command, f"{stamp}-{number + 1}", is_busy=number >= QUIET_RUNS)
        runs.append(done)
        load_note = ", under load" if done.is_busy else ""
        counts = f"{done.passed} passed, {len(done.failed)} failed"
        say(f"{done.seed}: {counts}, {done.seconds / 60:.1f} minutes{load_note}")
        for failure in done.failed:
            say(f"    {failure}")
    _, section, by_hand = PAGE.read_text("utf-8").partition(BY_HAND)
    PAGE.write_text(page(runs) + section + by_hand, encoding="utf-8")
    sys.exit(1 if any(each.failed for each in runs) else 0)


if __name__ == "__main__":
    main()
