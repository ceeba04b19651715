"""Consumer groups (KIP-848) of a real client: members join, leave, die and restart, and so do brokers."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from consumer_member import TIMEOUT_S, ConsumerMember, closing, poll_until, produce_values

from tierlog.broker.coordinators.shards import partition_of
from tierlog.cli.local_cluster import LocalCluster
from tierlog.config.topic import OFFSETS_TOPIC
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

TOPIC, PARTITIONS = "flights", 6
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.assignment.interval.ms": 0,
}
SHORT_SESSION = {"group.consumer.min.session.timeout.ms": 2000, "group.consumer.session.timeout.ms": 2000}

LIBRDKAFKA = """
from confluent_kafka import Consumer
def say(what):
    return lambda _, partitions: print(what, len(partitions), flush=True)
consumer = Consumer({**SETTINGS, "group.id": "g", "partition.assignment.strategy": "cooperative-sticky"})
consumer.subscribe([TOPIC], on_assign=say("got"), on_revoke=say("gave up"), on_lost=say("lost"))
while True:
    consumer.poll(0.1)
"""
KAFKA_PYTHON = """
from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
class Listener(ConsumerRebalanceListener):
    def on_partitions_assigned(self, partitions):
        print("got", len(partitions), flush=True)
    def on_partitions_revoked(self, partitions):
        print("gave up", len(partitions), flush=True)
    def on_partitions_lost(self, partitions):
        print("lost", len(partitions), flush=True)
settings = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
consumer = KafkaConsumer(**settings, group_id="g", partition_assignment_strategy=[CooperativeStickyAssignor])
consumer.subscribe([TOPIC], listener=Listener())
while True:
    consumer.poll(100)
"""  # it still names the partitions that it has lost when it joins again
"""Members of the classic protocol, which print what they get and lose."""

pytestmark = pytest.mark.slow


@pytest.fixture
def broker(tierlog_broker_factory: TierlogBrokerFactory) -> TierlogBroker:
    return started(tierlog_broker_factory)


def started(factory: TierlogBrokerFactory, **more: object) -> TierlogBroker:
    running = factory({**SETTINGS, **more})
    create(running.bootstrap, TOPIC)
    return running


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def create(bootstrap: str, topic: str, copies: int = 1) -> None:
    client = admin(bootstrap)
    client.create_topics([NewTopic(topic, PARTITIONS, copies)])[topic].result(TIMEOUT_S)


def is_shared(*members: ConsumerMember) -> bool:
    """Whether each partition has one owner, and all members have as many."""
    owned = [each for member in members for each in member.assigned]
    even = {len(member.assigned) for member in members} == {PARTITIONS // len(members)}
    return even and len(owned) == len(set(owned)) == PARTITIONS


def test_three_members_share_partitions_and_take_over(broker: TierlogBroker) -> None:
    first, second, third = (ConsumerMember(broker.bootstrap, TOPIC) for _ in range(3))
    with closing(first):
        with closing(second, third):
            poll_until(lambda: is_shared(first, second, third), first, second, third)
            produce_values(broker.bootstrap, TOPIC, range(60), PARTITIONS)
            read = lambda: first.values + second.values + third.values  # noqa: E731
            poll_until(lambda: len(read()) == 60, first, second, third)
            assert sorted(read()) == list(range(60))
        poll_until(lambda: len(first.assigned) == PARTITIONS, first)


def test_member_keeps_what_it_need_not_give_up(broker: TierlogBroker) -> None:
    """Only the moved partitions are revoked: the others are read without a pause."""
    first = ConsumerMember(broker.bootstrap, TOPIC)
    with closing(first):
        poll_until(lambda: len(first.assigned) == PARTITIONS, first)
        before = set(first.assigned)
        second = ConsumerMember(broker.bootstrap, TOPIC)
        with closing(second):
            poll_until(lambda: is_shared(first, second), first, second)
            assert (first.revoked, before - first.assigned) == (1, second.assigned)


def test_killed_member_is_replaced_after_its_session(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = started(tierlog_broker_factory, **SHORT_SESSION)
    script = f"""
from confluent_kafka import Consumer
settings = {{"bootstrap.servers": {broker.bootstrap!r}, "group.protocol": "consumer"}}
consumer = Consumer({{**settings, "group.id": "g"}})
consumer.subscribe([{TOPIC!r}])
while True:
    consumer.poll(0.1)
"""
    survivor = ConsumerMember(broker.bootstrap, TOPIC)
    with closing(survivor):
        poll_until(lambda: len(survivor.assigned) == PARTITIONS, survivor)
        with subprocess.Popen([sys.executable, "-c", script]) as victim:
            try:
                poll_until(lambda: len(survivor.assigned) == PARTITIONS // 2, survivor)
            finally:
                victim.kill()
        poll_until(lambda: len(survivor.assigned) == PARTITIONS, survivor)


@pytest.mark.parametrize("program", [LIBRDKAFKA, KAFKA_PYTHON], ids=["librdkafka", "kafka-python"])
def test_paused_classic_member_loses_its_partitions_and_joins_again(
    program: str, tmp_path: Path, tierlog_broker_factory: TierlogBrokerFactory
) -> None:
    broker = started(tierlog_broker_factory, **{"group.min.session.timeout.ms": 500})
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "session.timeout.ms": 2000,
        "heartbeat.interval.ms": 200,
    }
    script, said = f"SETTINGS, TOPIC = {settings!r}, {TOPIC!r}\n{program}", tmp_path / "said"
    other = ConsumerMember(broker.bootstrap, TOPIC)
    half = PARTITIONS // 2
    with (
        said.open("w") as output,
        closing(other),
        subprocess.Popen([sys.executable, "-c", script], stdout=output) as member,
    ):
        try:
            poll_until(lambda: len(other.assigned) == half and f"got {half}" in said.read_text(), other)
            member.send_signal(signal.SIGSTOP)
            poll_until(lambda: len(other.assigned) == PARTITIONS, other)
            member.send_signal(signal.SIGCONT)
            lost = f"lost {half}"
            poll_until(lambda: f"got {half}" in said.read_text().partition(lost)[2], other)
        finally:
            member.kill()


def test_static_member_restarts_without_a_rebalance(broker: TierlogBroker) -> None:
    watcher = ConsumerMember(broker.bootstrap, TOPIC, **{"group.instance.id": "watcher"})
    mover = ConsumerMember(broker.bootstrap, TOPIC, **{"group.instance.id": "mover"})
    with closing(watcher):
        with closing(mover):
            poll_until(lambda: is_shared(watcher, mover), watcher, mover)
            rebalances, partitions = watcher.rebalances, set(mover.assigned)
        again = ConsumerMember(broker.bootstrap, TOPIC, **{"group.instance.id": "mover"})
        with closing(again):
            poll_until(lambda: is_shared(watcher, again), watcher, again)
            assert again.assigned == partitions
            produce_values(broker.bootstrap, TOPIC, range(20), PARTITIONS)
            poll_until(lambda: len(watcher.values) + len(again.values) == 20, watcher, again)
            assert watcher.rebalances == rebalances


def test_group_changes_its_protocol_while_its_members_read(broker: TierlogBroker) -> None:
    """A rolling restart from the classic protocol to the consumer protocol, and back."""
    members = [member_of(broker, "classic") for _ in range(2)]
    values: set[int] = set()
    for protocol in ("consumer", "classic"):
        for index in range(2):
            poll_until(lambda: is_shared(*members), *members)
            produce_values(broker.bootstrap, TOPIC, range(len(values), len(values) + 12), PARTITIONS)
            expected = values | set(range(len(values), len(values) + 12))
            poll_until(lambda: expected <= read_by(members) | values, *members)  # noqa: B023
            values = expected
            members[index].consumer.close()
            members[index] = member_of(broker, protocol)
        poll_until(lambda: is_shared(*members), *members)
        client = admin(broker.bootstrap)
        described = client.describe_consumer_groups(["g"])["g"].result(TIMEOUT_S)
        assert described.type.name == protocol.upper()
    for member in members:
        member.consumer.close()


def member_of(broker: TierlogBroker, protocol: str) -> ConsumerMember:
    """A member that commits when it closes."""
    return ConsumerMember(broker.bootstrap, TOPIC, **{"group.protocol": protocol, "enable.auto.commit": True})


def read_by(members: list[ConsumerMember]) -> set[int]:
    return {value for member in members for value in member.values}


def test_regular_expression_follows_topics_as_they_are_created(broker: TierlogBroker) -> None:
    create(broker.bootstrap, "rides-1")
    member = ConsumerMember(broker.bootstrap, "^rides-.*")
    with closing(member):
        poll_until(lambda: {topic for topic, _ in member.assigned} == {"rides-1"}, member)
        create(broker.bootstrap, "rides-2")
        poll_until(lambda: {topic for topic, _ in member.assigned} == {"rides-1", "rides-2"}, member)


def test_new_partitions_are_assigned(broker: TierlogBroker) -> None:
    member = ConsumerMember(broker.bootstrap, TOPIC)
    with closing(member):
        poll_until(lambda: len(member.assigned) == PARTITIONS, member)
        client = admin(broker.bootstrap)
        client.create_partitions([NewPartitions(TOPIC, PARTITIONS + 2)])[TOPIC].result(TIMEOUT_S)
        poll_until(lambda: len(member.assigned) == PARTITIONS + 2, member)


def test_group_continues_after_a_broker_kill(broker: TierlogBroker) -> None:
    produce_values(broker.bootstrap, TOPIC, range(60), PARTITIONS)
    member = ConsumerMember(broker.bootstrap, TOPIC)
    with closing(member):
        poll_until(lambda: len(member.values) == 60, member)
        member.consumer.commit(asynchronous=False)
        before = member.rebalances
        broker.kill()
        broker.start()
        produce_values(broker.bootstrap, TOPIC, range(60, 120), PARTITIONS)
        poll_until(lambda: len(member.values) == 120, member)
        assert sorted(member.values) == list(range(120))
        assert member.rebalances == before
        member.consumer.commit(asynchronous=False)
    fresh = ConsumerMember(broker.bootstrap, TOPIC)
    with closing(fresh):
        poll_until(lambda: len(fresh.assigned) == PARTITIONS, fresh)
        wanted = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        found = fresh.consumer.committed(wanted, TIMEOUT_S)
        assert [each.offset for each in found] == [20] * PARTITIONS


def test_consumer_groups_are_listed_described_and_deleted(broker: TierlogBroker) -> None:
    produce_values(broker.bootstrap, TOPIC, range(12), PARTITIONS)
    client = admin(broker.bootstrap)
    member = ConsumerMember(broker.bootstrap, TOPIC)
    with closing(member):
        poll_until(lambda: len(member.values) == 12, member)
        member.consumer.commit(asynchronous=False)
        listed = client.list_consumer_groups().result(TIMEOUT_S)
        assert [(each.group_id, each.type.name, each.state.name) for each in listed.valid] == [
            ("g", "CONSUMER", "STABLE")
        ]
        described = client.describe_consumer_groups(["g"])["g"].result(TIMEOUT_S)
        assert (described.partition_assignor, described.type.name) == ("uniform", "CONSUMER")
        assert len(described.members[0].assignment.topic_partitions) == PARTITIONS
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            client.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    moved = ConsumerGroupTopicPartitions("g", [TopicPartition(TOPIC, 1, 1)])
    client.alter_consumer_group_offsets([moved])["g"].result(TIMEOUT_S)
    client.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    assert client.list_consumer_groups().result(TIMEOUT_S).valid == []


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, settings=SETTINGS) as running:
        create(running.bootstrap, TOPIC, copies=3)
        yield running


def test_group_outlives_its_coordinator(cluster: LocalCluster) -> None:
    """Both members keep their partitions, and no record is lost or read twice after a commit."""
    first, second = (ConsumerMember(cluster.bootstrap, TOPIC) for _ in range(2))
    with closing(first, second):
        poll_until(lambda: is_shared(first, second), first, second)
        produce_values(cluster.bootstrap, TOPIC, range(60), PARTITIONS)
        poll_until(lambda: len(first.values) + len(second.values) == 60, first, second)
        for member in (first, second):
            member.consumer.commit(asynchronous=False)
        owned = set(first.assigned), set(second.assigned)
        client = admin(cluster.bootstrap)
        topics = client.list_topics(OFFSETS_TOPIC, timeout=TIMEOUT_S).topics
        cluster.nodes[topics[OFFSETS_TOPIC].partitions[partition_of("g", 50)].leader].kill()
        produce_values(cluster.bootstrap, TOPIC, range(60, 120), PARTITIONS)
        poll_until(lambda: len(first.values) + len(second.values) >= 120, first, second)
        assert set(first.values + second.values) == set(range(120))
        assert (first.assigned, second.assigned) == owned
        for member in (first, second):
            member.consumer.commit(asynchronous=False)
