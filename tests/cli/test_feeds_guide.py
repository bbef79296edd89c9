"""docs/guides/feeds.md does what it says: it is followed with a fake Bluesky instead of the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..doc_pages.pages import DOCS
from ..doc_pages.reader import Reader
from ..doc_pages.shell import terminal
from .feeds_folder import feeds_folder, now

pytestmark = pytest.mark.anyio

GUIDE = DOCS / "guides" / "feeds.md"
SERVERS = ("https://public.api.bsky.app", "https://bsky.social")
"""The two servers of Bluesky in the settings of the guide."""
PAGE = "https://news.example/today"


async def test_the_guide_to_feeds_can_be_followed(tmp_path: Path) -> None:
    assert all(GUIDE.read_text("utf-8").count(f'"{server}"') == 1 for server in SERVERS)
    async with feeds_folder(tmp_path) as place, terminal(tmp_path) as shell:
        people = ("alice.bsky.social", "bob.bsky.social", "carol.bsky.social")
        alice, bob, carol = (place.person(name, 3) for name in people)
        for did in (alice, bob):
            place.world.publish(did, PAGE, at=now())
        me = place.person("me.bsky.social")
        place.world.follow(me, carol)
        place.fake.sessions.passwords[me] = "right"
        place.write_settings(url=None)  # as if Bluesky were where the defaults look for it
        await shell.run(f"export XDG_STATE_HOME={tmp_path / 'state'} PERDURE_BLUESKY_PASSWORD=right")
        await Reader(GUIDE, tmp_path, shell, dict.fromkeys(SERVERS, place.fake.url)).follow()

        shown = shell.look().splitlines()
        assert "[INITIAL] alice.bsky.social: 4 posts, 1 URLs across 1 pages" in shown
        assert shown[-1] == f"{PAGE} 2"
        place.url = f"sqlite:///{tmp_path / 'perdure.db'}"
        assert {account.handle for account in await place.accounts()} >= set(people)
        texts = {item.text for item in await place.items()}
    assert {PAGE, "alice.bsky.social 2", "carol.bsky.social 0"} <= texts
