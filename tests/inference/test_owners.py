"""Owners of text: what only one chat used is named when it goes. And the memory for lost keys."""

import pytest

from inference.kv_cache.block import BlockHash
from inference.kv_cache.owners import Owners
from inference.kv_cache.recent_keys import RecentKeys

A, B, C = BlockHash(b"a"), BlockHash(b"b"), BlockHash(b"c")


def make_owners() -> Owners:
    """One chat uses a and b, the other b and c."""
    owners = Owners()
    for owner, key in [("one", A), ("one", B), ("other", B), ("other", C), ("one", A)]:
        owners.note(owner, key)
    owners.check_integrity()
    return owners


def test_owners_shared_text_has_both():
    owners = make_owners()
    assert (owners.of(A), owners.of(B), owners.of(C)) == ({"one"}, {"one", "other"}, {"other"})
    assert owners.of(BlockHash(b"?")) == set()
    assert owners.keys() == {A, B, C}
    assert len(owners) == 2


def test_owners_forget_names_what_nobody_else_uses():
    owners = make_owners()
    assert owners.forget("one") == [A]
    assert (owners.of(A), owners.of(B)) == (set(), {"other"})
    owners.check_integrity()
    assert owners.forget("one") == []
    assert owners.forget("other") == [C, B]
    assert (len(owners), owners.keys()) == (0, set())
    owners.check_integrity()


def test_owners_drop_leaves_no_chat_without_text():
    owners = make_owners()
    owners.drop(A)
    owners.drop(B)
    owners.drop(B)
    assert len(owners) == 1
    assert owners.forget("one") == []
    assert owners.forget("other") == [C]
    owners.check_integrity()


def lose_key(owners: Owners) -> None:
    del owners._owners_of[A]


def leave_empty_chat(owners: Owners) -> None:
    owners._keys_of["nobody"] = {}


def leave_empty_text(owners: Owners) -> None:
    owners._owners_of[BlockHash(b"?")] = set()


@pytest.mark.parametrize("damage", [lose_key, leave_empty_chat, leave_empty_text])
def test_owners_check_integrity_damage_is_reported(damage):
    owners = make_owners()
    damage(owners)
    with pytest.raises(RuntimeError, match="uses are noted by chat and"):
        owners.check_integrity()


def test_recent_keys_forgets_the_oldest():
    recent = RecentKeys(2)
    for key in (A, B, A, C):
        recent.note(key)
    assert [key in recent for key in (A, B, C)] == [True, False, True]
    recent.discard(A)
    recent.discard(A)
    assert A not in recent
    recent.clear()
    assert C not in recent
