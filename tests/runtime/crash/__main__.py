"""`python -m tests.runtime.crash --seconds 300 --kills 300`: the storm, the checks, and the numbers."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from perdure.storage.time_units import to_seconds

from ... import servers
from ...engines import FIVE
from . import scenario
from .checks import SortedEvidence, breaches
from .functions import QUICK
from .report import numbers
from .scenario import Plan

SHOWN = 5
"""Breaches of one kind that are printed."""


async def main(arguments: argparse.Namespace, folder: Path) -> bool:
    """Whether every check holds."""
    _end_children_too()
    try:
        plan = plan_of(
            arguments, arguments.url or await scenario.new_storage(arguments.engine, folder), folder
        )
        case = SortedEvidence(await scenario.run(plan))
    finally:
        servers.close_all()
    for name, number in numbers(case).items():
        print(f"{number:>9}  {name}")
    found = breaches(case)
    for name, told in found.items():
        print(f"\nBROKEN {len(told)} times: {name}", *told[:SHOWN], sep="\n    ")
    print("\nevery check holds" if not found else f"\nthe journals are in {plan.folder}")
    return not found


def _end_children_too() -> None:
    """When told to stop, as `timeout` does: the storm kills what it started."""
    this = asyncio.current_task()
    if this is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)


def plan_of(arguments: argparse.Namespace, url: str, folder: Path) -> Plan:
    return Plan(
        url=url,
        folder=folder / "journals",
        seed=arguments.seed,
        seconds=arguments.seconds,
        kills=arguments.kills or max(1, round(arguments.seconds)),
        heartbeat=arguments.heartbeat,
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.runtime.crash", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="how long the storm lasts")
    parser.add_argument("--seed", type=int, default=7, help="what is drawn: victims, moments, work")
    parser.add_argument("--kills", type=int, help="at random moments; one a second, if not given")
    parser.add_argument("--engine", default="sqlite", choices=FIVE[1:], help="a new storage, on a new server")
    parser.add_argument("--url", help="or a storage of yours, which must be empty")
    parser.add_argument(
        "--heartbeat",
        type=float,
        default=to_seconds(QUICK.heartbeat_interval),
        help="a lease is three of them",
    )
    return parser.parse_args()


if __name__ == "__main__":
    made = Path(tempfile.mkdtemp(prefix="perdure-crash-"))
    if not asyncio.run(main(parse(), made)):
        sys.exit(1)
    shutil.rmtree(made)
