"""How times, spans, numbers, links and documents are written on a page. Pure, and the same at any moment.

A time is written in full, for the script to say how long ago it was: a piece whose words changed by
themselves would be sent again and again.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from markupsafe import Markup

from ..storage import Micros
from ..tasks.codec import Json

MOST_SHOWN = 64 * 1024
"""Letters of one document on a page."""


def iso(at: Micros) -> str:
    moment = datetime.fromtimestamp(at / 1_000_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(at: Micros | None, mode: str = "full") -> Markup:
    """A time element. The script tells how far off it is (`age`, `since`), when it was (`clock`), or both."""
    if at is None:
        return Markup('<span class="none">none</span>')
    try:
        written = iso(at)
    except (OverflowError, ValueError, OSError):
        return Markup('<span class="none">beyond all calendars</span>')
    said = f"{written[:10]} {written[11:19]} UTC"
    return Markup('<time datetime="{}" data-mode="{}" title="{}">{}</time>').format(written, mode, said, said)


def span(lasts: Micros | None) -> str:
    """How long something takes: the two largest units that say something."""
    if lasts is None:
        return "unknown"
    if lasts < 1_000_000:
        return f"{lasts / 1000:.0f} ms"
    if lasts < 10_000_000:
        return f"{lasts / 1_000_000:.1f} s"
    seconds = lasts // 1_000_000
    for name, length, smaller, unit in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= length:
            rest = seconds % length // unit
            return f"{seconds // length} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} s"


def number(value: float) -> str:
    """With narrow spaces between thousands."""
    whole = int(value) if float(value).is_integer() else round(value, 2)
    return f"{whole:,}".replace(",", "\u202f")


def is_web(url: str) -> bool:
    """Whether this may be a link on a page: what is stored may say anything."""
    return url.startswith(("https://", "http://"))


def document(value: Json) -> str:
    """JSON to be read by people, as far as a page has room for it."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if len(text) <= MOST_SHOWN:
        return text
    return (
        f"{text[:MOST_SHOWN]}\n... and {len(text) - MOST_SHOWN} more letters: `perdure tasks show` has them"
    )
