"""Items out of recorded answers, and out of records that are not what they should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

from perdure.feeds import FeedPage, Link
from perdure.feeds.bluesky.items import (
    latest_by_author,
    parse_page,
    parse_profiles,
    parse_records,
    parse_timestamp,
)
from perdure.feeds.bluesky.lexicon import Feed, Records
from perdure.feeds.source import RecordPage

FIXTURES = Path(__file__).parent / "fixtures"
ANNA = "did:plc:guzlusxbreki6g5losucifwo"
BERT = "did:plc:wb63rrscxa4wz5f3epnsdir5"
QUOTED = Link(
    "https://example.com/very-long-article",
    "quote",
    "",
    "https://example.com/very-long-article?utm_source=bsky",
)

Json: TypeAlias = dict[str, Any]


def recorded(name: str) -> FeedPage:
    return parse_page(msgspec.json.decode((FIXTURES / f"{name}.json").read_bytes(), type=Feed))


def shown(*entries: object, **more: object) -> FeedPage:
    return parse_page(msgspec.json.decode(msgspec.json.encode({"feed": entries, **more}), type=Feed))


def entry(
    uri: str = "at://did:plc:a/app.bsky.feed.post/1", /, view: Json | None = None, **record: object
) -> Json:
    post: Json = {
        "uri": uri,
        "author": {"did": "did:plc:a", "handle": "a.test"},
        "record": {"text": "t", "createdAt": "2026-11-15T12:00:00Z", **record},
        "indexedAt": "2026-11-15T12:00:01Z",
    }
    return {"post": post if view is None else {**post, "embed": view}}


def links_of(each: Json) -> tuple[Link, ...]:
    (item,) = shown(each).items
    return item.links


def time(written: str) -> int:
    micros = parse_timestamp(written)
    assert micros is not None
    return micros


# Recorded answers


def test_a_page_of_a_hundred_is_read_whole() -> None:
    page = recorded("page100")
    assert len(page.items) == 100
    assert page.invalid_records == 0
    assert page.cursor == "1794712884064__bafyreiadxmwcjnko7mddzel4gskjbwtphgvj5e52udhcynuaebt4viwsri"


def test_items_stand_in_the_order_in_which_the_server_shows_them() -> None:
    """It sorts by the same times, so reading them differently would put some out of place."""
    times = [item.time for item in recorded("feed_full").items]
    assert len(set(times)) > 10
    assert times == sorted(times, reverse=True)


def test_a_repost_is_known_by_its_own_address_and_stands_at_its_own_time() -> None:
    own, foreign, *posts = recorded("reposts").items
    assert own.kind == foreign.kind == "repost"
    assert own.uri == f"at://{ANNA}/app.bsky.feed.repost/3n2emxkny222r"
    assert own.post_uri == f"at://{ANNA}/app.bsky.feed.post/3n2emxddk3k2r"
    assert own.time == time("2026-11-15T18:21:31.768Z")
    assert foreign.author_id == "did:plc:javyd4k3luzdhqltxrqwgczg"
    assert foreign.time == time("2026-11-15T18:21:31.730Z")
    assert [post.kind for post in posts] == ["post", "post"]


def test_a_post_that_dates_itself_forward_stands_where_it_was_first_seen() -> None:
    future = recorded("reposts").items[-1]
    assert future.text == "FUTURE"
    assert future.time == time("2026-11-15T18:21:27.061Z")


def test_what_is_pinned_says_nothing_about_how_far_a_page_reaches() -> None:
    page = recorded("pins")
    assert [item.text for item in page.pinned] == ["p1"]
    assert [item.kind for item in page.items] == ["repost", "repost"]
    assert page.items[-1].time == time("2026-11-15T18:21:31.730Z")


def test_the_last_page_has_no_cursor() -> None:
    assert recorded("embeds").cursor is None
    assert shown(cursor="").cursor is None


def test_links_are_found_in_cards_quotes_and_quotes_with_a_card() -> None:
    reply, repost, both, quote = recorded("embeds").items
    assert (reply.kind, reply.links) == ("reply", ())
    assert (repost.kind, repost.links) == ("repost", (Link("https://example.com/card", "card", "T"),))
    assert both.kind == "quote"
    assert both.links == (Link("https://example.com/rwm", "card", "T2"), QUOTED)
    assert (quote.kind, quote.links) == ("quote", (QUOTED,))


# Links


def facet(text: str, part: str, url: str) -> Json:
    start = text.encode().index(part.encode())
    return {
        "index": {"byteStart": start, "byteEnd": start + len(part.encode())},
        "features": [{"$type": "app.bsky.richtext.facet#link", "uri": url}],
    }


def test_a_marked_link_is_the_whole_one_and_what_stands_for_it_in_the_text_is_none() -> None:
    text = "f\u00fcr dich \U0001f600 https://a.test/long... und https://b.test/x."
    post = entry(text=text, facets=[facet(text, "https://a.test/long...", "https://a.test/long-and-whole")])
    assert links_of(post) == (
        Link("https://a.test/long-and-whole", "facet"),
        Link("https://b.test/x", "text"),
    )


def test_a_place_that_is_shared_in_two_ways_is_one_link() -> None:
    text = "see https://a.test/x"
    card = {"external": {"uri": "https://A.test/x/?utm_source=bsky#top", "title": "X"}}
    post = entry(
        text=text, facets=[facet(text, "https://a.test/x", "https://a.test/x")], embed=card, view=card
    )
    assert links_of(post) == (Link("https://a.test/x", "card", "X", "https://A.test/x/?utm_source=bsky#top"),)


def test_a_mention_and_a_tag_are_no_links() -> None:
    features = [
        {"$type": "app.bsky.richtext.facet#mention", "did": "did:plc:b"},
        {"$type": "app.bsky.richtext.facet#tag", "tag": "y", "uri": "https://y.test"},
    ]
    post = entry(text="@b #y", facets=[{"index": {"byteStart": 0, "byteEnd": 5}, "features": features}])
    assert links_of(post) == ()


def test_a_quoted_post_brings_its_card_its_marks_and_its_text() -> None:
    text = "more at https://c.test/..."
    value = {
        "text": f"{text} https://d.test",
        "facets": [facet(text, "https://c.test/...", "https://c.test/all")],
        "embed": {"external": {"uri": "https://own.test", "title": "Own"}},
    }
    embeds = [{"media": {"external": {"uri": "https://shown.test", "title": "Shown"}}, "record": {}}]
    view = {"record": {"uri": "at://did:plc:b/app.bsky.feed.post/2", "value": value, "embeds": embeds}}
    assert links_of(entry(view=view)) == (
        Link("https://shown.test", "quote", "Shown"),
        Link("https://own.test", "quote", "Own"),
        Link("https://c.test/all", "quote"),
        Link("https://d.test", "quote"),
    )


def test_a_quote_that_cannot_be_shown_has_no_links() -> None:
    gone = {"record": {"uri": "at://did:plc:b/app.bsky.feed.post/2", "notFound": True}}
    assert links_of(entry(view=gone, embed=gone)) == ()


def test_a_feed_that_is_attached_is_no_quote() -> None:
    (item,) = shown(entry(embed={"record": {"uri": "at://did:plc:b/app.bsky.feed.generator/f"}})).items
    assert item.kind == "post"


@pytest.mark.parametrize(
    "broken",
    [
        {"embed": {"external": {"uri": 7}}},
        {"embed": "card"},
        {"embed": None},
        {"facets": {"index": 1}},
        {"facets": [{"index": {"byteStart": "0"}}]},
        {"facets": None},
        {"facets": [{"index": {"byteStart": -9, "byteEnd": 10**9}}]},
        {"reply": {"root": 1}},
        {"langs": 3, "tags": "all"},
    ],
)
def test_a_part_that_cannot_be_read_takes_nothing_away_from_its_post(broken: Json) -> None:
    page = shown(entry(text="at https://a.test", **broken))
    assert page.invalid_records == 0
    assert page.items[0].links == (Link("https://a.test", "text"),)


# Times


@pytest.mark.parametrize(
    ("created", "stands_at"),
    [
        ("2020-01-01T00:00:00Z", "2020-01-01T00:00:00Z"),
        ("2030-01-01T00:00:00Z", "2026-11-15T12:00:01Z"),
        ("some time ago", "2026-11-15T12:00:01Z"),
        (None, "2026-11-15T12:00:01Z"),
        (1_794_744_000, "2026-11-15T12:00:01Z"),
        ("2026-11-15T13:00:00+02:00", "2026-11-15T11:00:00Z"),
    ],
)
def test_a_post_stands_at_the_earlier_of_what_it_says_and_when_it_was_seen(
    created: object, stands_at: str
) -> None:
    (item,) = shown(entry(createdAt=created)).items
    assert item.time == time(stands_at)


def test_a_repost_without_an_address_of_its_own_is_known_by_the_post() -> None:
    reason = {"$type": "app.bsky.feed.defs#reasonRepost", "by": {"did": "did:plc:b"}}
    page = shown({**entry("at://did:plc:a/x/1"), "reason": {**reason, "indexedAt": "2026-11-15T13:00:00Z"}})
    assert page.items[0].uri == page.items[0].post_uri == "at://did:plc:a/x/1"
    assert page.items[0].time == time("2026-11-15T13:00:00Z")


# What cannot be read


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        17,
        "post",
        [],
        {},
        {"post": None},
        {"post": {"uri": "at://did:plc:b/app.bsky.feed.post/2", "notFound": True}},
        {"post": {**entry()["post"], "indexedAt": "whenever"}},
        {"post": {**entry()["post"], "uri": ""}},
        {"post": {**entry()["post"], "uri": "at://" + "x" * 300}},
        {"post": {**entry()["post"], "author": {}}},
        {"post": {**entry()["post"], "record": {"text": 5}}},
        {"post": {**entry()["post"], "record": {"text": "x" * 300_000}}},
        {**entry(), "reason": {"$type": "app.bsky.feed.defs#reasonRepost", "by": {"did": "did:plc:b"}}},
    ],
)
def test_one_invalid_record_is_skipped_and_its_page_is_read(garbage: object) -> None:
    page = shown(entry("at://a/b/1"), garbage, entry("at://a/b/2"), cursor="c")
    assert [item.uri for item in page.items] == ["at://a/b/1", "at://a/b/2"]
    assert page.invalid_records == 1
    assert page.cursor == "c"


def test_a_record_that_is_not_text_is_skipped_too() -> None:
    good = msgspec.json.encode(entry())
    bad = good.replace(b'"t"', b'"\xff"')
    deep = good.replace(b'"t"', b"[" * 100_000)
    assert bad != good != deep
    page = parse_page(Feed(feed=[msgspec.Raw(bad), msgspec.Raw(good), msgspec.Raw(deep)]))
    assert (len(page.items), page.invalid_records) == (1, 2)


# Records, profiles, hints


def written(*records: object) -> RecordPage:
    body = msgspec.json.encode({"records": records})
    return parse_records(msgspec.json.decode(body, type=Records), BERT)


def test_a_record_has_the_identity_and_the_links_that_it_has_in_the_feed() -> None:
    feed = msgspec.json.decode((FIXTURES / "embeds.json").read_bytes())
    posts = [each["post"] for each in feed["feed"] if each["post"]["author"]["did"] == BERT]
    reposts = [each for each in feed["feed"] if "reason" in each]
    page = written(
        *({"uri": post["uri"], "value": post["record"]} for post in posts),
        *(
            {
                "uri": each["reason"]["uri"],
                "value": {"subject": {"uri": each["post"]["uri"]}, "createdAt": each["reason"]["indexedAt"]},
            }
            for each in reposts
        ),
    )
    by_uri = {item.uri: item for item in recorded("embeds").items}
    items = [record.item for record in page.records]
    assert len(items) == len(by_uri) == 4
    for item in items:
        assert (item.kind, item.post_uri, item.author_id) == (
            by_uri[item.uri].kind,
            by_uri[item.uri].post_uri,
            by_uri[item.uri].author_id,
        )
        assert abs(item.time - by_uri[item.uri].time) < 1_000_000
    assert items[1].links == (Link("https://example.com/rwm", "card", "T2"),)


@pytest.mark.parametrize(
    ("created", "key", "stands_at"),
    [
        ("2020-01-01T00:00:00Z", "3n2en2tmbuc2r", "2020-01-01T00:00:00Z"),
        ("2030-01-01T00:00:00Z", "3n2en2tmbuc2r", "2026-11-15T18:23:21"),
        ("once", "3n2en2tmbuc2r", "2026-11-15T18:23:21"),
        ("2026-11-15T12:00:00Z", "by-hand", "2026-11-15T12:00:00Z"),
    ],
)
def test_the_time_of_a_record_is_the_earlier_of_its_own_and_that_of_its_key(
    created: str, key: str, stands_at: str
) -> None:
    uri = f"at://{BERT}/app.bsky.feed.post/{key}"
    (record,) = written({"uri": uri, "value": {"text": "t", "createdAt": created}}).records
    assert 0 <= record.item.time - time(stands_at) < 1_000_000
    written_at = stands_at if key == "by-hand" else "2026-11-15T18:23:21"
    assert 0 <= record.written_at - time(written_at) < 1_000_000


def test_a_record_without_any_time_is_skipped() -> None:
    page = written(
        {"uri": f"at://{BERT}/app.bsky.feed.post/by-hand", "value": {"text": "t", "createdAt": "once"}},
        {"uri": f"at://{BERT}/app.bsky.feed.repost/3n2en2tmbuc2r", "value": {"createdAt": "no subject"}},
        {"uri": f"at://{BERT}/app.bsky.feed.post/3n2en2tmbuc2r", "value": {"text": "t"}},
    )
    assert (len(page.records), len(page.uris), page.invalid_records) == (1, 3, 2)


def test_a_profile_that_cannot_be_read_does_not_hide_the_others() -> None:
    raws = [msgspec.Raw(b"{}"), msgspec.Raw(b'{"did":"did:plc:a","handle":"a.test","postsCount":3}')]
    (profile,) = parse_profiles(raws)
    assert (profile.account_id, profile.handle, profile.post_count) == ("did:plc:a", "a.test", 3)


def test_a_hint_names_who_reposts_and_not_whom() -> None:
    feed = msgspec.json.decode((FIXTURES / "reposts.json").read_bytes(), type=Feed)
    assert latest_by_author(feed) == {ANNA: time("2026-11-15T18:21:31.768Z")}
