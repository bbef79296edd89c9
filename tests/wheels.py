"""The wheel and the sdist, built once per run, and fresh environments in which the wheel is installed.

An environment is kept in `.venv/wheels` for the next run, under a digest of its requirement, pyproject.toml
and constraints.txt. Then only the wheel itself is installed again, unless it has the same contents.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
PLACE = "file:///path/to/perdure"
"""Where perdure is, as pages name it."""
HOME = Path(sys.prefix) / "wheels"
CORE_EXTRAS = ("crypto",)
"""The extras that add nothing, because all that they need is always installed."""
PROMISED = (
    *CORE_EXTRAS, "cli", "dynamodb", "fastmcp", "feeds", "kit", "postgres", "redis", "servers", "web",
)  # fmt: skip
"""The extras that the documentation offers to users."""


class Environment:
    """A virtual environment with perdure, some of its extras, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"

    @property
    def variables(self) -> dict[str, str]:
        """The variables of a shell in which the environment is active. The checkout is not on any path."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {**inherited, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}

    def run(self, *command: str, folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=folder, env=self.variables, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip


def build(factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel from it, once for all processes of a run. Return their folder."""
    base = factory.getbasetemp()
    target = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "dist"
    with _locked(target.with_suffix(".lock")):
        if not (target / "done").exists():
            _run(sys.executable, "-m", "hatchling", "build", "-d", str(target), "-t", "sdist", cwd=ROOT)
            (sdist,) = target.glob("perdure-*.tar.gz")
            unpacked = target / "source"
            unpacked.mkdir()
            _run("tar", "-xzf", str(sdist), "-C", str(unpacked), "--strip-components=1", cwd=ROOT)
            _run(sys.executable, "-m", "hatchling", "build", "-d", str(target), "-t", "wheel", cwd=unpacked)
            (target / "done").touch()
    return target


def uri(dist: Path) -> str:
    """Return where the wheel is."""
    return _wheel(dist).as_uri()


def _wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("perdure-*.whl")
    return wheel


def install(dist: Path, *extras: str) -> Environment:
    """Return an environment with the wheel and these extras."""
    wanted = f"[{','.join(extras)}]" if extras else ""
    return install_as_written(dist, f"perdure{wanted} @ {PLACE}")


def install_as_written(dist: Path, requirement: str) -> Environment:
    """Return an environment with what a page installs with pip: only the index differs."""
    assert PLACE in requirement
    wheel, contents = uri(dist), hashlib.sha256(_wheel(dist).read_bytes()).hexdigest()
    name = "-".join(sorted(Requirement(requirement).extras)) or "base"
    folder = HOME / f"{name}-{_digest(requirement)}"
    HOME.mkdir(exist_ok=True)
    with _locked(HOME / f"{name}.lock"):
        if not (folder / "installed").exists():
            venv.create(folder, with_pip=False, clear=True)
            _pip(folder, "--constraint", str(CONSTRAINTS), requirement.replace(PLACE, wheel))
        elif (folder / "installed").read_text() != contents:
            _pip(folder, "--no-deps", "--force-reinstall", wheel)
        (folder / "installed").write_text(contents)
    return Environment(folder)


def _pip(folder: Path, *words: str) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--quiet"]
    _run(*pip, "--disable-pip-version-check", "install", *words, cwd=ROOT)


def _run(*command: str, cwd: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def _digest(requirement: str) -> str:
    files = (ROOT / "pyproject.toml", CONSTRAINTS)
    content = b"".join(path.read_bytes() for path in files) + f"{sys.version}{requirement}".encode()
    return hashlib.sha256(content).hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
