"""A screen: what a page shows of things that change, in named pieces of HTML, and what changed since. Pure.

The page is put together from the pieces, and an open page is sent those that have changed; a script puts each
in the place of the piece of that name. So both have one template, and a page works without the script.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import msgspec
from markupsafe import Markup


class Screen(msgspec.Struct, frozen=True):
    pieces: Mapping[str, Markup]
    """By the id of its element."""
    lists: Mapping[str, tuple[str, ...]] = {}
    """Elements whose children are pieces: which, and in what order."""

    def since(self, before: Screen | None) -> Screen:
        """What differs from an earlier screen."""
        if before is None:
            return self
        return Screen(
            {name: html for name, html in self.pieces.items() if before.pieces.get(name) != html},
            {name: order for name, order in self.lists.items() if before.lists.get(name) != order},
        )

    @property
    def is_empty(self) -> bool:
        return not self.pieces and not self.lists

    def in_list(self, name: str) -> Markup:
        """The pieces of a list, one after the other."""
        return Markup("").join(self.pieces[each] for each in self.lists[name])

    def as_json(self, form_key: Mapping[str, str]) -> str:
        """As the script takes it, with the forms made the browser's own."""
        pieces = {name: owned(html, form_key) for name, html in self.pieces.items()}
        return json.dumps({"pieces": pieces, "lists": self.lists}, separators=(",", ":"))


def digest_of(html: str) -> str:
    """By which the script knows that it has a piece already."""
    return hashlib.blake2b(html.encode(), digest_size=6).hexdigest()


def owned(html: str, form_key: Mapping[str, str]) -> str:
    """A piece is shared by all who look, the key of its form is not: a word of chance stood for it."""
    for word, key in form_key.items():
        html = html.replace(word, key)
    return html
