"""Compaction in a broker process, observed by real clients, with kills during compaction."""

import random
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import some_moment, until

from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KEYS = 200
ROUNDS = 3
CLEANER = {
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.segment.delete.delay.ms": "0",
    "log.retention.check.interval.ms": "500",
}


def create(broker: TierlogBroker, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    named = {name.replace("_", "."): value for name, value in config.items()}
    for made in admin.create_topics([NewTopic(topic, 1, 1, config=named)]).values():
        made.result(60)


def produce(broker: TierlogBroker, topic: str, values: list[tuple[str, str | None]]) -> None:
    """Produce in small batches, since a segment holds at least one batch."""
    config = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "log_level": 0}
    producer = Producer({**config, "batch.num.messages": 100})
    for key, value in values:
        producer.produce(topic, key=key, value=value)
        producer.poll(0)
    assert producer.flush(60) == 0


def read(broker: TierlogBroker, topic: str) -> list[tuple[int, str, str | None]]:
    """(offset, key, value) of every record that a consumer reads from start to end."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "check", "log_level": 0})
    partition = TopicPartition(topic, 0, 0)
    end = consumer.get_watermark_offsets(partition, 30)[1]
    consumer.assign([partition])
    found: list[tuple[int, str, str | None]] = []
    while consumer.position([partition])[0].offset < end:
        for message in consumer.consume(1000, 0.1):
            assert message.error() is None, message.error()
            value = message.value()
            found.append((message.offset(), decoded(message.key()), value and decoded(value)))
    consumer.close()
    return found


def decoded(value: bytes) -> str:
    return value.decode(errors="replace")


def names(directory: Path, ending: str) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.endswith(ending)]


def test_kill_during_compaction_loses_no_last_value(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    settings = {**CLEANER, "log.cleaner.io.max.bytes.per.second": "100000"}
    broker = tierlog_broker_factory(settings)
    rng = random.Random(7)
    create(broker, "compacted", cleanup_policy="compact", segment_bytes="50000")
    directory = next(Path(broker.data_dir).rglob("compacted-0"))
    model: dict[str, str | None] = {}
    for number in range(ROUNDS):
        values: list[tuple[str, str | None]] = [
            (f"key {rng.randrange(KEYS)}", f"{number} {n} {'x' * rng.randrange(80)}") for n in range(4000)
        ]
        values.append((f"key {number}", None))
        produce(broker, "compacted", values)
        model.update(values)
        until(lambda: bool(names(directory, ".cleaned") + names(directory, ".swap")), "nothing is compacted")
        some_moment(rng.random() * 0.5)
        broker.kill()
        broker.restart()
        stored = read(broker, "compacted")
        offsets = [offset for offset, _, _ in stored]
        assert offsets == sorted(set(offsets)), "served twice or out of order"
        last = {key: value for _, key, value in stored}
        assert {key: value for key, value in last.items() if value is not None} == {
            key: value for key, value in model.items() if value is not None
        }
    produce(broker, "compacted", [("key 0", "x" * 60_000)])  # rolls the remaining records
    model["key 0"] = "x" * 60_000
    until(lambda: len(read(broker, "compacted")) < 2 * KEYS, "it never became small")
    assert {key: value for _, key, value in read(broker, "compacted") if value is not None} == {
        key: value for key, value in model.items() if value is not None
    }
    broker.stop()


def test_the_offsets_of_groups_are_compacted_and_load_again(
    tierlog_broker_factory: TierlogBrokerFactory,
) -> None:
    settings = {**CLEANER, "offsets.topic.num.partitions": "1", "offsets.topic.segment.bytes": "20000"}
    broker = tierlog_broker_factory(settings)
    create(broker, "read", cleanup_policy="delete")
    produce(broker, "read", [(str(n), "v") for n in range(1000)])
    consumers = {
        group: Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "log_level": 0})
        for group in ("a", "b")
    }
    for offset in range(1, 1001):
        for group, consumer in consumers.items():
            at = offset if group == "a" else 1001 - offset
            consumer.commit(offsets=[TopicPartition("read", 0, at)], asynchronous=False)
    until(lambda: len(read(broker, "__consumer_offsets")) < 500, "the offsets topic never became small")
    for consumer in consumers.values():
        consumer.close()
    broker.kill()
    broker.restart()
    for group, expected in (("a", 1000), ("b", 1)):
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
        assert consumer.committed([TopicPartition("read", 0)], 30)[0].offset == expected
        consumer.close()
    broker.stop()


def test_tombstones_expire_and_compaction_respects_the_policy(
    tierlog_broker_factory: TierlogBrokerFactory,
) -> None:
    broker = tierlog_broker_factory(CLEANER)
    config = {"cleanup_policy": "compact", "segment_bytes": "2000"}
    create(broker, "short", **config, delete_retention_ms="0")
    create(broker, "long", **config)
    for topic in ("short", "long"):
        produce(broker, topic, [("gone", "once"), ("gone", None)])
    filler = 0

    def is_gone(topic: str) -> bool:
        """Append records to make the log dirty again; the next cleaning removes the tombstone."""
        nonlocal filler
        for other in ("short", "long"):
            produce(broker, other, [(f"key {n % 5}", f"{filler} {n} {'x' * 50}") for n in range(60)])
        filler += 1
        return all(key != "gone" for _, key, _ in read(broker, topic))

    until(lambda: is_gone("short"), "the tombstone never went")
    until(lambda: "once" not in [v for _, _, v in read(broker, "long")], "nothing was compacted")
    assert [value for _, key, value in read(broker, "long") if key == "gone"] == [None]
    broker.stop()
