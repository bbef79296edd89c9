"""`python -m tests.cli.elsewhere --seconds 120`: the scenario, the checks, and the numbers."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from ... import servers
from ...runtime.crash.scenario import new_storage
from . import scenario
from .checks import find_violations, numbers
from .scenario import Plan

SHOWN = 5
"""Maximum number of violations of one kind that are printed."""


async def main(arguments: argparse.Namespace, folder: Path) -> bool:
    """Return whether every check holds."""
    this = asyncio.current_task()
    if this is not None:  # what was started is ended too
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    try:
        plan = Plan(
            url=await new_storage(arguments.engine, folder),
            folder=folder / "journals",
            seed=arguments.seed,
            seconds=arguments.seconds,
            kills=arguments.kills or max(1, round(arguments.seconds)),
        )
        evidence = await scenario.run(plan)
    finally:
        servers.close_all()
    for name, number in numbers(evidence).items():
        print(f"{number:>9}  {name}")
    found = find_violations(evidence)
    for name, violations in found.items():
        print(f"\nBROKEN {len(violations)} times: {name}", *violations[:SHOWN], sep="\n    ")
    print("\nevery check holds" if not found else f"\nthe journals are in {plan.folder}")
    return not found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cli.elsewhere", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long the scenario lasts")
    parser.add_argument("--seed", type=int, default=7, help="what is drawn: victims, moments, work")
    parser.add_argument("--kills", type=int, help="at random moments; one a second, if not given")
    parser.add_argument("--engine", default="postgres", choices=("sqlite", "postgres", "redis"))
    return parser.parse_args()


if __name__ == "__main__":
    made = Path(tempfile.mkdtemp(prefix="perdure-elsewhere-"))
    if not asyncio.run(main(parse(), made)):
        sys.exit(1)
    shutil.rmtree(made)
