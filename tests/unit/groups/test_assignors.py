"""Assignors of consumer groups: what members get, keep and give up."""

from uuid import UUID

import pytest

from tierlog.broker.groups.core.consumer.assignors import ASSIGNORS, MemberSpec, TopicSpec

UNIFORM, RANGE = ASSIGNORS["uniform"], ASSIGNORS["range"]
A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)


def member(*topic_ids: UUID, current=None, **more) -> MemberSpec:
    kept = {topic_id: frozenset(numbers) for topic_id, numbers in (current or {}).items()}
    return MemberSpec(topic_ids=frozenset(topic_ids), current=kept, **more)


def topics(**counts: int) -> dict[UUID, TopicSpec]:
    ids = {"a": A, "b": B, "c": C}
    return {ids[name]: TopicSpec(name=name, partitions=count) for name, count in counts.items()}


def counts(assignment) -> dict[str, int]:
    return {member_id: sum(map(len, each.values())) for member_id, each in assignment.items()}


def test_uniform_is_the_default():
    assert list(ASSIGNORS) == ["uniform", "range"]
    assert [each.name for each in ASSIGNORS.values()] == ["uniform", "range"]


@pytest.mark.parametrize("assignor", [UNIFORM, RANGE])
def test_group_without_members_or_topics(assignor):
    assert assignor.assign({}, topics(a=3)) == {}
    assert assignor.assign({"m": member()}, topics(a=3)) == {"m": {}}
    assert assignor.assign({"m": member(A)}, {}) == {"m": {}}
    assert assignor.assign({"m": member(A)}, topics(a=0)) == {"m": {}}


@pytest.mark.parametrize("assignor", [UNIFORM, RANGE])
def test_members_beyond_the_partitions_get_nothing(assignor):
    assigned = assignor.assign({each: member(A) for each in "vwxyz"}, topics(a=3))
    assert sorted(counts(assigned).values()) == [0, 0, 1, 1, 1]
    assert all(each == {} or each[A] for each in assigned.values())


def test_range_gives_equal_partitions_of_topics_with_equal_subscribers():
    members = {"x": member(A, B), "y": member(A, B), "z": member(A, B, C)}
    assigned = RANGE.assign(members, topics(a=5, b=5, c=2))
    assert assigned == {
        "x": {A: {0, 1}, B: {0, 1}},
        "y": {A: {2, 3}, B: {2, 3}},
        "z": {A: {4}, B: {4}, C: {0, 1}},
    }


def test_range_serves_static_members_first_and_by_instance_id():
    members = {"1": member(A), "2": member(A, instance_id="b"), "3": member(A, instance_id="a")}
    assert RANGE.assign(members, topics(a=3)) == {"3": {A: {0}}, "2": {A: {1}}, "1": {A: {2}}}


@pytest.mark.parametrize("assignor", [UNIFORM, RANGE])
def test_static_member_that_returns_with_another_id_gets_the_same(assignor):
    before = assignor.assign({"m": member(A, instance_id="a"), "x": member(A)}, topics(a=4))
    after = assignor.assign(
        {"z": member(A, instance_id="a", current=before["m"]), "x": member(A, current=before["x"])},
        topics(a=4),
    )
    assert after == {"z": before["m"], "x": before["x"]}


def test_new_member_takes_only_what_it_needs():
    members = {"x": member(A, current={A: {0, 1, 2}}), "y": member(A, current={A: {3, 4, 5}}), "z": member(A)}
    assert UNIFORM.assign(members, topics(a=6)) == {"x": {A: {0, 1}}, "y": {A: {3, 4}}, "z": {A: {2, 5}}}


def test_members_keep_all_when_one_leaves():
    members = {"x": member(A, current={A: {0, 3}}), "y": member(A, current={A: {5}})}
    assert UNIFORM.assign(members, topics(a=6)) == {"x": {A: {0, 3, 1}}, "y": {A: {5, 2, 4}}}


def test_member_with_one_more_than_the_others_keeps_it():
    members = {"x": member(A, current={A: {0}}), "y": member(A, current={A: {1, 2}})}
    assert UNIFORM.assign(members, topics(a=3)) == {"x": {A: {0}}, "y": {A: {1, 2}}}


def test_unsubscribed_deleted_and_shared_partitions_are_not_kept():
    members = {
        "x": member(A, current={A: {0, 9}, B: {0}, C: {0}}),
        "y": member(A, B, current={A: {0, 1}}),
    }
    assert UNIFORM.assign(members, topics(a=3, b=1)) == {"x": {A: {0, 2}}, "y": {A: {1}, B: {0}}}


def test_topic_with_one_subscriber_leaves_the_others_to_the_rest():
    assigned = UNIFORM.assign({"x": member(A, B), "y": member(A)}, topics(a=4, b=2))
    assert counts(assigned) == {"x": 3, "y": 3}
    assert assigned["x"][B] == {0, 1}


def test_partition_moves_over_a_member_in_between():
    """x can give only to y, which gives to z: each move alone makes the group more balanced."""
    members = {
        "x": member(A, current={A: set(range(9))}),
        "y": member(A, B, current={B: {0, 1, 2}}),
        "z": member(B),
    }
    assert counts(UNIFORM.assign(members, topics(a=9, b=3))) == {"x": 5, "y": 4, "z": 3}


def racks(partition: int) -> frozenset[str]:
    return frozenset({"even" if partition % 2 == 0 else "odd"})


def test_unassigned_partitions_go_to_members_in_their_rack():
    spec = {A: TopicSpec(name="a", partitions=6, racks=racks)}
    members = {"x": member(A, rack_id="odd"), "y": member(A, rack_id="even"), "z": member(A)}
    assigned = UNIFORM.assign(members, spec)
    assert counts(assigned) == {"x": 2, "y": 2, "z": 2}
    assert assigned["x"][A] <= {1, 3, 5}
    assert assigned["y"][A] <= {0, 2, 4}


def test_partitions_in_another_rack_are_given_up_first():
    spec = {A: TopicSpec(name="a", partitions=6, racks=racks)}
    members = {
        "x": member(A, rack_id="odd", current={A: {0, 1, 3, 4, 5}}),
        "y": member(A, rack_id="even", current={A: {2}}),
    }
    assert UNIFORM.assign(members, spec) == {"x": {A: {1, 3, 5}}, "y": {A: {0, 2, 4}}}


def test_rack_moves_no_partition_by_itself():
    spec = {A: TopicSpec(name="a", partitions=4, racks=racks)}
    current = {"x": {A: frozenset({0, 2})}, "y": {A: frozenset({1, 3})}}
    members = {
        "x": member(A, rack_id="odd", current=current["x"]),
        "y": member(A, rack_id="even", current=current["y"]),
    }
    assert UNIFORM.assign(members, spec) == current


def test_group_of_1000_members_and_10000_partitions():
    """The size for which assignors are made."""
    spec = topics(a=10_000)
    members = {f"m-{number}": member(A) for number in range(1000)}
    before = UNIFORM.assign(members, spec)
    assert set(counts(before).values()) == {10}
    members = {member_id: member(A, current=before[member_id]) for member_id in members}
    after = UNIFORM.assign(members | {"new": member(A)}, spec)
    assert sum(len(before[each][A] - after[each][A]) for each in before) == 9
    assert counts(after)["new"] == 9


def test_member_of_hundreds_of_topics_gives_to_the_others():
    """Each topic has other subscribers: there are as many pools as topics."""
    ids = [UUID(int=number) for number in range(1, 301)]
    spec = {topic_id: TopicSpec(name=str(topic_id), partitions=4) for topic_id in ids}
    members = {str(number): member(topic_id) for number, topic_id in enumerate(ids)}
    members["all"] = member(*ids, current={topic_id: range(4) for topic_id in ids})
    assert set(counts(UNIFORM.assign(members, spec)).values()) == {3, 4}
