"""`python -m tools.sample_sentences`: prints random docstrings and messages for a reviewer.

It prints 40 docstrings from each part of perdure, and 40 messages (errors, log lines and help texts). The
selection depends only on the commit, so all reviewers of a commit read the same sentences.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "perdure"
SAMPLE_SIZE = 40
PARTS = {
    "storage": ("storage",),
    "tasks": ("tasks",),
    "feeds": ("feeds",),
    "operating and web": ("operating", "web"),
    "cli": ("cli",),
}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
MIN_WORDS = 3
"""Messages with fewer words are ignored, because they are usually labels or codes."""


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


def messages(folders: Iterable[str]) -> Iterator[Sentence]:
    """Yield the messages of exceptions, log lines and help texts."""
    for path, tree in parsed(folders):
        for node in ast.walk(tree):
            match node:
                case ast.Raise(exc=ast.Call() as call):
                    yield from _messages(path, call, "error", call.args)
                case ast.Call(func=ast.Attribute(attr="__init__"), args=arguments):
                    yield from _messages(path, node, "error", arguments)
                case ast.Call(func=ast.Attribute(attr=method), args=[text, *_]) if method in LOG_METHODS:
                    yield from _messages(path, node, "log", [text])
                case ast.Call(keywords=keywords):
                    texts = [each.value for each in keywords if each.arg == "help"]
                    yield from _messages(path, node, "help", texts)
                case _:
                    pass


def _messages(path: Path, node: ast.Call, kind: str, texts: Iterable[ast.expr]) -> Iterator[Sentence]:
    for each in texts:
        text = _text(each)
        if text is not None and len(text.split()) >= MIN_WORDS:
            yield Sentence(path, node.lineno, f"({kind})", text)


def _text(node: ast.expr) -> str | None:
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
        for path in sorted((SOURCES / folder).rglob("*.py")):
            yield path, ast.parse(path.read_text())


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
    every_folder = [folder for folders in PARTS.values() for folder in folders]
    draw("messages", messages(every_folder), commit)


if __name__ == "__main__":
    main()
