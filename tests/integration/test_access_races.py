"""Permissions that are revoked while a member of a group uses them, with two members that log in as ada and
eve. The next request of ada is refused, and eve continues."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import GroupAuthorizationFailedError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from scram_broker import MECHANISM, ScramBroker
from waiting import until

from tierlog.config.authorization import STANDARD_AUTHORIZER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
PARTITIONS = 4
SETTINGS: dict[str, object] = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
}
PROTOCOLS = ("classic", "consumer")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScramBroker]:
    broker = ScramBroker(tmp_path_factory.mktemp("races"), SETTINGS, "ada", "eve")
    with broker.broker:
        yield broker


class Race:
    """A topic and a group, which both users may read at first."""

    def __init__(self, broker: ScramBroker, name: str) -> None:
        self.topic = self.group = name
        self._broker = broker
        self._admin = broker.admin()
        self._sent = 0
        topic = NewTopic(name, PARTITIONS, 1)
        self._admin.create_topics([topic])[name].result(60)
        for user in ("ada", "eve"):
            self.allow(user, ResourceType.TOPIC, AclOperation.READ)
            self.allow(user, ResourceType.GROUP, AclOperation.READ)
        self._producer = Producer(broker.login("admin"))

    def allow(self, user: str, resource: ResourceType, operation: AclOperation) -> None:
        acl = AclBinding(
            resource, self.topic, ResourcePatternType.LITERAL, f"User:{user}", "*",
            operation, AclPermissionType.ALLOW,
        )  # fmt: skip
        self._admin.create_acls([acl])[acl].result(60)

    def revoke(self, user: str, resource: ResourceType, operation: AclOperation) -> None:
        which = AclBindingFilter(
            resource, self.topic, ResourcePatternType.LITERAL, f"User:{user}", "*",
            operation, AclPermissionType.ALLOW,
        )  # fmt: skip
        assert len(self._admin.delete_acls([which])[which].result(60)) == 1

    def produce(self) -> None:
        """A record for each partition."""
        for partition in range(PARTITIONS):
            self._producer.produce(self.topic, str(self._sent), partition=partition)
            self._sent += 1
        assert self._producer.flush(60) == 0

    @property
    def sent(self) -> set[str]:
        return {str(number) for number in range(self._sent)}


class Reader:
    """A consumer of confluent-kafka."""

    def __init__(self, race: Race, broker: ScramBroker, user: str, protocol: str) -> None:
        own = {} if protocol == "consumer" else {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
        self.consumer = Consumer(
            {
                **broker.login(user),
                "group.id": race.group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 500,
                **own,
            }
        )
        self.consumer.subscribe([race.topic])
        self.values: set[str] = set()
        self.errors: set[int] = set()

    def poll(self) -> "Reader":
        try:
            records = self.consumer.consume(100, 0.1)
        except KafkaException as failure:
            self._on_error(failure.args[0])
            return self
        for record in records:
            if (error := record.error()) is not None:
                self._on_error(error)
            else:
                self.values.add(record.value().decode())
        return self

    def _on_error(self, error: KafkaError) -> None:
        """With the consumer protocol, librdkafka reports a refused heartbeat as a fatal error."""
        refused = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED).str()
        is_refused = error.code() == KafkaError._FATAL and refused in error.str()
        self.errors.add(KafkaError.GROUP_AUTHORIZATION_FAILED if is_refused else error.code())

    @property
    def partitions(self) -> int:
        return len(self.consumer.assignment())


@pytest.fixture
def race(request: pytest.FixtureRequest, broker: ScramBroker) -> Race:
    return Race(broker, "".join(letter for letter in request.node.name if letter.isalnum()))


@pytest.fixture
def pair(race: Race, broker: ScramBroker, protocol: str) -> Iterator[tuple[Reader, Reader]]:
    """Ada and eve, with half of the partitions each."""
    ada, eve = (Reader(race, broker, user, protocol) for user in ("ada", "eve"))
    until(lambda: (ada.poll().partitions, eve.poll().partitions) == (2, 2), "both have partitions")
    yield ada, eve
    ada.consumer.close()
    eve.consumer.close()


def seen_by(*readers: Reader) -> Callable[[], set[str]]:
    return lambda: set().union(*(reader.poll().values for reader in readers))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_member_without_read_on_its_group_is_replaced(race: Race, pair: tuple[Reader, Reader]) -> None:
    """Nothing of the member is accepted any longer, not even that it leaves: its session ends."""
    ada, eve = pair
    race.produce()
    until(lambda: seen_by(ada, eve)() == race.sent, "both read")
    race.revoke("ada", ResourceType.GROUP, AclOperation.READ)
    until(lambda: KafkaError.GROUP_AUTHORIZATION_FAILED in ada.poll().errors, "ada learns it")
    until(lambda: eve.poll().partitions == PARTITIONS, "eve has all partitions")
    assert eve.errors <= {KafkaError._PARTITION_EOF}
    race.produce()
    before = eve.values.copy()
    until(lambda: len(eve.poll().values - before) >= PARTITIONS, "eve reads all that is new")
    with pytest.raises(KafkaException):
        ada.consumer.commit(offsets=[TopicPartition(race.topic, 0, 0)], asynchronous=False)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_member_without_read_on_its_topic_continues_when_it_is_back(
    race: Race, pair: tuple[Reader, Reader]
) -> None:
    """As in Kafka: the group keeps the partitions for a member that may not fetch them."""
    ada, eve = pair
    race.allow("ada", ResourceType.TOPIC, AclOperation.DESCRIBE)
    race.revoke("ada", ResourceType.TOPIC, AclOperation.READ)
    race.produce()
    until(lambda: KafkaError.TOPIC_AUTHORIZATION_FAILED in ada.poll().errors, "ada learns it")
    until(lambda: len(eve.poll().values) == 2, "eve reads her partitions")
    assert (ada.poll().partitions, eve.poll().partitions) == (2, 2)
    assert not ada.values and not eve.errors
    race.allow("ada", ResourceType.TOPIC, AclOperation.READ)
    until(lambda: seen_by(ada, eve)() == race.sent, "ada reads what she missed")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_member_that_may_not_describe_its_topic_gets_its_error(
    race: Race, pair: tuple[Reader, Reader]
) -> None:
    ada, eve = pair
    race.revoke("ada", ResourceType.TOPIC, AclOperation.READ)
    race.produce()
    expected = KafkaError.TOPIC_AUTHORIZATION_FAILED
    until(lambda: expected in ada.poll().errors and len(eve.poll().values) >= 2, "ada learns it")
    assert not eve.errors and not ada.values
    race.allow("ada", ResourceType.TOPIC, AclOperation.READ)
    until(lambda: seen_by(ada, eve)() == race.sent, "all is read in the end")


async def test_aiokafka_leaves_the_group_that_it_may_not_read(race: Race, broker: ScramBroker) -> None:
    def consumer(user: str) -> Any:
        return AIOKafkaConsumer(
            race.topic,
            bootstrap_servers=broker.broker.bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=MECHANISM,
            sasl_plain_username=user,
            sasl_plain_password=broker.passwords[user],
            group_id=race.group,
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
            auto_offset_reset="earliest",
        )

    async with asyncio.timeout(60):
        async with consumer("ada") as ada, consumer("eve") as eve:
            while (len(ada.assignment()), len(eve.assignment())) != (2, 2):
                await asyncio.gather(*(one.getmany(timeout_ms=100) for one in (ada, eve)))
            race.revoke("ada", ResourceType.GROUP, AclOperation.READ)
            with pytest.raises(GroupAuthorizationFailedError):
                while True:
                    await asyncio.gather(ada.getmany(timeout_ms=100), eve.getmany(timeout_ms=100))
            while len(eve.assignment()) < PARTITIONS:
                await eve.getmany(timeout_ms=100)
