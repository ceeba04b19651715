"""The S3 server of a tiering broker fails (guarantees 14, 15 and 18).

Produce and local reads continue, remote reads return errors but never wrong data, and tiering catches up once
the server is back.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import s3_servers
from cli_inline import call
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from wire_client import Client

from tierlog.cli.admin import AdminApi
from tierlog.protocol.errors import ErrorCode
from tierlog.records.record import iter_records
from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TOPIC = "t"
BEFORE, DURING, AFTER = 3000, 3000, 500  # records; a segment holds about 500
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "65536",
    "local.retention.ms": "0",
    "retention.ms": "-1",
}


@pytest.fixture
def s3(tmp_path) -> Iterator[s3_servers.S3Server]:
    with s3_servers.running("versitygw", tmp_path) as server:
        yield server


@pytest.fixture
def broker(tierlog_broker_factory, s3) -> TierlogBroker:
    """The first BEFORE records of its topic are only in the bucket and in no cache."""
    broker = tierlog_broker_factory(
        {"remote.log.manager.task.interval.ms": 200, "remote.fetch.max.wait.ms": 60_000},
        object_store=s3.url("outage"),
        environment=s3_servers.CREDENTIALS,
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=TIERED)])[TOPIC].result(60)
    produce(broker, range(BEFORE))
    AdminApi(broker.admin_url).post("/v1/tier/flush", {"topic": TOPIC})
    wait_until(broker, lambda: status(broker)["local_log_start_offset"] == BEFORE)
    return broker


def value(number: int) -> bytes:
    return b"value %d " % number * 8


def produce(broker: TierlogBroker, numbers: range) -> None:
    """Produce; each record is acknowledged at the offset equal to its number."""
    reported: dict[int, Any] = {}
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "batch.size": 8192}
    )
    for number in numbers:
        producer.produce(
            TOPIC,
            value(number),
            on_delivery=lambda error, message, number=number: reported.update(
                {number: error or message.offset()}
            ),
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert reported == {number: number for number in numbers}


def reader(broker: TierlogBroker, offset: int) -> Consumer:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(TOPIC, 0, offset)])
    return consumer


def read(consumer: Consumer, numbers: range) -> None:
    """Check that the next records are these, once each, in order and unchanged."""
    following = numbers.start
    while following < numbers.stop:
        for message in consumer.consume(numbers.stop - following, 60):
            assert message.error() is None, message.error()
            assert (message.offset(), message.value()) == (following, value(following))
            following += 1


def status(broker: TierlogBroker) -> dict[str, Any]:
    (line,) = AdminApi(broker.admin_url).get("/v1/tier/status", topic=TOPIC)["partitions"]
    found: dict[str, Any] = line
    return found


def wait_until(broker: TierlogBroker, holds: Callable[[], bool]) -> None:
    """Check the condition again at each event of the broker's admin API."""
    for _ in AdminApi(broker.admin_url, timeout_s=120).changes():
        if holds():
            return
    raise AssertionError("the stream of events ended")


def check_that_remote_reads_fail(broker: TierlogBroker) -> None:
    """A fetch at any remote offset returns a retriable error, without records."""
    client = Client(broker.bootstrap)
    for offset in (0, 1, BEFORE // 2, BEFORE - 1):
        (answer,) = client.fetch(TOPIC, offset).responses[0].partitions
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert bytes(answer.records or b"") == b""
    client.close()


def check_that_commands_report_the_outage(broker: TierlogBroker, endpoint: str) -> None:
    """They end soon, and the reason is the store; the health names the runbook."""
    at = ("--admin", broker.admin_url)
    flushed = call("tier", "flush", TOPIC, *at)
    assert (flushed.code, flushed.stdout) == (1, "")
    assert f"tierlog: the object store is unavailable: {endpoint}: " in flushed.stderr
    health = call("cluster", "health", *at)
    assert health.code == 5 and "the object store is unavailable for broker 1" in health.stdout
    for ended in (flushed, health, call("tier", "verify", TOPIC, *at), call("tier", "gc", "--dry-run", *at)):
        assert "docs/runbooks/bucket-down.md" in ended.stdout + ended.stderr, ended


def caught_up(broker: TierlogBroker, end: int) -> bool:
    line = status(broker)
    return (line["remote_end_offset"], line["local_log_start_offset"], line["last_error"]) == (end, end, None)


def test_broker_serves_through_an_object_store_outage(broker, s3):
    tail = reader(broker, BEFORE)
    s3.kill()
    history = reader(broker, 0)
    produce(broker, range(BEFORE, BEFORE + DURING))
    read(tail, range(BEFORE, BEFORE + DURING))
    check_that_remote_reads_fail(broker)
    wait_until(broker, lambda: status(broker)["last_error"] is not None)
    line = status(broker)
    assert (line["log_start_offset"], line["remote_end_offset"], line["local_log_start_offset"]) == (
        0,
        BEFORE,
        BEFORE,
    )
    assert line["pending_bytes"] > 0
    assert history.consume(1, 0) == []
    check_that_commands_report_the_outage(broker, s3.endpoint)

    s3.start()
    produce(broker, range(BEFORE + DURING, BEFORE + DURING + AFTER))
    wait_until(broker, lambda: status(broker)["last_error"] is None)
    end = BEFORE + DURING + AFTER
    AdminApi(broker.admin_url).post("/v1/tier/flush", {"topic": TOPIC})
    wait_until(broker, lambda: caught_up(broker, end))
    read(history, range(end))  # this consumer fetched throughout the outage
    read(reader(broker, 0), range(end))
    read(tail, range(BEFORE + DURING, end))


def test_broker_starts_and_serves_without_its_object_store(broker, s3):
    produce(broker, range(BEFORE, BEFORE + 100))
    s3.kill()
    broker.kill()
    broker.start()
    read(reader(broker, BEFORE), range(BEFORE, BEFORE + 100))
    produce(broker, range(BEFORE + 100, BEFORE + DURING))
    check_that_remote_reads_fail(broker)
    place = AdminApi(broker.admin_url).get("/v1/tier/explain", topic=TOPIC, partition=0, offset=BEFORE + 1)
    assert place["tier"] == "local"
    s3.start()
    wait_until(broker, lambda: status(broker)["last_error"] is None)
    AdminApi(broker.admin_url).post("/v1/tier/flush", {"topic": TOPIC})
    wait_until(broker, lambda: caught_up(broker, BEFORE + DURING))
    client = Client(broker.bootstrap)
    (answer,) = client.fetch(TOPIC, BEFORE // 2).responses[0].partitions
    client.close()
    first = next(iter_records(answer.records, max_bytes=1 << 20))
    assert first.value == value(first.offset)
    read(reader(broker, 0), range(BEFORE + DURING))
