"""Follow lists: the accounts that somebody follows are polled, and no longer when they are unfollowed.

Each account records where it came from: which follow lists have added it, and whether it was added by hand. A
list changes only accounts that it added itself, so two lists and an operator do not get in each other's way.
"""

from __future__ import annotations

import logging
from functools import partial

import msgspec
from msgspec.structs import replace

from ..storage.errors import NewerFormat
from . import transitions
from .account import BY_HAND, Account, Status
from .errors import AccountBusy, CorruptFeed, FollowsNobody, InvalidActor, UnknownAccount
from .reports import AccountChange
from .settings import Polling
from .source import FollowSource, Profile
from .store import FeedStore

log = logging.getLogger("perdure.feeds")

PRUNE_REASON = "no longer followed by"
"""How the reason begins for which an account is suspended that is no longer followed."""


async def add_account(
    store: FeedStore, profile: Profile, *, origin: str = BY_HAND, polling: Polling, dry_run: bool = False
) -> AccountChange:
    """Add an account, or bring the handle and origins of one that exists up to date."""
    change = partial(AccountChange, account=profile.account_id, handle=profile.handle)
    try:
        before = (await store.get(profile.account_id)).account
    except UnknownAccount:
        if not dry_run:
            new = transitions.new_account(profile, now=store.clock(), polling=polling, origin=origin)
            await store.add(new)
        return change(action="added")
    after = _brought_up_to_date(before, profile, origin)
    if after != before and not dry_run:
        await store.edit(before.account_id, lambda each: _brought_up_to_date(each, profile, origin))
    if after.handle != before.handle:
        return change(action="renamed", note=f"was {before.handle}")
    note = "already added, and suspended" if before.status is Status.SUSPENDED else "already added"
    return change(action=None, note=note)


class FollowList(msgspec.Struct, frozen=True, kw_only=True):
    """The accounts that somebody follows, as far as the source shows them just now."""

    owner: Profile
    followed: dict[str, Profile]
    """By id."""

    @property
    def origin(self) -> str:
        """What accounts record that came from this list. It stays the same when the owner is renamed."""
        return f"follows:{self.owner.account_id}"

    def check_prunable(self) -> None:
        """Raise FollowsNobody if the list is empty: that is more likely an error than a wish."""
        if not self.followed:
            raise FollowsNobody(self.owner.handle)


async def read_follow_list(source: FollowSource, actor: str) -> FollowList:
    """Read whom `actor` follows. Raise InvalidActor if there is no such account."""
    try:
        found = await source.profiles([actor])
    except InvalidActor:
        found = []
    if not found:
        raise InvalidActor(f"unknown account {actor}; check the spelling or use the DID")
    owner = found[0]
    followed = {profile.account_id: profile async for profile in source.follows(owner.account_id)}
    return FollowList(owner=owner, followed=followed)


async def apply_follow_list(
    store: FeedStore,
    source: FollowSource,
    follows: FollowList,
    *,
    polling: Polling,
    prune: bool = False,
    dry_run: bool = False,
) -> list[AccountChange]:
    """Add the accounts of a follow list. With `prune`, suspend those that this list once added and whose
    owner no longer follows them, unless they were added in another way too.
    """
    if prune:
        follows.check_prunable()
    changes: list[AccountChange] = []
    for profile in follows.followed.values():
        try:
            changes.append(
                await _add_or_resume(store, profile, origin=follows.origin, polling=polling, dry_run=dry_run)
            )
        except (AccountBusy, CorruptFeed, NewerFormat) as error:  # one account does not stop the others
            log.warning("skipped %s: %s", profile.handle, error)
    if prune:
        changes += await _prune(store, source, follows, dry_run=dry_run)
    return changes


async def _add_or_resume(
    store: FeedStore, profile: Profile, *, origin: str, polling: Polling, dry_run: bool
) -> AccountChange:
    change = await add_account(store, profile, origin=origin, polling=polling, dry_run=dry_run)
    if change.action == "added":
        return change
    account = (await store.get(profile.account_id)).account
    if account.status is not Status.SUSPENDED or not account.reason.startswith(PRUNE_REASON):
        return change
    if not dry_run:
        await store.edit(account.account_id, partial(transitions.resumed, now=store.clock()))
    return replace(change, action="resumed", note="followed again")


async def _prune(
    store: FeedStore, source: FollowSource, follows: FollowList, *, dry_run: bool
) -> list[AccountChange]:
    owner, origin, followed = follows.owner, follows.origin, follows.followed
    absent = {
        stored.account.account_id: stored.account
        async for stored in store.accounts()
        if origin in stored.account.origins and stored.account.account_id not in followed
    }
    if not absent:
        return []
    unfollowed = await source.unfollowed(owner.account_id, list(absent))
    changes: list[AccountChange] = []
    for account_id in (each for each in absent if each in unfollowed):
        before = absent[account_id]
        edit = partial(_without_origin, origin=origin, reason=f"{PRUNE_REASON} {owner.handle}")
        try:
            after = edit(before) if dry_run else await store.edit(account_id, edit)
        except (AccountBusy, UnknownAccount) as error:
            log.warning("skipped %s: %s", before.handle, error)
            continue
        if after.status is Status.SUSPENDED and before.status is not Status.SUSPENDED:
            changes.append(AccountChange(account=account_id, handle=before.handle, action="suspended"))
    return changes


def _brought_up_to_date(account: Account, profile: Profile, origin: str) -> Account:
    origins = account.origins if origin in account.origins else (*account.origins, origin)
    return replace(account, handle=profile.handle or account.handle, origins=origins)


def _without_origin(account: Account, *, origin: str, reason: str) -> Account:
    """Forget that a list has this account. One that came from nowhere else is no longer polled."""
    left = tuple(each for each in account.origins if each != origin)
    if left or account.status is Status.SUSPENDED:
        return replace(account, origins=left)
    return replace(transitions.suspended(account, reason), origins=left)
