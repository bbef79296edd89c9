"""Shows the result of a task: text as text, and everything else as JSON."""

from __future__ import annotations

import json
from contextlib import suppress

import msgspec

from ..tasks.canonical_json import Json
from .filters import pretty_json, truncate


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a result, as it is shown on the page."""

    text: str
    is_text: bool = False
    """Whether the part is plain text. If not, it is JSON."""
    heading: str = ""


def result_blocks(result: Json) -> list[Block]:
    """Return the blocks that show the outcome of a task.

    The outcome is the result of an MCP tool, or the return value of a function.
    """
    if isinstance(result, str):
        return [_text_block(result)]
    content = result.get("content") if isinstance(result, dict) else None
    if not isinstance(result, dict) or not isinstance(content, list):
        return [Block(text=pretty_json(result))]
    texts = [text for each in content if (text := _text_of(each)) is not None]
    others = [each for each in content if _text_of(each) is None]
    structured = result.get("structuredContent")
    blocks = [_text_block(each) for each in texts]
    if others:
        blocks.append(Block(text=pretty_json(others), heading="Other content"))
    if structured is not None and not _repeats(structured, texts):
        blocks.append(Block(text=pretty_json(structured), heading="Structured content"))
    return blocks or [Block(text=pretty_json(result))]


def _text_block(text: str) -> Block:
    return Block(text=truncate(text), is_text=True)


def _text_of(content: Json) -> str | None:
    if not isinstance(content, dict) or content.get("type") != "text":
        return None
    text = content.get("text")
    return text if isinstance(text, str) else None


def _repeats(structured: Json, texts: list[str]) -> bool:
    """Return whether the structured content only repeats the text.

    Many frameworks send results in both forms, because some clients support only one.
    """
    values = [structured]
    if isinstance(structured, dict) and structured.keys() == {"result"}:
        values.append(structured["result"])
    shown: list[Json] = ["\n".join(texts), [*texts]]
    if len(texts) == 1:
        with suppress(ValueError, RecursionError):
            shown.append(json.loads(texts[0]))
    return any(value in shown for value in values)
