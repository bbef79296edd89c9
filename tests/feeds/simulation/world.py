"""`World`: all accounts, and everything they wrote. See the package."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from typing import TypedDict, Unpack

import msgspec

from perdure.storage import Micros

from .accounts import (
    POSTS,
    REPOSTS,
    Account,
    Json,
    Knobs,
    Refusal,
    Row,
    Shown,
    State,
    key_of,
    parent_in,
    quoted_in,
    ref_to,
)
from .paging import Paging, checked, newest_of_all
from .times import iso, parsed, tid, whole

START: Micros = 1_794_700_000_000_000
"""The default start of a world's clock: in November 2026."""
PROFILES_AT_MOST = 25

_DIGITS = str.maketrans("0189", "wxyz")
"""Digits that no such name has."""

_IDENTIFIER = re.compile(
    r"did:[a-z]+:[A-Za-z0-9._:%-]*[A-Za-z0-9._-]|"
    r"([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
)


class Rest(TypedDict, total=False):
    """Further properties of a post."""

    created_at: Micros | str | None
    at: Micros | None
    facets: list[Json]


class World:
    """All accounts, and everything they wrote. What it refuses is a `Refusal`."""

    def __init__(
        self,
        *,
        seed: int = 0,
        now: Micros = START,
        clock: Callable[[], Micros] | None = None,
        knobs: Knobs | None = None,
    ) -> None:
        self.seed = seed
        self.at = now
        """The time, unless there is a clock. The owner of the world may set it."""
        self.knobs = knobs if knobs is not None else Knobs()
        self.accounts: dict[str, Account] = {}
        self.rows: dict[str, Row] = {}
        """Everything that is there, by its own uri."""
        self.lists: dict[str, list[str]] = {}
        self.revision = 0
        """Increases when a handle or a name changes."""
        self.changes = 0
        """Rises when any feed may have become another."""
        self._clock = clock
        self._handles: dict[str, str] = {}
        self._made = 0

    @property
    def now(self) -> Micros:
        return self.at if self._clock is None else self._clock()

    def advance(self, by: Micros) -> Micros:
        self.at += by
        return self.at

    # Who is there

    def account(
        self, handle: str | None = None, *, did: str | None = None, display_name: str | None = None
    ) -> str:
        """Create an account, and return its DID."""
        did = did or f"did:plc:{self._name(24)}"
        handle = handle or f"user{len(self.accounts)}.test"
        self.accounts[did] = Account(did, handle, display_name)
        self._handles[handle] = did
        return did

    def rename(self, did: str, handle: str) -> None:
        account = self.accounts[did]
        self._handles.pop(account.handle, None)
        account.handle = handle
        self._handles[handle] = did
        self.revision += 1
        self.changes += 1

    def set_state(self, did: str, state: State) -> None:
        self.accounts[did].state = state
        self.revision += 1
        self.changes += 1

    def deactivate(self, did: str) -> None:
        self.set_state(did, State.DEACTIVATED)

    def take_down(self, did: str) -> None:
        self.set_state(did, State.TAKEN_DOWN)

    def come_back(self, did: str) -> None:
        self.set_state(did, State.THERE)

    def follow(self, did: str, other: str) -> None:
        self.accounts[did].follows[other] = None

    def unfollow(self, did: str, other: str) -> None:
        self.accounts[did].follows.pop(other, None)

    def block(self, did: str, other: str) -> None:
        self.accounts[did].blocks.add(other)

    def unblock(self, did: str, other: str) -> None:
        self.accounts[did].blocks.discard(other)

    def make_list(self, did: str, members: Iterable[str]) -> str:
        """Create a list of an account, and return its URI."""
        uri = f"at://{did}/app.bsky.graph.list/{self._name(13)}"
        self.lists[uri] = list(members)
        return uri

    # What they write

    def publish(
        self,
        did: str,
        text: str = "",
        *,
        created_at: Micros | str | None = None,
        at: Micros | None = None,
        **fields: object,
    ) -> str:
        """A post; its uri. The server sees it at `at` (now), and `created_at` (the same) is the author's
        word: earlier, later, or a text that is no time. More fields (embed, facets) go into the record.
        """
        indexed = whole(self.now if at is None else at)
        record: Json = {"text": text, "$type": POSTS, **fields, "createdAt": _created_at(created_at, indexed)}
        return self._write(did, POSTS, record, indexed).uri

    def reply(self, did: str, to: str, text: str = "", **rest: Unpack[Rest]) -> str:
        parent = self.rows[to]
        root = parent.record.get("reply", {}).get("root", ref_to(parent))
        return self.publish(did, text, reply={"root": root, "parent": ref_to(parent)}, **rest)

    def quote(
        self, did: str, of: str, text: str = "", *, card: Json | None = None, **rest: Unpack[Rest]
    ) -> str:
        """A post that shows another one, and perhaps a card (uri, title, description) as well."""
        embed: Json = {"$type": "app.bsky.embed.record", "record": ref_to(self.rows[of])}
        if card is not None:
            media = {"$type": "app.bsky.embed.external", "external": card}
            embed = {
                "$type": "app.bsky.embed.recordWithMedia",
                "media": media,
                "record": {"record": embed["record"]},
            }
        return self.publish(did, text, embed=embed, **rest)

    def repost(
        self, did: str, of: str, *, created_at: Micros | str | None = None, at: Micros | None = None
    ) -> str:
        """Repost a post, and return the URI of the repost."""
        indexed = whole(self.now if at is None else at)
        record: Json = {
            "$type": REPOSTS,
            "subject": ref_to(self.rows[of]),
            "createdAt": _created_at(created_at, indexed),
        }
        return self._write(did, REPOSTS, record, indexed).uri

    def pin(self, did: str, uri: str | None) -> None:
        self.accounts[did].pinned = uri
        self.changes += 1

    def spoil(self, uri: str) -> None:
        """From now on answers hold garbage where this was."""
        row = self.rows[uri]
        row.is_spoiled = True
        row.version += 1
        self.changes += 1

    def delete(self, uri: str) -> None:
        row = self.rows.pop(uri)
        row.is_deleted = True
        account, (collection, key) = row.by, uri.split("/")[-2:]
        del account.rows[bisect_left(account.rows, row.key, key=key_of)]
        del account.records[collection][key]
        keys = account.keys[collection]
        del keys[bisect_left(keys, key)]
        self._count(row, -1)

    def insert(self, uri: str, cid: str, record: Json, indexed: Micros) -> Row:
        """A post or a repost as it is, with a name that it already has."""
        did, collection, key = uri.removeprefix("at://").split("/")
        account = self.accounts[did]
        row = Row(account, uri, cid, record, indexed)
        if collection == REPOSTS:
            row.post = self.rows[record["subject"]["uri"]]
        self._place(row)
        insort(account.rows, row, key=key_of)
        account.records[collection][key] = row
        insort(account.keys[collection], key)
        account.ever[uri] = row.time
        self.rows[uri] = row
        self._count(row, 1)
        return row

    def _write(self, did: str, collection: str, record: Json, indexed: Micros) -> Row:
        account = self.accounts[did]
        account.last_key = max(account.last_key + 1, indexed)
        uri = f"at://{did}/{collection}/{tid(account.last_key)}"
        return self.insert(uri, f"bafyrei{self._name(52)}", record, indexed)

    def _place(self, row: Row) -> None:
        """Where it stands: at the earlier of when it says it was made, and when it was seen."""
        created = parsed(row.record.get("createdAt"))
        earlier = row.indexed if created is None else min(created, row.indexed)
        row.sort = whole(earlier)
        row.time = row.sort if self.knobs.shows_sort_time or row.is_repost else earlier
        row.key = (row.sort, row.cid)

    def _count(self, row: Row, by: int) -> None:
        """The figures on other people's posts."""
        self.changes += 1
        if row.is_repost:
            row.post.reposts += by
            row.post.version += 1
            return
        for target, name in ((parent_in(row.record), "replies"), (quoted_in(row.record), "quotes")):
            if target is not None and (other := self.rows.get(target)) is not None:
                setattr(other, name, getattr(other, name) + by)
                other.version += 1

    def _name(self, length: int) -> str:
        """A name like a hash: never the same one twice, and in no order."""
        self._made += 1
        digest = blake2b(f"{self.seed}:{self._made}".encode(), digest_size=26).hexdigest()
        return digest.translate(_DIGITS)[:length]

    # The truth

    def everything_of(self, did: str) -> dict[str, Micros]:
        """What is in a feed, by identity (the repost's uri, or the post's), with its time."""
        rows = self.accounts[did].rows
        return {row.uri: row.time for row in rows if row.is_visible and not row.is_spoiled}

    def ever_of(self, did: str) -> dict[str, Micros]:
        """What was ever in a feed, even if it is gone."""
        return dict(self.accounts[did].ever)

    def posts_of(self, did: str) -> int:
        """The count that a profile shows: posts only."""
        return len(self.accounts[did].records[POSTS])

    # What readers are shown

    def find(self, actor: str, *, viewer: str | None = None) -> Account:
        """Return an existing account that this viewer may see, by DID or handle."""
        if not _IDENTIFIER.fullmatch(actor):
            raise Refusal(400, "InvalidRequest", "Invalid AT identifier")
        did = actor if actor.startswith("did:") else self._handles.get(actor.lower(), "")
        account = self.accounts.get(did)
        if account is None or account.state is not State.THERE:
            raise Refusal(400, "InvalidRequest", "Profile not found")
        if viewer is not None and did in self.accounts[viewer].blocks:
            raise Refusal(400, "BlockedActor", f"Requester has blocked actor: {did}")
        if viewer is not None and viewer in account.blocks:
            raise Refusal(400, "BlockedByActor", f"Requester is blocked by actor: {did}")
        return account

    def author_feed(
        self,
        actor: str,
        limit: int = 50,
        cursor: str | None = None,
        *,
        include_pins: bool = False,
        viewer: str | None = None,
    ) -> Shown:
        account = self.find(actor, viewer=viewer)
        shown = self._page([account], limit, cursor)
        pinned = self.rows.get(account.pinned or "") if include_pins and cursor is None else None
        return shown if pinned is None else msgspec.structs.replace(shown, pinned=pinned)

    def timeline(self, viewer: str, limit: int = 50, cursor: str | None = None) -> Shown:
        """Of every account that the viewer follows, and of the viewer."""
        return self._page(self._there([viewer, *self.accounts[viewer].follows]), limit, cursor)

    def list_feed(self, uri: str, limit: int = 50, cursor: str | None = None) -> Shown:
        """The posts of a list's members, without their reposts."""
        if uri not in self.lists:
            raise Refusal(400, "UnknownList", f"List not found: {uri}")
        return self._page(self._there(self.lists[uri]), limit, cursor, with_reposts=False)

    def follows(
        self, actor: str, limit: int = 50, cursor: str | None = None
    ) -> tuple[list[Account], str | None]:
        """Return the accounts that an account follows, newest first."""
        followed = [*reversed(self.find(actor).follows)]
        begin = followed.index(cursor) + 1 if cursor in followed else 0
        part = followed[begin : begin + checked(limit)]
        return self._there(part), part[-1] if begin + len(part) < len(followed) else None

    def profiles(self, actors: Sequence[str]) -> list[Account]:
        """Those who are there. The others are left out."""
        if len(actors) > PROFILES_AT_MOST:
            raise Refusal(
                400, "InvalidRequest", f"actors must not have more than {PROFILES_AT_MOST} elements"
            )
        found: list[Account] = []
        for actor in actors:
            try:
                found.append(self.find(actor))
            except Refusal as refusal:
                if refusal.message != "Profile not found":
                    raise
        return found

    def list_records(
        self,
        repo: str,
        collection: str,
        limit: int = 50,
        cursor: str | None = None,
        *,
        reverse: bool = False,
    ) -> tuple[list[Row], str | None]:
        """What stands in a repository, in the order of writing if reversed, and else against it."""
        try:
            account = self.find(repo)
        except Refusal as refusal:
            raise Refusal(400, "InvalidRequest", f"Could not find repo: {repo}") from refusal
        keys, limit = account.keys.get(collection, []), checked(limit)
        if reverse:
            begin = 0 if cursor is None else bisect_right(keys, cursor)
            part = keys[begin : begin + limit]
        else:
            end = len(keys) if cursor is None else bisect_left(keys, cursor)
            part = keys[max(0, end - limit) : end][::-1]
        return [account.records[collection][key] for key in part], part[-1] if part else None

    def _page(
        self, accounts: Sequence[Account], limit: int, cursor: str | None, *, with_reposts: bool = True
    ) -> Shown:
        newest = partial(newest_of_all, accounts, with_reposts=with_reposts)
        return Paging(self.knobs, self.seed).page(newest, limit, cursor)

    def _there(self, dids: Iterable[str]) -> list[Account]:
        found = (self.accounts[did] for did in dids if did in self.accounts)
        return [account for account in found if account.state is State.THERE]


def _created_at(created_at: Micros | str | None, indexed: Micros) -> str:
    if isinstance(created_at, str):
        return created_at
    return iso(indexed if created_at is None else created_at)
