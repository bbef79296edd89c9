"""Synchronizes accounts with follow lists: adds followed accounts and, on request, suspends unfollowed ones.

Each account stores its origins: the follow lists from which it was added, and `manual` if an operator added
it. Suspending unfollowed accounts is called pruning. An account that has another origin is not suspended,
because another list still includes it or an operator wants it to be polled.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial

from msgspec.structs import replace

from ..storage import Micros
from ..storage.errors import NewerFormat
from . import transitions
from .account import MANUAL_ORIGIN, Account, AccountStatus
from .api_types import AccountChange
from .errors import CorruptFeedRecord, EditConflict, EmptyFollowList, InvalidActor, UnknownAccount
from .settings import PollSettings
from .source import FollowSource, Profile
from .store import FeedStore

log = logging.getLogger("perdure.feeds")

PRUNE_REASON = "no longer followed by"
"""`Account.reason` starts with these words if the account was suspended because it was unfollowed."""


async def add_account(
    store: FeedStore,
    profile: Profile,
    *,
    origin: str = MANUAL_ORIGIN,
    settings: PollSettings,
    dry_run: bool = False,
) -> AccountChange:
    """Add an account, or update the handle and origins of an account that is already stored.

    If `origin` is a follow list and the account was suspended because it was unfollowed, resume it.
    """
    change = partial(AccountChange, account=profile.account_id, handle=profile.handle)
    try:
        before = (await store.get(profile.account_id)).account
    except UnknownAccount:
        if not dry_run:
            new = transitions.new_account(profile, now=store.clock(), settings=settings, origin=origin)
            await store.add(new)
        return change(action="added")
    edit = partial(_with_origin, profile=profile, origin=origin, now=store.clock())
    after = edit(before)
    if after != before and not dry_run:
        await store.update(before.account_id, edit)
    if before.status is AccountStatus.SUSPENDED and after.status is not AccountStatus.SUSPENDED:
        return change(action="resumed", note="followed again")
    if after.handle != before.handle:
        return change(action="renamed", note=f"was {before.handle}")
    note = "already added, and suspended" if before.status is AccountStatus.SUSPENDED else "already added"
    return change(action=None, note=note)


async def sync_follow_list(
    store: FeedStore,
    source: FollowSource,
    actor: str,
    *,
    settings: PollSettings,
    prune: bool = False,
    dry_run: bool = False,
) -> list[AccountChange]:
    """Add the accounts that `actor` follows. Raise InvalidActor if the source does not know the actor.

    With `prune`, suspend accounts that were added only from this follow list and are no longer on it. If the
    list is empty, raise EmptyFollowList instead, because an empty list is probably a mistake.
    """
    owner = await _find_owner(source, actor)
    followed = {profile.account_id: profile async for profile in source.follows(owner.account_id)}
    if prune and not followed:
        raise EmptyFollowList(owner.handle)
    origin = f"follows:{owner.account_id}"
    changes: list[AccountChange] = []
    for profile in followed.values():
        try:
            change = await add_account(store, profile, origin=origin, settings=settings, dry_run=dry_run)
            changes.append(change)
        except (EditConflict, CorruptFeedRecord, NewerFormat) as error:  # continue with the other accounts
            log.warning("could not add %s from a follow list: %s", profile.handle, error)
    if prune:
        changes += await _prune(store, source, owner, followed, dry_run=dry_run)
    return changes


async def _find_owner(source: FollowSource, actor: str) -> Profile:
    try:
        found = await source.profiles([actor])
    except InvalidActor:
        found = []
    if not found:
        raise InvalidActor(f"unknown account {actor}; check the spelling or use the DID")
    return found[0]


def is_pruned(account: Account) -> bool:
    """Return whether the account is suspended because it was unfollowed."""
    return account.status is AccountStatus.SUSPENDED and account.reason.startswith(PRUNE_REASON)


async def _prune(
    store: FeedStore, source: FollowSource, owner: Profile, followed: Collection[str], *, dry_run: bool
) -> list[AccountChange]:
    origin = f"follows:{owner.account_id}"
    absent = {
        stored.account.account_id: stored.account
        async for stored in store.accounts()
        if origin in stored.account.origins and stored.account.account_id not in followed
    }
    if not absent:
        return []
    unfollowed = await source.unfollowed(owner.account_id, list(absent))
    edit = partial(_without_origin, origin=origin, reason=f"{PRUNE_REASON} {owner.handle}")
    changes: list[AccountChange] = []
    for account_id, before in absent.items():
        if account_id not in unfollowed:
            continue
        try:
            after = edit(before) if dry_run else await store.update(account_id, edit)
        except (EditConflict, UnknownAccount) as error:
            log.warning("could not suspend unfollowed account %s: %s", before.handle, error)
            continue
        if after.status is AccountStatus.SUSPENDED and before.status is not AccountStatus.SUSPENDED:
            changes.append(AccountChange(account=account_id, handle=before.handle, action="suspended"))
    return changes


def _with_origin(account: Account, *, profile: Profile, origin: str, now: Micros) -> Account:
    """Add an origin and update the handle. Resume a pruned account if `origin` is a follow list."""
    if origin != MANUAL_ORIGIN and is_pruned(account):
        account = transitions.resumed(account, now=now)
    origins = account.origins if origin in account.origins else (*account.origins, origin)
    return replace(account, handle=profile.handle or account.handle, origins=origins)


def _without_origin(account: Account, *, origin: str, reason: str) -> Account:
    """Remove an origin. Suspend the account if it has no other origin."""
    left = tuple(each for each in account.origins if each != origin)
    if left or account.status is AccountStatus.SUSPENDED:
        return replace(account, origins=left)
    return replace(transitions.suspended(account, reason), origins=left)
