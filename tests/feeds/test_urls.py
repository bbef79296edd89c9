"""One identity for one page, however its address is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.feeds.urls import MAX_URL_LENGTH, find_urls, normalize_url, original_url

SAME = {
    "https://Example.COM/Path": "https://example.com/Path",
    "HTTPS://example.com": "https://example.com",
    "https://example.com/": "https://example.com",
    "https://example.com/a/": "https://example.com/a",
    "https://www.example.com/a": "https://www.example.com/a",
    "https://example.com:443/a": "https://example.com/a",
    "https://example.com./a": "https://example.com/a",
    "https://me:secret@example.com/a": "https://example.com/a",
    "https://[::1]:8443/a": "https://[::1]:8443/a",
    "  https://example.com/a ": "https://example.com/a",
    # One scheme
    "http://example.com:80": "https://example.com",
    "http://example.com:443": "https://example.com",
    "http://example.com:8080/": "https://example.com:8080",
    "https://example.com:80/": "https://example.com:80",
    # One encoding
    "https://example.com/%7Euser/%c3%a9": "https://example.com/~user/%C3%A9",
    "https://example.com/caf\u00e9?q=\u00e9": "https://example.com/caf%C3%A9?q=%C3%A9",
    "https://example.com/a%2fb": "https://example.com/a%2Fb",
    "https://example.com/100%/%zz": "https://example.com/100%25/%25zz",
    "https://example.com/%%37E": "https://example.com/%257E",
    "https://b\u00fccher.example/": "https://xn--bcher-kva.example",
    # One order of parameters; those of one name keep theirs
    "https://example.com/?b=2&a=1": "https://example.com?a=1&b=2",
    "https://example.com/a?q=a%20b&UTM_Source=x&c=&&": "https://example.com/a?c=&q=a%20b",
    "https://example.com/?id=2&id=1": "https://example.com?id=2&id=1",
    # Fragments that select the page
    "https://example.com/a#part": "https://example.com/a",
    "https://example.com/#/article/5": "https://example.com#/article/5",
    "https://example.com/#!article": "https://example.com#!article",
    "https://example.com/app#news/5": "https://example.com/app#news/5",
    "https://example.com/a#:~:text=this/that": "https://example.com/a",
    "https://example.com/#/a/:%7E:text=b": "https://example.com#/a/",
    # Tracking
    "https://example.com/a?utm_source=bsky&utm_medium=social": "https://example.com/a",
    "https://example.com/a?id=7&fbclid=x": "https://example.com/a?id=7",
    "https://example.com/a?%75tm_source=x": "https://example.com/a",
    "https://www.bbc.co.uk/news/1?at_medium=RSS&at_campaign=rss": "https://www.bbc.co.uk/news/1",
    "https://www.youtube.com/watch?v=abc&si=123": "https://www.youtube.com/watch?v=abc",
    "https://youtu.be/abc?si=123&t=90": "https://youtu.be/abc?t=90",
    "https://open.spotify.com/track/1?si=2": "https://open.spotify.com/track/1",
    "https://x.com/a/status/1?s=20&t=xyz": "https://x.com/a/status/1",
    "https://www.nytimes.com/a.html?unlocked_article_code=1.x&smid=bs": "https://www.nytimes.com/a.html",
    "https://anna.substack.com/p/a?r=1&utm_x=2": "https://anna.substack.com/p/a",
    "https://blog.example/a?ref=newsletter.example.org": "https://blog.example/a",
    # What may select a page stays
    "https://example.com/a?si=3&s=4&t=5&source=6": "https://example.com/a?s=4&si=3&source=6&t=5",
    "https://example.com/a?ref=main": "https://example.com/a?ref=main",
    "https://github.com/a/b?ref=feature.branch": "https://github.com/a/b?ref=feature.branch",
    "https://notyoutube.com/watch?si=1": "https://notyoutube.com/watch?si=1",
}


@pytest.mark.parametrize("written", SAME)
def test_the_same_place_has_one_address(written: str) -> None:
    assert normalize_url(written) == SAME[written]


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
        "https://exa|mple.com",
        "https://.",
        "https://example.com/\ud800",
        "https://example.com:99999",
        "https://example.com:port/",
        "https://[::1",
        "https://example.com/" + "a" * MAX_URL_LENGTH,
    ],
)
def test_what_is_no_place_on_the_web_has_none(text: str) -> None:
    assert normalize_url(text) is None


PIECES = st.sampled_from(
    [
        "%",
        "%7E",
        "%7e",
        "%2F",
        "37",
        "E",
        "/",
        "//",
        "#",
        "#/",
        "#!",
        "?",
        "&",
        "=",
        ":~:",
        "utm_a",
        "si",
        "ref",
        ".",
    ]
)
"""What normalising looks at, in any order."""
TEXTS = (
    st.text(max_size=80)
    | st.text(alphabet="htps:/.#?&=[]a1%@~! ", max_size=40)
    | st.lists(PIECES | st.text(max_size=3), max_size=12).map("".join)
)


@given(TEXTS)
def test_an_address_is_normal_already_or_becomes_so_at_once(text: str) -> None:
    for written in (text, f"https://{text}", f"http://example.com/{text}", f"https://youtu.be?{text}"):
        once = normalize_url(written)
        assert once is None or normalize_url(once) == once


@given(TEXTS)
def test_an_address_on_a_valid_host_has_a_normal_form(text: str) -> None:
    """Unless it has a space in it, or is too long."""
    path = "".join(text.split())
    assert normalize_url(f"https://example.com/{path}") is not None or "\ud800" <= max(path) <= "\udfff"


def test_the_address_as_it_was_shared_is_stored_if_it_is_not_the_normal_form() -> None:
    for url, shared in (
        ("https://example.com/a", ""),
        (" https://example.com/a ", ""),
        ("http://example.com/a/?utm_source=x", "http://example.com/a/?utm_source=x"),
        (f"https://example.com/a?utm_source={'x' * MAX_URL_LENGTH}", ""),
    ):
        assert original_url(url, "https://example.com/a") == shared


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
    assert find_urls(text) == links
