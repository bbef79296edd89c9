"""What the commands do to accounts. Each tells what it did, or what it would have done."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from ...feeds import Account, FeedSource, FeedStore, Polling, Profile, Status, settling, walking
from ...feeds.account import Stored
from ...feeds.errors import AccountUnavailable, InvalidActor, RequestRefused, UnknownAccount
from ...feeds.source import FollowSource
from ...feeds.store import Edit
from ...storage import Micros
from ..ending import CannotDo

PRUNED = "no longer followed by"
"""How the reason begins for which an account was suspended that somebody no longer follows."""
_NAME = re.compile(r"did:[a-z]+:[A-Za-z0-9._:%-]+|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_SHOWN_AT = re.compile(r"https?://[^/]+/profile/([^/?#]+).*")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one account."""

    account: str
    handle: str
    done: str | None
    """In one word. None: there was nothing to do."""
    note: str = ""


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    steps: tuple[Step, ...]
    unknown: tuple[str, ...] = ()
    """Names that the source does not know."""
    dry_run: bool = False

    def count(self, done: str | None) -> int:
        return sum(step.done == done for step in self.steps)


# Adding


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What the source knows of the names that were given."""

    profiles: tuple[Profile, ...]
    unknown: tuple[str, ...]


async def look_up(source: FeedSource, names: Sequence[str]) -> Known:
    """Ask the source for these accounts, before anything is stored."""
    wanted = list(dict.fromkeys(bare(name) for name in names))
    profiles = await _profiles(source, [name for name in wanted if _NAME.fullmatch(name)])
    known = {name.lower() for each in profiles for name in (each.account_id, each.handle)}
    return Known(
        profiles=tuple(profiles), unknown=tuple(name for name in wanted if name.lower() not in known)
    )


async def add(store: FeedStore, known: Known, *, polling: Polling, dry_run: bool) -> Steps:
    """Add the accounts that exist; the others are named."""
    steps = [await _add(store, profile, polling=polling, dry_run=dry_run) for profile in known.profiles]
    return Steps(steps=tuple(steps), unknown=known.unknown, dry_run=dry_run)


async def _profiles(source: FeedSource, names: Sequence[str]) -> list[Profile]:
    """Of those that there are. A source may refuse all for one whose name it finds impossible."""
    try:
        return await source.profiles(names) if names else []
    except (InvalidActor, RequestRefused):
        if len(names) == 1:
            return []
    half = len(names) // 2
    return [*await _profiles(source, names[:half]), *await _profiles(source, names[half:])]


def bare(text: str) -> str:
    """A handle or a DID, from how people copy them: with an @, or as the address of a profile."""
    shown = _SHOWN_AT.fullmatch(text.strip())
    return (shown[1] if shown else text.strip()).removeprefix("@")


def name_in(text: str) -> str:
    """A handle or a DID, if it can be one."""
    name = bare(text)
    if not _NAME.fullmatch(name):
        raise CannotDo(f"{text!r} is no account; write a handle like alice.bsky.social, or a DID")
    return name


async def _add(store: FeedStore, profile: Profile, *, polling: Polling, dry_run: bool) -> Step:
    step = partial(Step, account=profile.account_id, handle=profile.handle)
    try:
        there = (await store.get(profile.account_id)).account
    except UnknownAccount:
        if not dry_run:
            await store.add(settling.new_account(profile, now=store.clock(), polling=polling))
        return step(done="added")
    if there.handle != profile.handle:
        await _write(store, there, lambda each: replace(each, handle=profile.handle), dry_run=dry_run)
        return step(done="renamed", note=f"was {there.handle}")
    note = "already there" if there.status is not Status.SUSPENDED else "already there, and suspended"
    return step(done=None, note=note)


async def _write(store: FeedStore, account: Account, edit: Edit, *, dry_run: bool) -> None:
    if not dry_run:
        await store.edit(account.account_id, edit)


# Following


async def follow(
    store: FeedStore,
    actor: str,
    followed: Mapping[str, Profile],
    *,
    polling: Polling,
    prune: bool,
    dry_run: bool,
) -> Steps:
    """Add the accounts that the actor follows. Suspend those that it no longer follows, with `prune`."""
    steps = [
        await _back_or_added(store, profile, polling=polling, dry_run=dry_run)
        for profile in followed.values()
    ]
    if prune:
        steps += await _prune(store, set(followed), f"{PRUNED} {actor}", dry_run=dry_run)
    return Steps(steps=tuple(steps), dry_run=dry_run)


async def followed_by(source: FollowSource, actor: str, *, prune: bool) -> dict[str, Profile]:
    """Ask the source whom the actor follows, before anything is stored."""
    try:
        followed = {profile.account_id: profile async for profile in source.follows(actor)}
    except (AccountUnavailable, InvalidActor) as error:
        remedy = "look for a typing error, or use its DID"
        raise AccountUnavailable(f"Bluesky knows no {actor}: {error}; {remedy}") from error
    if prune and not followed:
        raise CannotDo(f"{actor} follows nobody; that would suspend every account")
    return followed


async def _back_or_added(store: FeedStore, profile: Profile, *, polling: Polling, dry_run: bool) -> Step:
    step = await _add(store, profile, polling=polling, dry_run=dry_run)
    if step.done == "added":
        return step
    account = (await store.get(profile.account_id)).account
    if account.status is not Status.SUSPENDED or not account.reason.startswith(PRUNED):
        return step
    await _write(store, account, partial(settling.resumed, now=store.clock()), dry_run=dry_run)
    return replace(step, done="resumed", note="followed again")


async def _prune(store: FeedStore, followed: set[str], reason: str, *, dry_run: bool) -> list[Step]:
    others = [
        stored
        async for stored in store.accounts()
        if stored.account.account_id not in followed and stored.account.status is not Status.SUSPENDED
    ]
    edit = partial(settling.suspended, reason=reason)
    return [await _changed(store, each, edit, "suspended", dry_run=dry_run) for each in others]


# Changing


async def change(
    store: FeedStore, names: Sequence[str], edit: Callable[[Account], Account], done: str, *, dry_run: bool
) -> Steps:
    """The same change for each of these accounts; for none of them, if one is unknown."""
    found = [await store.find(name_in(name)) for name in names]
    steps = [await _changed(store, each, edit, done, dry_run=dry_run) for each in found]
    return Steps(steps=tuple(steps), dry_run=dry_run)


async def _changed(store: FeedStore, stored: Stored, edit: Edit, done: str, *, dry_run: bool) -> Step:
    account = stored.account
    await _write(store, account, edit, dry_run=dry_run)
    return Step(account=account.account_id, handle=account.handle, done=done)


def reread(account: Account, *, since: Micros, now: Micros) -> Account:
    """Due at once, with everything since then to be read again."""
    return walking.back_to(account, since, now=now)


async def remove(store: FeedStore, names: Sequence[str], *, with_items: bool, dry_run: bool) -> Steps:
    found = [await store.find(name_in(name)) for name in names]
    steps = [await _removed(store, each.account, with_items=with_items, dry_run=dry_run) for each in found]
    return Steps(steps=tuple(steps), dry_run=dry_run)


async def _removed(store: FeedStore, account: Account, *, with_items: bool, dry_run: bool) -> Step:
    count = await store.count_items(account.account_id)
    if not dry_run:
        await store.remove(account.account_id, with_items=with_items)
    note = f"with {count} items" if with_items else f"its {count} items stay"
    return Step(account=account.account_id, handle=account.handle, done="removed", note=note)
