"""One address for one place, and which places most people share."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.feeds.item import Item, Link
from perdure.feeds.links import MOST_LENGTH, in_text, most_shared, normalised

SAME = {
    "https://Example.COM/Path": "https://example.com/Path",
    "HTTPS://example.com": "https://example.com",
    "https://example.com/": "https://example.com",
    "https://example.com/a/": "https://example.com/a",
    "https://example.com/a#part": "https://example.com/a",
    "https://example.com:443/a": "https://example.com/a",
    "http://example.com:80": "http://example.com",
    "http://example.com:8080/": "http://example.com:8080",
    "https://example.com./a": "https://example.com/a",
    "https://example.com/a?utm_source=bsky&utm_medium=social": "https://example.com/a",
    "https://example.com/a?id=7&fbclid=x": "https://example.com/a?id=7",
    "https://example.com/a?q=a%20b&UTM_Source=x&c=": "https://example.com/a?q=a%20b&c=",
    "https://example.com/?q=caf%C3%A9": "https://example.com?q=caf%C3%A9",
    "https://[::1]:8443/a": "https://[::1]:8443/a",
    "  https://example.com/a ": "https://example.com/a",
}


@pytest.mark.parametrize("written", SAME)
def test_the_same_place_has_one_address(written: str) -> None:
    assert normalised(written) == SAME[written]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.com",
        "mailto:a@example.com",
        "at://did:plc:x/app.bsky.feed.post/1",
        "javascript:alert(1)",
        "https://",
        "https:///path",
        "https://exa mple.com",
        "https://example.com:port/",
        "https://[::1",
        "https://example.com/" + "a" * MOST_LENGTH,
    ],
)
def test_what_is_no_place_on_the_web_has_none(text: str) -> None:
    assert normalised(text) is None


@given(st.text(max_size=80) | st.text(alphabet="htps:/.#?&=[]a1%@ ", max_size=40))
def test_an_address_is_normal_already_or_becomes_so_at_once(text: str) -> None:
    for written in (text, f"https://{text}", f"https://example.com/{text}"):
        once = normalised(written)
        assert once is None or normalised(once) == once


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("read https://example.com/a.", ["https://example.com/a"]),
        ("(see https://example.com/a)", ["https://example.com/a"]),
        ("https://example.com/Foo_(bar)", ["https://example.com/Foo_(bar)"]),
        ("https://example.com/a, http://example.com/b!", ["https://example.com/a", "http://example.com/b"]),
        ("HTTPS://EXAMPLE.com/x", ["HTTPS://EXAMPLE.com/x"]),
        ("example.com/very-long… now", []),
        ("“https://example.com/a”", ["https://example.com/a"]),
    ],
)
def test_a_link_in_a_text_ends_before_the_sentence_does(text: str, links: list[str]) -> None:
    assert in_text(text) == links


def shared(account: str, time: int, *urls: str, title: str = "") -> tuple[str, Item]:
    links = tuple(Link(url, "card", title) for url in urls)
    return account, Item(
        uri=f"at://{account}/{time}", time=time, kind="post", post="", author=account, links=links
    )


async def these(*items: tuple[str, Item]) -> AsyncGenerator[tuple[str, Item]]:
    for item in items:
        yield item


@pytest.mark.anyio
async def test_links_are_ranked_by_who_shares_them_not_by_how_often() -> None:
    found = await most_shared(
        these(
            shared("loud", 9, "https://a.example"),
            shared("loud", 8, "https://a.example"),
            shared("loud", 7, "https://a.example"),
            shared("two", 6, "https://b.example", title="B"),
            shared("one", 5, "https://b.example"),
            shared("one", 4, "https://c.example"),
        ),
        limit=2,
    )
    assert [(each.url, each.sharers, each.times) for each in found] == [
        ("https://b.example", ("one", "two"), 2),
        ("https://a.example", ("loud",), 3),
    ]
    assert (found[0].title, found[0].first_at, found[0].last_at) == ("B", 5, 6)


@pytest.mark.anyio
async def test_of_equally_shared_links_the_newest_comes_first() -> None:
    found = await most_shared(
        these(shared("x", 1, "https://old.example"), shared("y", 2, "https://new.example")), limit=9
    )
    assert [each.url for each in found] == ["https://new.example", "https://old.example"]
