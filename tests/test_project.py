"""What the project says about itself is true: CONTRIBUTING.md, SECURITY.md and the files of its tools."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from trove_classifiers import classifiers

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "perdure"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
INTERNAL = {"suite", "unit", "wheel"}
"""Targets that only other targets use."""


# Contributing


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_between_files_of_the_repository_are_not_broken(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    targets = re.findall(r'(?:\]\(|(?:src|srcset|href)=")(?!https?:)([^)#"]*)(?:#([^)"]*))?', text)
    assert [target for target, _ in targets if not (ROOT / target).exists()] == []
    anchors = [(ROOT / (target or page), anchor) for target, anchor in targets if anchor]
    assert [(path.name, anchor) for path, anchor in anchors if anchor not in anchors_of(path)] == []


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_every_file_that_contributors_are_referred_to_exists() -> None:
    named = [each for each in re.findall(r"`([\w./]+/[\w./]*)`", CONTRIBUTING) if "<" not in each]
    assert len(named) >= 25
    homes = (PACKAGE, ROOT)
    assert [each for each in named if not any((home / each).exists() for home in homes)] == []


def test_the_commands_for_contributors_are_the_targets_of_make() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert set(re.findall(r"\bmake ([a-z-]+)\b", CONTRIBUTING)) == set(phony[1].split()) - INTERNAL


def test_the_map_of_the_code_has_the_layers_that_import_linter_checks() -> None:
    drawn = re.search(r"```text\n(.*?)```", CONTRIBUTING, re.DOTALL)
    assert drawn is not None
    rows = [
        re.findall(r"^  (\w+)(?: +(\w+))?  ", line)[0] for line in drawn[1].splitlines() if "|" not in line
    ]
    layers: list[str] = PYPROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    checked = [{name.removeprefix("perdure.") for name in layer.split(" | ")} for layer in layers]
    assert [{name for name in row if name} for row in rows] == checked


def test_the_number_of_promises_is_that_of_the_contract() -> None:
    promises = re.findall(
        r"^ ?(\d+)\. ", (PACKAGE / "storage" / "contract.py").read_text("utf-8"), re.MULTILINE
    )
    assert f"(the {promises[-1]} promises)" in CONTRIBUTING


# Metadata and changelog


def test_every_classifier_exists_and_none_contradicts_the_supported_versions() -> None:
    named: list[str] = PYPROJECT["project"]["classifiers"]
    public = {each for each in named if not each.startswith("Private ::")}  # indexes refuse all such packages
    assert public <= classifiers
    assert named == sorted(set(named))
    versions = [each.rpartition(" ")[2] for each in named if re.search(r":: 3\.\d+$", each)]
    assert PYPROJECT["project"]["requires-python"] == f">={versions[0]}"


def test_the_changelog_has_the_sections_of_keep_a_changelog_and_starts_with_what_is_unreleased() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    versions = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", version) for version in versions[1:])
    order = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    for version in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        sections = re.findall(r"^### (.*)$", version, re.MULTILINE)
        assert sections == sorted(sections, key=order.index)


def test_an_index_refuses_the_package_until_the_links_of_its_page_work_there() -> None:
    project = PYPROJECT["project"]
    is_release = ".dev" not in project["version"]
    assert ("Private :: Do Not Upload" not in project["classifiers"]) is is_release
    assert ("urls" in project) is is_release
    relative = re.findall(
        r'(?:\]\(|(?:src|srcset)=")(?!https:|#)', (ROOT / project["readme"]).read_text("utf-8")
    )
    assert (not relative) is is_release


# Continuous integration and pre-commit


def test_continuous_integration_runs_the_same_command_on_every_supported_python() -> None:
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))["jobs"].values()
    matrix = job["strategy"]["matrix"]
    verified = re.findall(r":: (3\.\d+)\n", "\n".join(PYPROJECT["project"]["classifiers"]) + "\n")
    assert (matrix["python"], matrix["untried"]) == (verified, [False])
    assert all(each["untried"] and each["python"] not in verified for each in matrix["include"])
    assert job["continue-on-error"] == "${{ matrix.untried }}"
    assert f"on Python {', '.join(verified[:-1])} and {verified[-1]}" in " ".join(CONTRIBUTING.split())
    assert [step["run"] for step in job["steps"] if step.get("name") == "Run the tests"] == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_every_hook_of_pre_commit_runs_a_tool_of_the_project() -> None:
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    assert [each["repo"] for each in repositories] == ["local"]
    for hook in repositories[0]["hooks"]:
        assert hook["language"] == "system"
        program, *words = hook["entry"].split()
        assert os.access(ROOT / program, os.X_OK)
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
