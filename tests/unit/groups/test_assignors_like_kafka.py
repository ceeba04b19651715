"""The assignors compared with those of Kafka 4.3.1, which were called with the same groups.

golden/groups/assignments-kafka-4.3.1.json has 60 groups, and the same ones after members came or left or a
topic grew. Range assigns the same partitions. Uniform is as balanced and moves as few, but may choose other
members and partitions, because Kafka's choice depends on the order of Java's hash maps.
"""

import json
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from tierlog.broker.groups.core.consumer.assignors import ASSIGNORS, MemberSpec, TopicSpec

PATH = Path(__file__).parents[2] / "golden" / "groups" / "assignments-kafka-4.3.1.json"
CASES = json.loads(PATH.read_text())


def partitions(stored: dict[str, list[int]]) -> dict[UUID, frozenset[int]]:
    return {UUID(int=int(topic)): frozenset(numbers) for topic, numbers in stored.items()}


def members_of(case) -> dict[str, MemberSpec]:
    return {
        member_id: MemberSpec(
            instance_id=member["instance"],
            topic_ids=frozenset(UUID(int=int(topic)) for topic in member["topics"]),
            current=partitions(member["current"]),
        )
        for member_id, member in case["members"].items()
    }


def topics_of(case) -> dict[UUID, TopicSpec]:
    return {
        UUID(int=int(topic)): TopicSpec(name=topic, partitions=count)
        for topic, count in case["topics"].items()
    }


def assignments(assignor: str):
    """(members, our assignment, Kafka's) of each group."""
    for case in CASES:
        if case["assignor"] == assignor:
            members = members_of(case)
            kafkas = {member_id: partitions(each) for member_id, each in case["expected"].items()}
            yield members, ASSIGNORS[assignor].assign(members, topics_of(case)), kafkas


def loads(assignment) -> list[int]:
    return sorted(sum(map(len, each.values())) for each in assignment.values())


def moved(members, assignment) -> int:
    """Partitions that members have and lose."""
    return sum(
        len(numbers - assignment[member_id].get(topic_id, frozenset()))
        for member_id, member in members.items()
        for topic_id, numbers in member.current.items()
    )


def has_equal_subscriptions(members) -> bool:
    return len({each.topic_ids for each in members.values()}) == 1


def test_range_assigns_the_same_partitions():
    compared = 0
    for _, ours, kafkas in assignments("range"):
        assert ours == kafkas
        compared += 1
    assert compared == 60


def test_uniform_is_as_balanced_and_moves_as_few():
    compared = Counter()
    for members, ours, kafkas in assignments("uniform"):
        equal = has_equal_subscriptions(members)
        compared[equal] += 1
        if equal:
            assert loads(ours) == loads(kafkas)
            assert moved(members, ours) == moved(members, kafkas)
        else:
            assert sum(loads(ours)) == sum(loads(kafkas))
            assert loads(ours)[-1] <= loads(kafkas)[-1] + 1
    assert compared == {True: 39, False: 21}


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_kafkas_balanced_assignment_is_kept(assignor):
    """A group that moves from Kafka to tierlog keeps its partitions."""
    for case in CASES:
        if case["assignor"] == assignor:
            kafkas = {member_id: partitions(each) for member_id, each in case["expected"].items()}
            members = {
                member_id: MemberSpec(
                    instance_id=each.instance_id, topic_ids=each.topic_ids, current=kafkas[member_id]
                )
                for member_id, each in members_of(case).items()
            }
            assert ASSIGNORS[assignor].assign(members, topics_of(case)) == kafkas
