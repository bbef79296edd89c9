"""`python -m tools.sample_sentences`: prints random sentences of perdure for a reviewer.

It prints 40 docstrings from each part of the code, and 40 sentences each from the error messages and log
lines, the output of the commands, their help, the dashboard, the README with the tutorials, and the guides.
The selection depends only on the commit, so all reviewers of a commit read the same sentences.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple, cast

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from perdure.cli.commands import commands

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "perdure"
SAMPLE_SIZE = 40
PARTS = {
    "storage": ("storage",),
    "tasks": ("tasks",),
    "runtime": ("runtime",),
    "mcp": ("mcp",),
    "fastmcp": ("fastmcp",),
    "feeds": ("feeds",),
    "operating and web": ("operating", "web"),
    "cli": ("cli", "samples"),
}
OUTPUT, PAGES = ("cli",), ("web",)
"""The packages whose texts are the output of commands, and pages of the dashboard."""
CHECKS = SOURCES / "storage" / "kit"
"""The texts of the contract kit are for authors of engines, and most are the names of what it compares."""
MIN_WORDS = 3
"""Texts with fewer words are ignored, because they are usually labels or codes."""
WORD = re.compile(r"(?<!\S)[\w'`(]*[a-z]+[\w'`),.;:]*(?!\S)")
HELP = re.compile(r"(?:^help|_HELP)$")
"""The names of texts that are part of the help of a command."""


class Sentence(NamedTuple):
    path: Path
    line: int
    name: str
    text: str

    def __str__(self) -> str:
        text = "\n      ".join(self.text.splitlines())
        return f"{self.path.relative_to(ROOT)}:{self.line} {self.name}\n      {text}"


def docstrings(folders: Iterable[str]) -> Iterator[Sentence]:
    """Yield the docstrings of modules, classes, functions, constants and fields."""
    for path, tree in parsed(folders):
        for node in ast.walk(tree):
            for name, text in _documented(node):
                yield Sentence(path, text.lineno, name, _text(text) or "")


def _documented(node: ast.AST) -> Iterator[tuple[str, ast.Constant]]:
    body: list[ast.stmt] = getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []
    previous: ast.AST = node
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Constant(value=str()) as text):
                yield _name(previous), text
            case _:
                pass
        previous = statement


def _name(node: ast.AST) -> str:
    match node:
        case ast.Module():
            return "(module)"
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target):
            return ast.unparse(target)
        case _:
            return ""


def texts_in_code(folders: Iterable[str]) -> Iterator[Sentence]:
    """Yield the texts for users: every string of several words that is not a docstring.

    They are messages, log lines, and parts of them, wherever the code puts them together.
    """
    for path, tree in parsed(folders):
        if not path.is_relative_to(CHECKS):
            yield from _texts_in(path, tree)


def _texts_in(path: Path, node: ast.AST) -> Iterator[Sentence]:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Match():  # docstrings
            return
        case ast.keyword(arg=str(name)) | ast.Assign(targets=[ast.Name(id=name)]) if HELP.search(name):
            return
        case ast.Constant() | ast.JoinedStr() | ast.BinOp() if _is_prose(text := _text(node) or ""):
            yield Sentence(path, node.lineno, "(text)", text)
            return
        case _:
            pass
    types = {getattr(node, "annotation", None), getattr(node, "returns", None)}
    for each in ast.iter_child_nodes(node):
        if each not in types:
            yield from _texts_in(path, each)


def _is_prose(text: str) -> bool:
    """Return whether a text has words, apart from the expressions of an f-string."""
    return " | " not in text and len(WORD.findall(re.sub(r"\{.*?\}", "X", text))) >= MIN_WORDS


def help_texts(command: TyperCommand | TyperGroup, path: str = "perdure") -> Iterator[Sentence]:
    """Yield the help of a command, of its parameters, and of the commands below it."""
    texts = [command.help, command.epilog, *(getattr(each, "help", None) for each in command.params)]
    for text in texts:
        if text and len(text.split()) >= MIN_WORDS:
            yield Sentence(SOURCES / "cli", 0, path, text)
    if isinstance(command, TyperGroup):
        for name, each in command.commands.items():
            yield from help_texts(cast("TyperCommand | TyperGroup", each), f"{path} {name}")


def page_texts() -> Iterator[Sentence]:
    """Yield the texts of the dashboard's templates, with expressions as `{...}`."""
    for path in sorted((SOURCES / "web").rglob("*.html")):
        hidden = r"\{#.*?#\}|\{%.*?%\}|<(script|style).*?</\1>"
        template = re.sub(hidden, " ", path.read_text(), flags=re.DOTALL)
        template = re.sub(r"\{\{.*?\}\}", "{...}", template, flags=re.DOTALL)
        for text in re.split(r"<[^>]*>|\w+=\"[^\"]*\"", template):
            words = text.split()
            if len(words) >= MIN_WORDS:
                yield Sentence(path, 0, "(page)", " ".join(words))


def prose(paths: Iterable[Path]) -> Iterator[Sentence]:
    """Yield the sentences of Markdown files, also those in tables, without code blocks and headings."""
    for path in paths:
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        yield from _cells(path, text)
        for paragraph in re.split(r"\n\s*\n|^\s*[-*] ", text, flags=re.MULTILINE):
            is_code = all(line.startswith("    ") for line in paragraph.strip("\n").splitlines())
            if is_code or paragraph.lstrip().startswith(("#", "|", "<", "!", "[!")):
                continue
            for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`])", " ".join(paragraph.split())):
                if len(sentence.split()) >= MIN_WORDS:
                    yield Sentence(path, 0, "(prose)", sentence)


def _cells(path: Path, text: str) -> Iterator[Sentence]:
    for row in re.findall(r"^\|(.*)\|$", text, re.MULTILINE):
        for cell in re.split(r"(?<!\\)\|", row):
            if len(cell.split()) >= MIN_WORDS:
                yield Sentence(path, 0, "(table)", cell.strip())


def _text(node: ast.AST) -> str | None:
    """Return the text of a string literal, with the expressions of an f-string in braces."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                str(each.value) if isinstance(each, ast.Constant) else f"{{{ast.unparse(each.value)}}}"
                for each in values
                if isinstance(each, ast.Constant | ast.FormattedValue)
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = (_text(left), _text(right))
            return "".join(part or "{...}" for part in parts) if any(parts) else None
        case _:
            return None


def parsed(folders: Iterable[str]) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        place = SOURCES / folder
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            yield path, ast.parse(path.read_text())


def other_packages() -> list[str]:
    """Return the packages and modules whose texts are error messages and log lines."""
    names = {
        path.name for path in SOURCES.iterdir() if path.suffix in ("", ".py") and path.name[0] not in "._"
    }
    return sorted(names - {*OUTPUT, *PAGES, "__pycache__"})


def draw(kind: str, found: Iterable[Sentence], commit: str) -> None:
    everything = sorted(set(found))
    drawn = Random(f"{commit} {kind}").sample(everything, min(SAMPLE_SIZE, len(everything)))
    print(f"\n## {kind}: {len(drawn)} of {len(everything)}\n")
    for number, sentence in enumerate(drawn, 1):
        print(f"{number:4}. {sentence}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.sample_sentences", description=__doc__)
    parser.add_argument("commit", nargs="?", help="print the selection of this commit (default: HEAD)")
    commit: str | None = parser.parse_args().commit
    if commit is None:
        head = ["git", "rev-parse", "HEAD"]
        run = subprocess.run(head, cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603
        commit = run.stdout.strip()
    print(f"commit {commit}")
    for part, folders in PARTS.items():
        draw(f"docstrings of {part}", docstrings(folders), commit)
    draw("error messages and log lines", texts_in_code(other_packages()), commit)
    draw("output of commands", texts_in_code(OUTPUT), commit)
    draw("command help", help_texts(cast("TyperGroup", get_command(commands))), commit)
    draw("dashboard", [*page_texts(), *texts_in_code(PAGES)], commit)
    entrance = [ROOT / "README.md", *(ROOT / "docs" / f"tutorial{each}.md" for each in ("", "-fastmcp"))]
    draw("README and tutorials", prose(entrance), commit)
    draw("guides", prose(sorted((ROOT / "docs" / "guides").glob("*.md"))), commit)


if __name__ == "__main__":
    main()
