"""A ciphertext can be read with its key, at its place, unchanged; and in no other way."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.tasks import Owner
from perdure.tasks.encryption import Keyring, Place, Undecryptable, key_id_of, new_key
from perdure.tasks.errors import InvalidValue, KeyMissing

from ..markers import row

PLACE = Place("shop", Owner.user("https://issuer", "ada"), "0" * 32, "1" * 32, "credentials", 3)
KEYS = Keyring([new_key()])

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
owners = st.one_of(
    st.builds(Owner.user, names, names.filter(bool)),
    st.builds(Owner.client, names, names.filter(bool)),
    st.just(Owner.local()),
    st.just(Owner.anonymous()),
)
places = st.builds(Place, names, owners, names, names, names, st.integers(1, 2**53))


@row(122, 123)
@given(st.binary(max_size=2000), places)
def test_what_is_encrypted_for_a_place_is_decrypted_there(plain: bytes, place: Place) -> None:
    ciphertext = KEYS.encrypt(plain, place)
    assert KEYS.decrypt(ciphertext, place) == plain
    assert ciphertext.isascii()
    assert '"' not in ciphertext


@row(122, 123)
@given(st.binary(max_size=100), places, places)
def test_a_ciphertext_cannot_be_moved_to_another_place(plain: bytes, place: Place, other: Place) -> None:
    """Another application, owner, task, call, field or version."""
    ciphertext = KEYS.encrypt(plain, place)
    moved = (
        replace(place, application=place.application + "x"),
        replace(place, owner=Owner.user("elsewhere", "eve")),
        replace(place, task_id=place.task_id + "x"),
        replace(place, call=place.call + "x"),
        replace(place, field=place.field + "x"),
        replace(place, version=place.version + 1),
        other,
    )
    for each in moved:
        if each != place:
            with pytest.raises(Undecryptable):
                KEYS.decrypt(ciphertext, each)


@row(122, 123)
@given(st.binary(max_size=100), st.data())
def test_a_changed_ciphertext_is_refused(plain: bytes, data: st.DataObject) -> None:
    key_id, _, text = KEYS.encrypt(plain, PLACE).partition(".")
    raw = bytearray(b64decode(text))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Undecryptable):
        KEYS.decrypt(f"{key_id}.{b64encode(raw).decode()}", PLACE)
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(Undecryptable):
        KEYS.decrypt(f"{key_id}.{text[:cut]}", PLACE)


@row(122, 123)
@pytest.mark.parametrize("damaged", ["", "x" * 60, "ABCDEF01.QUJD", "0123456.QUJD", "012345678.QUJD"])
def test_a_damaged_key_id_is_not_taken_for_a_missing_key(damaged: str) -> None:
    ring = Keyring([new_key()])
    with pytest.raises(Undecryptable):
        ring.decrypt(damaged, PLACE)
    assert ring.missing_keys == {}


def test_another_key_is_missing_and_says_which() -> None:
    ciphertext = KEYS.encrypt(b"secret", PLACE)
    for ring in (Keyring(), Keyring([new_key()])):
        with pytest.raises(
            KeyMissing, match=f"key {KEYS.key_ids[0]}, which.*PERDURE_ENCRYPTION_KEY"
        ) as error:
            ring.decrypt(ciphertext, PLACE)
        assert error.value.key_id == key_id_of(ciphertext) == KEYS.key_ids[0]
        assert ring.missing_keys == {PLACE.application: {KEYS.key_ids[0]: PLACE}}
    with pytest.raises(KeyMissing, match="has no key"):
        Keyring().encrypt(b"secret", PLACE)


@row(123)
def test_the_first_key_encrypts_and_all_keys_decrypt() -> None:
    old, new = new_key(), new_key()
    before = Keyring([old]).encrypt(b"secret", PLACE)
    both = Keyring([new, old])
    after = both.encrypt(b"secret", PLACE)
    assert both.decrypt(before, PLACE) == both.decrypt(after, PLACE) == b"secret"
    assert key_id_of(after) == Keyring([new]).key_ids[0] != key_id_of(before)
    with pytest.raises(KeyMissing):
        Keyring([old]).decrypt(after, PLACE)


def test_the_same_text_is_encrypted_differently_each_time() -> None:
    assert len({KEYS.encrypt(b"secret", PLACE) for _ in range(100)}) == 100


def test_a_key_is_random_printable_and_without_commas() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) == 43 and key.isascii() and not set(key) & set(", =") for key in keys)


@pytest.mark.parametrize("wrong", ["", "short", "!" * 43, "A" * 44, "é" * 43, 3, None])
def test_what_is_not_a_key_is_refused_without_being_shown(wrong: object) -> None:
    with pytest.raises(
        InvalidValue, match="key 2 is not a valid perdure key; make one with: perdure key"
    ) as error:
        Keyring([new_key(), wrong])  # pyright: ignore[reportArgumentType]
    assert len(str(wrong)) < 5 or str(wrong) not in str(error.value)


def test_a_key_that_is_given_twice_is_refused() -> None:
    key = new_key()
    with pytest.raises(InvalidValue, match="the same key twice"):
        Keyring([key, new_key(), key])


def test_a_keyring_does_not_show_its_keys() -> None:
    key = new_key()
    assert key not in repr(Keyring([key]))
    assert repr(Keyring([key])) == f"Keyring({Keyring([key]).key_ids[0]})"
