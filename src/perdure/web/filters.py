"""Jinja filters for times, durations, numbers and JSON.

A time is rendered in full, and a script in the browser shows how long ago it is. Otherwise a fragment with a
time would change, and be sent again, every second.
"""

from __future__ import annotations

import json

from markupsafe import Markup

from ..operating.times import MAX_TIME, format_duration, format_second, iso
from ..storage import Micros
from ..tasks.canonical_json import Json

MAX_SHOWN_CHARS = 64 * 1024
"""Maximum number of characters of one JSON value on a page."""


def time_tag(time: Micros | None, mode: str = "full") -> Markup:
    """Return a time element. `mode` is what the script shows: the age, the time, or both."""
    if time is None:
        return Markup('<span class="none">none</span>')
    if not 0 <= time <= MAX_TIME:
        return Markup('<span class="none">never</span>')
    text = format_second(time)
    return Markup('<time datetime="{}" data-mode="{}" title="{}">{}</time>').format(
        iso(time), mode, text, text
    )


def duration(value: Micros | None) -> str:
    return "unknown" if value is None else format_duration(value, precise=True)


def number(value: float) -> str:
    """Return a number with narrow spaces between thousands."""
    rounded = int(value) if float(value).is_integer() else round(value, 2)
    return f"{rounded:,}".replace(",", "\u202f")


def is_http_url(value: str) -> bool:
    """Return whether a stored URL is safe as a link on a page. A `javascript:` URL is not, for example."""
    return value.startswith(("https://", "http://"))


def pretty_json(value: Json) -> str:
    """Return JSON with line breaks, truncated to what fits on a page."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    missing = len(text) - MAX_SHOWN_CHARS
    return f"{text[:MAX_SHOWN_CHARS]}\n... {missing} more characters; see `perdure tasks show`"
