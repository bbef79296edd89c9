"""`--help` of every command fits a terminal of 80 columns, and shows every text whole."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from perdure.cli.commands import commands

WIDTH = 80


def commands_below(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401 - Typer has no type for both
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands_below(each, *path, name)


COMMANDS = {
    " ".join(("perdure", *path)): (path, each) for path, each in commands_below(get_command(commands))
}
EVERY_COMMAND = [pytest.param(path, each, id=name) for name, (path, each) in COMMANDS.items()]
EVERY_PATH = [pytest.param(path, id=name) for name, (path, _) in COMMANDS.items()]


def help_of(path: tuple[str, ...]) -> str:
    result = CliRunner().invoke(commands, [*path, "--help"], env={"COLUMNS": str(WIDTH)}, prog_name="perdure")
    assert result.exit_code == 0, result.output
    return result.output


def without_spaces(text: str) -> str:
    return "".join(text.split())


def summary_of(command: Any) -> str:  # noqa: ANN401
    return re.split(r"(?<=\.)\s", inspect.cleandoc(command.help))[0]


@pytest.mark.parametrize(("path", "command"), EVERY_COMMAND)
def test_no_text_is_cut_off(path: tuple[str, ...], command: Any) -> None:  # noqa: ANN401
    shown = help_of(path)
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert "…" not in shown
    parameters = [each for each in command.params if not getattr(each, "hidden", False)]
    named = [
        name
        for each in parameters
        if each.param_type_name == "option"
        for name in (*each.opts, *each.secondary_opts)
    ]
    below = getattr(command, "commands", {}).values()
    texts = [command.help, *(each.help for each in parameters), *named, *map(summary_of, below)]
    assert [text for text in texts if without_spaces(text) not in without_spaces(shown)] == []


@pytest.mark.parametrize("path", EVERY_PATH)
def test_an_option_says_what_its_value_is_and_a_flag_has_none(path: tuple[str, ...]) -> None:
    """Without a `metavar`, Typer shows a type, such as `<int range>`."""
    options = help_of(path).partition("\nOptions:\n")[2]
    assert re.findall(r"^  .*<.+?>", options, re.MULTILINE) == []


@pytest.mark.parametrize("path", EVERY_PATH)
def test_the_lines_of_a_paragraph_are_full(path: tuple[str, ...]) -> None:
    """The line breaks of the source code are not kept."""
    text = help_of(path).partition("\n\n")[2]
    paragraphs = re.split(r"\n\n", re.split(r"^\w+:$", text, flags=re.MULTILINE)[0].rstrip())
    for line, after in (pair for each in paragraphs for pair in pairwise(each.splitlines())):
        assert len(line) + 1 + len(after.split()[0]) > WIDTH - 2, line
