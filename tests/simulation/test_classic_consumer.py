"""Assignments by the leader of a simulated classic group."""

import random

from simulator.classic_consumer import Owned, assign


def test_shares_differ_by_one_at_most_and_cover_all() -> None:
    shares = assign({"a": set(), "b": set(), "c": set()}, 7)
    assert sorted(map(len, shares.values())) == [2, 2, 3]
    assert set().union(*shares.values()) == set(range(7))


def test_members_keep_what_they_own() -> None:
    assert assign({"a": {0, 2}, "b": {1}}, 3) == {"a": {0, 2}, "b": {1}}


def test_partition_moves_only_after_its_owner_has_given_it_up() -> None:
    assert assign({"a": {0, 1, 2}, "b": set()}, 3) == {"a": {0, 1}, "b": set()}
    assert assign({"a": {0, 1}, "b": set()}, 3) == {"a": {0, 1}, "b": {2}}


def test_partition_that_two_members_name_is_given_to_neither() -> None:
    assert assign({"a": {0, 1}, "b": {1}}, 2) == {"a": {0}, "b": set()}


def test_rounds_end_with_balanced_shares() -> None:
    rng = random.Random(1)
    for _ in range(200):
        members = [f"m{number}" for number in range(rng.randint(1, 4))]
        owned: Owned = {member: {each for each in range(6) if rng.random() < 0.3} for member in members}
        for _ in range(3):
            owned = assign(owned, 6)
        assert sorted(each for share in owned.values() for each in share) == list(range(6))
        assert max(map(len, owned.values())) - min(map(len, owned.values())) <= 1
