"""Creation, growth and deletion of topics: every error, and the records after a success."""

import uuid
from typing import Any

import pytest
from loop_steps import LoopSteps

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller import topics
from tierlog.metadata.records import ConfigScope
from tierlog.protocol.errors import ErrorCode as E

World = Any


def test_creates_a_topic_with_its_partitions_and_settings(world: World) -> None:
    world.brokers(1, 2, 3)
    outcome = world.create("t", partitions=4, replication_factor=2, configs=(("retention.ms", "5"),))
    assert (outcome.error, outcome.partitions, outcome.replication_factor) == (E.NONE, 4, 2)
    topic = world.image.topic("t")
    assert topic.topic_id == outcome.topic_id
    assert [len(partition.replicas) for partition in topic.partitions] == [2] * 4
    for partition in topic.partitions:
        assert partition.leader == partition.replicas[0]
        assert partition.in_sync == partition.replicas
    assert dict(world.image.topic_overrides("t")) == {"retention.ms": "5"}


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("", False),
        (".", False),
        ("..", False),
        ("../x", False),
        ("a b", False),
        ("ä", False),
        ("x" * 249, True),
        ("x" * 250, False),
        ("A.b_c-9", True),
        ("...", True),
    ],
)
def test_topic_names_follow_kafkas_rules(world: World, name: str, accepted: bool) -> None:
    world.brokers(1)
    assert world.create(name).error == (E.NONE if accepted else E.INVALID_TOPIC_EXCEPTION)
    assert len(world.image.topics) == accepted


def test_names_that_differ_only_in_dots_and_underscores_collide(world: World) -> None:
    world.brokers(1)
    world.create("a.b")
    refused = world.create("a_b")
    assert (refused.error, "a.b" in refused.message) == (E.INVALID_TOPIC_EXCEPTION, True)
    assert world.create("a-b").error == E.NONE


@pytest.mark.parametrize(
    ("requested", "error"),
    [
        ({"partitions": 0}, E.INVALID_PARTITIONS),
        ({"partitions": -2}, E.INVALID_PARTITIONS),
        ({"partitions": 10_001}, E.INVALID_PARTITIONS),
        ({"replication_factor": 0}, E.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 3}, E.INVALID_REPLICATION_FACTOR),
        ({"configs": (("retention.ms", "soon"),)}, E.INVALID_CONFIG),
        ({"configs": (("retention.ms", None),)}, E.INVALID_CONFIG),
        ({"configs": (("retention.mss", "1"),)}, E.INVALID_CONFIG),
        ({"assignments": ((1, (1,)),)}, E.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, (1,)), (0, (2,)))}, E.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, (1, 1)),)}, E.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, (1,)), (1, (1, 2)))}, E.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, ()),)}, E.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, (9,)),)}, E.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, (1,)),), "partitions": 1}, E.INVALID_REQUEST),
    ],
)
def test_invalid_requests_are_refused(world: World, requested: dict[str, Any], error: E) -> None:
    world.brokers(1, 2)
    configs = world.image.configs
    outcome = world.create("t", **requested)
    assert outcome.error == error
    assert outcome.message
    assert not world.image.topics
    assert world.image.configs == configs


def test_the_message_of_a_bad_setting_names_the_nearest_one(world: World) -> None:
    world.brokers(1)
    assert "'retention.ms'" in world.create("t", configs=(("retention.mss", "1"),)).message


def test_minus_one_means_the_defaults_of_the_command(world: World) -> None:
    world.brokers(1, 2)
    reply = world.do(
        c.CreateTopics(topics=(c.NewTopic(name="t"),), default_partitions=3, default_replication_factor=2)
    )
    assert (reply.topics[0].partitions, reply.topics[0].replication_factor) == (3, 2)


def test_existing_and_repeated_names_are_refused(world: World) -> None:
    world.brokers(1)
    world.create("t")
    again = world.create("t")
    assert (again.error, again.message) == (E.TOPIC_ALREADY_EXISTS, "Topic 't' already exists.")
    twice = c.CreateTopics(topics=(c.NewTopic(name="u"), c.NewTopic(name="u"), c.NewTopic(name="v")))
    assert [topic.error for topic in world.do(twice).topics] == [E.INVALID_REQUEST, E.INVALID_REQUEST, E.NONE]


def test_validate_only_changes_nothing(world: World) -> None:
    world.brokers(1)
    topics = (c.NewTopic(name="t"), c.NewTopic(name="."))
    reply = world.do(c.CreateTopics(topics=topics, validate_only=True))
    assert [topic.error for topic in reply.topics] == [E.NONE, E.INVALID_TOPIC_EXCEPTION]
    assert not world.image.topics


def test_topic_without_a_live_broker_is_refused(world: World) -> None:
    assert world.create("t").error == E.INVALID_REPLICATION_FACTOR
    world.register(1, start_fenced=True)
    assert world.create("t").error == E.INVALID_REPLICATION_FACTOR
    assert world.create("t", assignments=((0, (1,)),)).error == E.INVALID_REPLICA_ASSIGNMENT


def test_topics_beyond_the_size_of_an_entry_are_refused(world: World) -> None:
    world.brokers(1)
    reply = world.do(
        c.CreateTopics(topics=tuple(c.NewTopic(name=f"t{n}", partitions=10_000) for n in range(6)))
    )
    assert [topic.error for topic in reply.topics][-2:] == [E.POLICY_VIOLATION] * 2


def test_given_assignments_are_used(world: World) -> None:
    world.brokers(1, 2, 3)
    assert world.create("t", assignments=((1, (2, 3)), (0, (3, 1)))).error == E.NONE
    assert [partition.replicas for partition in world.image.topic("t").partitions] == [(3, 1), (2, 3)]


def test_placement_spreads_leaders_and_racks(world: World) -> None:
    world.brokers(1, 2, 3, 4, racks={1: "a", 2: "a", 3: "b", 4: "b"})
    world.create("t", partitions=8, replication_factor=2)
    partitions = world.image.topic("t").partitions
    leaders = [partition.leader for partition in partitions]
    assert sorted(leaders) == [1, 1, 2, 2, 3, 3, 4, 4]
    rack = {1: "a", 2: "a", 3: "b", 4: "b"}
    assert all(len({rack[replica] for replica in partition.replicas}) == 2 for partition in partitions)


def test_topics_of_one_partition_are_spread(world: World) -> None:
    world.brokers(1, 2, 3)
    for number in range(6):
        world.create(f"t{number}")
    leaders = [world.image.topic(f"t{number}").partitions[0].leader for number in range(6)]
    assert sorted(leaders) == [1, 1, 2, 2, 3, 3]


def test_partitions_only_grow(world: World) -> None:
    world.brokers(1, 2)
    world.create("t", partitions=2, replication_factor=2)

    def grow(name: str, count: int, assignments: Any = (), **more: Any) -> E:
        requested = c.MorePartitions(name=name, count=count, assignments=assignments)
        return world.do(c.CreatePartitions(topics=(requested,), **more)).topics[0].error

    assert grow("nope", 3) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert grow("t", 2) == E.INVALID_PARTITIONS
    assert grow("t", 1) == E.INVALID_PARTITIONS
    assert grow("t", 20_000) == E.INVALID_PARTITIONS
    assert grow("t", 4, ((1, 2),)) == E.INVALID_REPLICA_ASSIGNMENT
    assert grow("t", 3, ((1,),)) == E.INVALID_REPLICA_ASSIGNMENT
    assert grow("t", 3, validate_only=True) == E.NONE
    assert len(world.image.topic("t").partitions) == 2
    assert grow("t", 3, ((2, 1),)) == E.NONE
    assert grow("t", 5) == E.NONE
    assert [len(partition.replicas) for partition in world.image.topic("t").partitions] == [2] * 5
    assert world.image.topic("t").partitions[2].replicas == (2, 1)


def test_deletes_by_name_and_by_id(world: World) -> None:
    world.brokers(1)
    world.create("a", configs=(("retention.ms", "1"),))
    b = world.create("b").topic_id
    refs = (
        c.TopicRef(name="a"),
        c.TopicRef(topic_id=b),
        c.TopicRef(name="nope"),
        c.TopicRef(topic_id=uuid.UUID(int=9)),
        c.TopicRef(),
    )
    reply = world.do(c.DeleteTopics(topics=refs))
    assert [topic.error for topic in reply.topics] == [
        E.NONE,
        E.NONE,
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.UNKNOWN_TOPIC_ID,
        E.INVALID_REQUEST,
    ]
    assert [topic.name for topic in reply.topics][:2] == ["a", "b"]
    assert not world.image.topics
    assert not world.image.topic_ids
    assert (ConfigScope.TOPIC, "a") not in world.image.configs


def test_recreated_topic_begins_in_the_last_leader_epoch_of_the_deleted_one(world: World) -> None:
    """A client that knows the deleted topic ignores leaders of older epochs."""
    world.brokers(1, 2)
    first = world.create("t", assignments=((0, (1, 2)), (1, (2, 1))))
    assert [one.leader_epoch for one in world.image.topics[first.topic_id].partitions] == [0, 0]
    world.fence(1)
    world.fence(1, fenced=False)
    epochs = [one.leader_epoch for one in world.image.topics[first.topic_id].partitions]
    assert max(epochs) > 0
    world.do(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
    second = world.create("t", partitions=1, replication_factor=1)
    world.do(c.CreatePartitions(topics=(c.MorePartitions(name="t", count=3),)))
    partitions = world.image.topics[second.topic_id].partitions
    assert [one.leader_epoch for one in partitions] == [max(epochs)] * 3


def test_topic_that_is_named_twice_is_not_deleted(world: World) -> None:
    world.brokers(1)
    topic_id = world.create("a").topic_id
    reply = world.do(c.DeleteTopics(topics=(c.TopicRef(name="a"), c.TopicRef(topic_id=topic_id))))
    assert [topic.error for topic in reply.topics] == [E.INVALID_REQUEST] * 2
    assert world.image.topic("a") is not None


def test_topic_that_is_created_again_gets_a_new_id(world: World) -> None:
    world.brokers(1)
    first = world.create("a").topic_id
    world.do(c.DeleteTopics(topics=(c.TopicRef(name="a"),)))
    assert world.create("a").topic_id != first


def test_topics_after_an_oversized_one_are_not_placed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Placing their partitions would take long."""
    monkeypatch.setattr(topics, "MAX_RECORDS_PER_COMMAND", 500)
    world.brokers(1)
    requested = tuple(c.NewTopic(name=f"t{number}", partitions=100) for number in range(50))
    with LoopSteps("metadata/controller") as steps:
        outcomes = world.do(c.CreateTopics(topics=requested)).topics
    assert [one.error for one in outcomes] == [E.NONE] * 4 + [E.POLICY_VIOLATION] * 46
    assert steps.total < 10 * 500
