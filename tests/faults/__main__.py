"""`python -m tests.faults --seconds 120 --engine redis`: the scenarios, the checks, and the numbers."""

from __future__ import annotations

import argparse
import asyncio
import sys

from . import scenario
from .checks import SortedEvidence, find_violations
from .disturbances import DISTURBANCES, open_setup
from .report import numbers
from .scenario import Plan

SHOWN = 3
"""Maximum number of violations of one kind that are printed."""


async def main(engine: str, fault: str, plan: Plan) -> bool:
    """Whether every check holds."""
    print(f"\n{engine}, {fault}, {plan.seconds:g} seconds, seed {plan.seed}", flush=True)
    async with open_setup(engine, fault) as made:
        case = SortedEvidence(await scenario.run(plan, made))
    for name, number in numbers(case).items():
        print(f"{number:>9}  {name}")
    found = find_violations(case)
    for name, violations in found.items():
        print(f"\nBROKEN {len(violations)} times: {name}", *violations[:SHOWN], sep="\n    ")
    print(
        "every check holds" if not found else f"\nwith seed {plan.seed} the same is planned again", flush=True
    )
    return not found


def parse() -> argparse.Namespace:
    faults = sorted({name for each in DISTURBANCES.values() for name in each})
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="how long each scenario lasts")
    parser.add_argument("--seed", type=int, default=7, help="what is drawn: work, disturbances, moments")
    parser.add_argument("--engine", choices=sorted(DISTURBANCES), help="all of them, if not given")
    parser.add_argument("--fault", choices=faults, help="all that the engine may meet, if not given")
    return parser.parse_args()


if __name__ == "__main__":
    wanted = parse()
    plan = Plan(seed=wanted.seed, seconds=wanted.seconds)
    results = [
        asyncio.run(main(engine, fault, plan))
        for engine in DISTURBANCES
        for fault in DISTURBANCES[engine]
        if wanted.engine in (None, engine) and wanted.fault in (None, fault)
    ]
    sys.exit(not all(results))
