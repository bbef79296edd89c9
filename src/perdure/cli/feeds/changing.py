"""What the commands do to accounts. Each tells what it did, or what it would have done."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from ...feeds import Account, FeedSource, FeedStore, PollSettings, Profile, gaps
from ...feeds.account import StoredAccount
from ...feeds.errors import AmbiguousHandle, InvalidActor, RequestRejected, UnknownAccount
from ...feeds.follows import add_account
from ...feeds.reports import AccountChange
from ...feeds.store import AccountEdit
from ...storage import Micros
from ..errors import CommandError

_NAME = re.compile(r"did:[a-z]+:[A-Za-z0-9._:%-]+|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_SHOWN_AT = re.compile(r"https?://[^/]+/profile/([^/?#]+).*")


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    steps: tuple[AccountChange, ...]
    unknown: tuple[str, ...] = ()
    """Names that the source does not know."""
    dry_run: bool = False

    def count(self, done: str | None) -> int:
        return sum(step.action == done for step in self.steps)


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


async def add(store: FeedStore, known: Known, *, polling: PollSettings, dry_run: bool) -> Steps:
    """Add the accounts that exist; the others are named."""
    steps = [
        await add_account(store, profile, settings=polling, dry_run=dry_run) for profile in known.profiles
    ]
    unknown: list[str] = []
    for name in known.unknown:
        try:
            account = (await store.find(name)).account
        except (UnknownAccount, AmbiguousHandle):
            unknown.append(name)
        else:  # the source does not show it just now
            note = f"already added, {account.status}: {account.reason}"
            steps.append(
                AccountChange(account=account.account_id, handle=account.handle, action=None, note=note)
            )
    return Steps(steps=tuple(steps), unknown=tuple(unknown), dry_run=dry_run)


async def _profiles(source: FeedSource, names: Sequence[str]) -> list[Profile]:
    """Of those that there are. A source may refuse all for one whose name it finds impossible."""
    try:
        return await source.profiles(names) if names else []
    except (InvalidActor, RequestRejected):
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
        raise CommandError(
            f"{text!r} is not a handle or DID; write a handle like alice.bsky.social, or a DID"
        )
    return name


async def _write(store: FeedStore, account: Account, edit: AccountEdit, *, dry_run: bool) -> None:
    if not dry_run:
        await store.update(account.account_id, edit)


# Changing


async def change(
    store: FeedStore, names: Sequence[str], edit: Callable[[Account], Account], done: str, *, dry_run: bool
) -> Steps:
    """The same change for each of these accounts; for none of them, if one is unknown."""
    found = [await store.find(name_in(name)) for name in names]
    steps = [await _changed(store, each, edit, done, dry_run=dry_run) for each in found]
    return Steps(steps=tuple(steps), dry_run=dry_run)


async def _changed(
    store: FeedStore, stored: StoredAccount, edit: AccountEdit, done: str, *, dry_run: bool
) -> AccountChange:
    account = stored.account
    await _write(store, account, edit, dry_run=dry_run)
    return AccountChange(account=account.account_id, handle=account.handle, action=done)


def reread(account: Account, *, since: Micros, now: Micros) -> Account:
    """Due at once, with everything since then to be read again."""
    return gaps.add_backfill_gap(account, since, now=now)


async def remove(store: FeedStore, names: Sequence[str], *, with_items: bool, dry_run: bool) -> Steps:
    found = [await store.find(name_in(name)) for name in names]
    steps = [await _removed(store, each.account, with_items=with_items, dry_run=dry_run) for each in found]
    return Steps(steps=tuple(steps), dry_run=dry_run)


async def _removed(store: FeedStore, account: Account, *, with_items: bool, dry_run: bool) -> AccountChange:
    count = await store.count_items(account.account_id)
    if not dry_run:
        await store.remove(account.account_id, with_items=with_items)
    note = f"with {count} items" if with_items else f"its {count} items stay"
    return AccountChange(account=account.account_id, handle=account.handle, action="removed", note=note)
