"""The fake as a process of its own. Prints its address, and runs until its input ends or it is killed."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from ..simulation import World
from .server import FakeBluesky


async def serve(port: int, seed: int, latency: float) -> None:
    world = World(seed=seed, clock=lambda: time.time_ns() // 1000)
    async with FakeBluesky(world, port=port, latency=latency) as fake:
        print(fake.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.feeds.fake_server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.seed, arguments.latency))


main()
