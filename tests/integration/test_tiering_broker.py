"""A complete broker with a real S3 server: records are tiered, read back and deleted, as clients see it."""

import uuid
from collections.abc import Callable

import pytest
import s3_servers
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, NewTopic
from confluent_kafka.admin import AlterConfigOpType as Op

from tierlog.cli.admin import AdminApi
from tierlog.cli.process import TierlogBroker
from tierlog.records.batch import iter_batches
from tierlog.records.record import iter_records
from tierlog.tiering.format.manifest import decode_root, decode_topic

pytestmark = pytest.mark.timeout(90)

RECORDS = 6_000
PARTITIONS = 2
START_MS = 1_700_000_000_000
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "65536",
    "local.retention.ms": "0",
    "retention.ms": "-1",
}


@pytest.fixture
def prefix() -> str:
    return f"it/{uuid.uuid4()}"


@pytest.fixture
def broker(tierlog_broker_factory, s3, prefix) -> TierlogBroker:
    return tierlog_broker_factory(
        {"remote.log.delete.grace.ms": 0, "remote.log.manager.task.interval.ms": 200, "cluster.id": "it"},
        object_store=s3.url(prefix),
        environment=s3_servers.CREDENTIALS,
    )


def create(broker: TierlogBroker, topic: str, **changes: str) -> None:
    config = {**TIERED, **{name.replace("_", "."): value for name, value in changes.items()}}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = NewTopic(topic, PARTITIONS, 1, config=config)
    admin.create_topics([new])[topic].result(60)


def alter(broker: TierlogBroker, topic: str, settings: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    changes = [ConfigEntry(key, value, incremental_operation=Op.SET) for key, value in settings.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    admin.incremental_alter_configs([resource])[resource].result(60)


def record(number: int) -> dict[str, object]:
    return {
        "key": b"key-%d" % number,
        "value": b"value %d " % number * 5,
        "partition": number % PARTITIONS,
        "timestamp": START_MS + number,
        "headers": [("number", b"%d" % number)],
    }


def produce(broker: TierlogBroker, topic: str, numbers: range, codec: str = "none") -> None:
    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "compression.type": codec,
            "batch.size": 8192,
            "linger.ms": 5,
        }
    )
    for number in numbers:
        producer.produce(
            topic, on_delivery=lambda error, _: error and failures.append(error), **record(number)
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failures


def consume(broker: TierlogBroker, topic: str, count: int, start: int = 0) -> list[list[dict[str, object]]]:
    """All records of each partition from an offset, through a real client."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, partition, start) for partition in range(PARTITIONS)])
    consumed: list[list[dict[str, object]]] = [[] for _ in range(PARTITIONS)]
    while (missing := count - sum(map(len, consumed))) > 0:
        for message in consumer.consume(min(500, missing), 20):
            assert message.error() is None, message.error()
            records = consumed[message.partition()]
            assert message.offset() == start + len(records)
            records.append(
                {
                    "key": message.key(),
                    "value": message.value(),
                    "partition": message.partition(),
                    "timestamp": message.timestamp()[1],
                    "headers": message.headers(),
                }
            )
    consumer.close()
    return consumed


def expected(numbers: range) -> list[list[dict[str, object]]]:
    """The records with these numbers, by partition."""
    return [[record(n) for n in numbers if n % PARTITIONS == partition] for partition in range(PARTITIONS)]


def wait_until(broker: TierlogBroker, condition: Callable[[], bool]) -> None:
    """Check the condition again at each event of the broker's admin API."""
    for _ in AdminApi(broker.admin_url, timeout_s=60).changes():
        if condition():
            return
    raise AssertionError("the stream of events ended")


def tier_status(broker: TierlogBroker, topic: str) -> list[dict[str, int]]:
    """A row for each partition."""
    return AdminApi(broker.admin_url).get("/v1/tier/status", topic=topic)["partitions"]


def no_record_is_local(broker: TierlogBroker, topic: str) -> bool:
    rows = tier_status(broker, topic)
    return all(row["local_log_start_offset"] == row["log_end_offset"] for row in rows)


def object_keys(s3: s3_servers.S3Server, prefix: str, folder: str) -> list[str]:
    listing = s3.minio_client().list_objects(s3_servers.BUCKET, f"{prefix}/it/{folder}", recursive=True)
    return [item.object_name for item in listing]


def content(s3: s3_servers.S3Server, key: str) -> bytes:
    return s3.minio_client().get_object(s3_servers.BUCKET, key).data


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_history_is_read_back_from_the_bucket(broker, s3, prefix, codec):
    create(broker, "t")
    produce(broker, "t", range(RECORDS), codec)
    AdminApi(broker.admin_url).post("/v1/tier/flush", {"topic": "t"})
    wait_until(broker, lambda: no_record_is_local(broker, "t"))
    rows = tier_status(broker, "t")
    assert [row["remote_end_offset"] for row in rows] == [RECORDS // PARTITIONS] * PARTITIONS
    assert [row["local_bytes"] for row in rows] == [0] * PARTITIONS
    assert consume(broker, "t", RECORDS) == expected(range(RECORDS))

    (topic_key,) = object_keys(s3, prefix, "topics/")
    topic = decode_topic(content(s3, topic_key))
    assert (topic.name, topic.partitions, topic.configs["segment.bytes"]) == ("t", PARTITIONS, "65536")
    roots = [decode_root(content(s3, key)) for key in object_keys(s3, prefix, "manifests/")]
    for root in roots:
        values = []
        for entry in root.entries:
            (key,) = [key for key in object_keys(s3, prefix, "data/") if f"{entry.uuid}.log" in key]
            segment = content(s3, key)
            for position, _ in iter_batches(segment):
                values += [row.value for row in iter_records(segment, position, max_bytes=1 << 20)]
        assert values == [row["value"] for row in expected(range(RECORDS))[root.partition]]


def test_records_of_both_tiers_are_found_by_timestamp_and_read_by_offset(broker):
    create(broker, "t")
    produce(broker, "t", range(RECORDS))
    AdminApi(broker.admin_url).post("/v1/tier/flush", {"topic": "t"})
    produce(broker, "t", range(RECORDS, RECORDS + 100))
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
    for number in (0, 1, 777, RECORDS - 1, RECORDS, RECORDS + 99):
        timestamp = TopicPartition("t", number % PARTITIONS, START_MS + number)
        (position,) = consumer.offsets_for_times([timestamp], timeout=60)
        assert position.offset == number // PARTITIONS
        consumer.assign([TopicPartition("t", number % PARTITIONS, position.offset)])
        (message,) = consumer.consume(1, 60)
        assert message.key() == b"key-%d" % number
    consumer.close()


def test_killed_broker_resumes_tiering_and_loses_nothing(broker, s3, prefix):
    create(broker, "t")
    for number in range(3):
        produce(broker, "t", range(number * 2000, number * 2000 + 2000))
        broker.kill()  # at some point between roll, copy, commit and local deletion
        broker.start()
    AdminApi(broker.admin_url).post("/v1/tier/flush", {"topic": "t"})
    assert consume(broker, "t", RECORDS) == expected(range(RECORDS))
    wait_until(broker, lambda: no_orphans(s3, prefix))


def no_orphans(s3: s3_servers.S3Server, prefix: str) -> bool:
    """Whether the manifests name every data object, so that interrupted copies have been deleted."""
    roots = [decode_root(content(s3, key)) for key in object_keys(s3, prefix, "manifests/")]
    named = {str(entry.uuid) for root in roots for entry in root.entries}
    keys = object_keys(s3, prefix, "data/")  # a segment and an index bundle for each entry
    return all(any(name in key for name in named) for key in keys) and len(keys) == 2 * len(named)


def test_retention_deletes_remote_segments(broker, s3, prefix):
    create(broker, "t")
    produce(broker, "t", range(RECORDS))
    AdminApi(broker.admin_url).post("/v1/tier/flush", {"topic": "t"})
    before = object_keys(s3, prefix, "data/")
    alter(broker, "t", {"retention.bytes": "100000"})
    wait_until(broker, lambda: len(object_keys(s3, prefix, "data/")) < len(before) and no_orphans(s3, prefix))
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
    low, high = consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=60)
    assert 0 < low < high == RECORDS // PARTITIONS
    consumer.assign([TopicPartition("t", 0, low)])
    (message,) = consumer.consume(1, 60)
    assert (message.offset(), message.key()) == (low, b"key-%d" % (low * PARTITIONS))
    consumer.close()


def test_tiering_is_switched_off_and_on_again(broker, s3, prefix):
    create(broker, "t", local_retention_ms="-1", local_retention_bytes="150000")
    produce(broker, "t", range(RECORDS))
    AdminApi(broker.admin_url).post("/v1/tier/flush", {"topic": "t"})
    wait_until(broker, lambda: all(row["local_log_start_offset"] > 0 for row in tier_status(broker, "t")))
    starts = [row["local_log_start_offset"] for row in tier_status(broker, "t")]
    with pytest.raises(KafkaException, match="invalid to disable remote storage without deleting"):
        alter(broker, "t", {"remote.storage.enable": "false"})
    alter(broker, "t", {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"})
    wait_until(broker, lambda: not object_keys(s3, prefix, "data/"))
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "none", "auto.offset.reset": "error"}
    )
    for partition, start in enumerate(starts):
        requested = TopicPartition("t", partition, start - 1)
        assert consumer.get_watermark_offsets(requested, timeout=60) == (start, RECORDS // PARTITIONS)
        consumer.assign([requested])
        (refused,) = consumer.consume(1, 60)
        assert refused.error().code() == KafkaError._AUTO_OFFSET_RESET
    consumer.close()

    kept = RECORDS // PARTITIONS - 100
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for deleted in admin.delete_records([TopicPartition("t", n, kept) for n in range(PARTITIONS)]).values():
        assert deleted.result(60).low_watermark == kept
    broker.kill()
    broker.start()
    alter(broker, "t", {"remote.storage.enable": "true", "local.retention.ms": "0"})
    produce(broker, "t", range(RECORDS, RECORDS + 1000))
    AdminApi(broker.admin_url).post("/v1/tier/flush", {"topic": "t"})
    wait_until(broker, lambda: no_record_is_local(broker, "t") and no_orphans(s3, prefix))
    found = consume(broker, "t", 1000 + 100 * PARTITIONS, kept)
    assert found == [rows[kept:] for rows in expected(range(RECORDS + 1000))]


def test_deleted_topic_is_removed_from_the_bucket(broker, s3, prefix):
    def tier(topic):
        create(broker, topic)
        produce(broker, topic, range(1000))
        AdminApi(broker.admin_url).post("/v1/tier/flush", {"topic": topic})
        return object_keys(s3, prefix, "data/")

    kept = tier("kept")
    assert len(tier("t")) > len(kept) > 0
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["t"])["t"].result(60)
    wait_until(broker, lambda: object_keys(s3, prefix, "data/") == kept)
    assert len(object_keys(s3, prefix, "topics/")) == 1
    assert len(object_keys(s3, prefix, "manifests/")) == PARTITIONS


def test_explain_names_the_object_and_its_bytes(broker, s3, prefix):
    create(broker, "t")
    produce(broker, "t", range(RECORDS))
    api = AdminApi(broker.admin_url)
    api.post("/v1/tier/flush", {"topic": "t"})
    wait_until(broker, lambda: no_record_is_local(broker, "t"))
    location = api.get("/v1/tier/explain", topic="t", partition=1, offset=1234)
    assert location["tier"] == "remote"
    segment = content(s3, f"{prefix}/{location['location']}")
    batch = segment[location["position"] : location["position"] + location["batch_bytes"]]
    assert 1234 in [row.offset for row in iter_records(batch, max_bytes=1 << 20)]
