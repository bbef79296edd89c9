"""A reviewer of sentences may get any text that users of perdure read."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from perdure.cli.commands import commands
from tools import sample_sentences
from tools.sample_sentences import OUTPUT, PAGES, PARTS, SOURCES, Sentence, texts_in_code

GUIDES = sorted((Path(sample_sentences.ROOT) / "docs" / "guides").glob("*.md"))


def texts(*found: Sentence) -> list[str]:
    return [" ".join(each.text.split()) for each in found]


MESSAGES = texts(*texts_in_code(sample_sentences.other_packages()))
OF_COMMANDS = texts(*texts_in_code(OUTPUT))
OF_PAGES = texts(*sample_sentences.page_texts(), *texts_in_code(PAGES))


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        (MESSAGES, "the task has changed from version"),  # an error
        (MESSAGES, "task %s: could not renew the lease: %s"),  # a log line
        (MESSAGES, "set maxmemory-policy noeviction"),  # advice in a variable
        (MESSAGES, "another copy into this target is running"),
        (MESSAGES, "use ctx.task_id, or"),  # in a table
        (MESSAGES, "To get the result, call the tool"),  # for a model
        (OF_COMMANDS, "{name}, served by perdure"),  # the greeting
        (OF_COMMANDS, "Try it: paste the Python lines, run `kill -9 {}`"),
        (OF_COMMANDS, "No tasks found."),  # an argument of print_message
        (OF_COMMANDS, "OK: {plural(health.records, 'record')} checked"),  # a yielded line
        (OF_COMMANDS, "generate a token with: {GENERATE_HINT}"),
        (OF_PAGES, "This form has expired."),  # of a page, written in Python
        (OF_PAGES, "To create the first task, run this in"),  # in a template
        (texts(*sample_sentences.prose(GUIDES)), "durable tools and clients, with SQLite or in memory"),
    ],
)
def test_every_kind_of_text_may_be_drawn(kind: list[str], start: str) -> None:
    assert [text for text in kind if text.startswith(start)] != []


def test_docstrings_and_help_are_not_among_the_messages() -> None:
    group = cast("TyperGroup", get_command(commands))
    help_texts = {*texts(*sample_sentences.help_texts(group))}
    assert help_texts & {*OF_COMMANDS, *MESSAGES} == set()
    documented = {*texts(*sample_sentences.docstrings([*OUTPUT, *sample_sentences.other_packages()]))}
    assert documented & {*OF_COMMANDS, *MESSAGES} == set()


def test_docstrings_are_drawn_from_every_package() -> None:
    packages = {path.parent.name for path in SOURCES.glob("*/__init__.py")}
    assert {each for folders in PARTS.values() for each in folders} == packages
