"""Half of a pair of surrogates, which no UTF-8 can express, costs one letter and not the page."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import msgspec
import pytest

from perdure.feeds.bluesky.xrpc import _decode

_any: msgspec.json.Decoder[object] = msgspec.json.Decoder()


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (rb'["a\ud800b", "c"]', ["a\ufffdb", "c"]),
        (rb'["a\udc00b"]', ["a\ufffdb"]),
        (rb'["\uD83D\uDE00 \uDBFF"]', ["\U0001f600 \ufffd"]),
        (rb'["\ud800\ud83d\ude00"]', ["\ufffd\U0001f600"]),
        (rb'["\ud83d\ude00"]', ["\U0001f600"]),
    ],
)
def test_a_half_becomes_a_replacement_and_a_whole_stays(written: bytes, read: list[str]) -> None:
    assert _decode(_any, written) == read


def test_what_is_broken_otherwise_stays_broken() -> None:
    with pytest.raises(msgspec.DecodeError):
        _decode(_any, rb'["\ud800"')
