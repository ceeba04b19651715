"""Groups through admin clients of real libraries: filters of ListGroups, OffsetDelete, expiry of offsets."""

from collections.abc import Callable
from typing import Any

import kafka
import kafka.admin
import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import until
from wire_client import Client

from tierlog.protocol.errors import ErrorCode as E
from tierlog.protocol.messages import list_groups, offset_delete
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = pytest.mark.slow

TIMEOUT_S = 90.0
PARTITIONS = 2


@pytest.fixture
def broker(tierlog_broker_factory: TierlogBrokerFactory) -> TierlogBroker:
    return prepared(tierlog_broker_factory({"group.initial.rebalance.delay.ms": 0}))


def prepared(broker: TierlogBroker) -> TierlogBroker:
    """With the topics `t` and `u`."""
    client = admin(broker)
    for each in client.create_topics([NewTopic(name, PARTITIONS, 1) for name in ("t", "u")]).values():
        each.result(TIMEOUT_S)
    return broker


def admin(broker: TierlogBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def commit(broker: TierlogBroker, group: str, *partitions: TopicPartition) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.commit(offsets=list(partitions), asynchronous=False)
    consumer.close()


def member(broker: TierlogBroker, group: str) -> Consumer:
    """Subscribes to `t` and owns its partitions."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.subscribe(["t"])

    def is_assigned() -> bool:
        consumer.poll(0.05)
        return len(consumer.assignment()) == PARTITIONS

    until(is_assigned, f"group {group} has no assignment")
    return consumer


def offsets(broker: TierlogBroker, group: str) -> dict[tuple[str, int], int]:
    client = admin(broker)
    futures = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = futures[group].result(TIMEOUT_S).topic_partitions
    return {(each.topic, each.partition): each.offset for each in found}


def test_groups_are_listed_by_state_and_type(broker: TierlogBroker) -> None:
    commit(broker, "empty", TopicPartition("t", 0, 1))
    consumer = member(broker, "busy")

    client = admin(broker)

    def listed(**filters: Any) -> dict[str, tuple[Any, Any]]:
        found = client.list_consumer_groups(request_timeout=TIMEOUT_S, **filters).result(TIMEOUT_S)
        assert found.errors == []
        return {each.group_id: (each.state, each.type) for each in found.valid}

    classic, consumers = ConsumerGroupType.CLASSIC, ConsumerGroupType.CONSUMER
    empty, stable = ConsumerGroupState.EMPTY, ConsumerGroupState.STABLE
    everything = {"empty": (empty, classic), "busy": (stable, classic)}
    assert listed() == everything
    assert listed(types={classic}) == everything
    assert listed(types={consumers}) == {}
    assert listed(states={empty}) == {"empty": (empty, classic)}
    assert listed(states={stable}, types={classic}) == {"busy": (stable, classic)}
    assert listed(states={empty, stable}) == everything
    assert listed(states={ConsumerGroupState.DEAD}) == {}
    consumer.close()


def test_filters_of_list_groups_are_read_without_regard_to_case(broker: TierlogBroker) -> None:
    commit(broker, "g", TopicPartition("t", 0, 1))
    client = Client(broker.bootstrap)

    def listed(version: int, **filters: list[str]) -> list[str]:
        response = client.send("ListGroups", version, list_groups.ListGroupsRequest(**filters))
        assert response.error_code == E.NONE
        return [each.group_id for each in response.groups]

    assert listed(5, states_filter=["eMPTY"], types_filter=["CLASSIC"]) == ["g"]
    assert listed(5, states_filter=["nosuch"]) == listed(5, types_filter=["nosuch"]) == []
    assert listed(4, states_filter=["Empty", "nosuch"]) == ["g"]
    assert listed(3) == ["g"]


def test_offsets_are_deleted_of_topics_without_subscribers(broker: TierlogBroker) -> None:
    commit(broker, "g", TopicPartition("t", 0, 1), TopicPartition("u", 0, 2), TopicPartition("u", 1, 3))
    consumer = member(broker, "g")
    client = Client(broker.bootstrap)

    def delete(*partitions: tuple[str, int], group: str = "g") -> Any:
        topics = [
            offset_delete.OffsetDeleteRequestTopic(
                name=name, partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=number)]
            )
            for name, number in partitions
        ]
        response = client.send(
            "OffsetDelete", 0, offset_delete.OffsetDeleteRequest(group_id=group, topics=topics)
        )
        codes = [each.error_code for topic in response.topics for each in topic.partitions]
        return response.error_code or codes

    assert delete(("t", 0), ("u", 0), ("nosuch", 0)) == [
        E.GROUP_SUBSCRIBED_TO_TOPIC,
        E.NONE,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert offsets(broker, "g") == {("t", 0): 1, ("u", 1): 3}
    consumer.close()
    assert delete(("t", 0)) == [E.NONE]
    assert offsets(broker, "g") == {("u", 1): 3}
    assert delete(("t", 0), group="nosuch") == E.GROUP_ID_NOT_FOUND


def test_kafka_python_lists_groups_and_deletes_offsets_and_groups(broker: TierlogBroker) -> None:
    commit(broker, "g", TopicPartition("t", 0, 1), TopicPartition("t", 1, 2))
    client = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    assert [each["group_id"] for each in client.list_groups()] == ["g"]
    client.delete_group_offsets("g", [kafka.TopicPartition("t", 0)])
    assert offsets(broker, "g") == {("t", 1): 2}
    client.delete_groups(["g"])
    assert client.list_groups() == []
    client.close()


def test_group_with_members_is_not_deleted(broker: TierlogBroker) -> None:
    consumer, client = member(broker, "g"), admin(broker)
    with pytest.raises(KafkaException) as raised:
        client.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    assert raised.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    consumer.close()
    client.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    with pytest.raises(KafkaException) as raised:
        client.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    assert raised.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_offsets_of_empty_groups_expire_and_those_in_use_stay(
    tierlog_broker_factory: TierlogBrokerFactory,
) -> None:
    """The shortest retention is a minute."""
    settings = {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 200}
    broker = prepared(tierlog_broker_factory({"group.initial.rebalance.delay.ms": 0, **settings}))
    consumer = member(broker, "busy")
    consumer.commit(offsets=[TopicPartition("t", 0, 5)], asynchronous=False)
    consumer.commit(offsets=[TopicPartition("u", 0, 6)], asynchronous=False)  # not subscribed
    commit(broker, "idle", TopicPartition("t", 0, 5))

    def gone(group: str, partition: tuple[str, int]) -> Callable[[], bool]:
        def is_gone() -> bool:
            consumer.poll(0.05)
            return partition not in offsets(broker, group)

        return is_gone

    until(gone("idle", ("t", 0)), "the offset of an empty group stays", within_s=120)
    until(gone("busy", ("u", 0)), "the offset of a topic without a subscriber stays", within_s=60)
    assert offsets(broker, "busy") == {("t", 0): 5}
    client = admin(broker)
    assert [each.group_id for each in client.list_consumer_groups().result(TIMEOUT_S).valid] == ["busy"]
    consumer.close()
