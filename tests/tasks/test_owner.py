"""Owners: any character is legal in them, and no two share a partition."""

from __future__ import annotations

import pytest
from hypothesis import given

from perdure.tasks import Owner
from perdure.tasks.errors import InvalidValue, LimitExceeded
from perdure.tasks.owner import partition_of

from ..markers import row
from .samples import owners


@row(27)
@given(owners, owners)
def test_different_owners_have_different_partitions_and_none_is_a_prefix(one: Owner, other: Owner) -> None:
    first, second = partition_of("a", one, "t"), partition_of("a", other, "t")
    assert (first == second) == (one == other)
    assert "\0" not in first
    if one != other:
        assert not second.startswith(first + ":")


@row(27)
def test_owners_cannot_be_made_to_look_like_each_other() -> None:
    names = ["a", "a:b", "a%3Ab", "a%", "a%25", ":", "::", "%00", "\0", "a\0b", "{a}", "a#", "a/b", "日本"]
    made = [Owner.user(issuer, subject) for issuer in ["", *names] for subject in names]
    made += [Owner.client(issuer, subject) for issuer in ["", *names] for subject in names]
    made += [Owner.session(name) for name in names] + [Owner.local()]
    assert len({partition_of("a", owner, "") for owner in made}) == len(made)


def test_an_empty_name_is_refused() -> None:
    for make in (
        lambda: Owner.user("issuer", ""),
        lambda: Owner.client("issuer", ""),
        lambda: Owner.session(""),
    ):
        with pytest.raises(InvalidValue, match="empty"):
            make()


def test_an_owner_too_long_or_not_utf8_is_refused() -> None:
    with pytest.raises(LimitExceeded) as caught:
        Owner.user("https://issuer.example", "x" * 1000)
    assert caught.value.field == "owner"
    with pytest.raises(InvalidValue, match="surrogate"):
        Owner.user("https://issuer.example", "\ud800")


def test_each_anonymous_task_is_a_partition_of_its_own() -> None:
    anonymous = Owner.anonymous()
    assert partition_of("app", anonymous, "a") != partition_of("app", anonymous, "b")
