"""Jinja filters for times, durations, numbers and JSON.

The server renders full times, and a script in the browser shows how long ago they were. If the server
rendered ages, every fragment with a time would change, and be sent again, every second.
"""

from __future__ import annotations

import json

from markupsafe import Markup

from ..operating.times import MAX_TIME, format_duration, format_second, iso
from ..storage import Micros
from ..tasks.canonical_json import Json

MAX_SHOWN_CHARS = 64 * 1024
"""Maximum number of characters of a JSON value or a text that a page shows."""


def time_tag(time: Micros | None, mode: str = "full") -> Markup:
    """Return a `<time>` element. `mode` is a format in `static/times.js`, such as `age` or `clock`."""
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
    """Return a number with narrow spaces as thousands separators."""
    rounded = int(value) if float(value).is_integer() else round(value, 2)
    return f"{rounded:,}".replace(",", "\u202f")


def is_http_url(value: str) -> bool:
    """Return whether a stored URL is safe to use as a link. A `javascript:` URL, for example, is not."""
    return value.startswith(("https://", "http://"))


def pretty_json(value: Json) -> str:
    """Return indented JSON, truncated to `MAX_SHOWN_CHARS` characters."""
    return truncate(json.dumps(value, indent=2, ensure_ascii=False))


def truncate(text: str) -> str:
    """Return a text or, if it is too long, its first characters and the number of missing characters."""
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    missing = len(text) - MAX_SHOWN_CHARS
    return f"{text[:MAX_SHOWN_CHARS]}\n... {missing} more characters; see `perdure tasks show`"
