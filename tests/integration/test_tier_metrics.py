"""Metrics of the remote tier, of a real broker with a real S3 server."""

from typing import Any

import pytest
import s3_servers
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from scraping import metric, scraped, wait_for_metric
from waiting import until
from wire_client import Client

from tierlog.cli.admin import AdminApi
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker

pytestmark = pytest.mark.timeout(120)

KAFKA = "kafka_server_brokertopicmetrics_"
START_MS = 1_700_000_000_000
BATCHES, RECORDS = 10, 100
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "65536",
    "local.retention.ms": "0",
    "retention.ms": "-1",
}


@pytest.fixture
def broker(tierlog_broker_factory, s3, tmp_path) -> TierlogBroker:
    settings = {"remote.log.manager.task.interval.ms": 200, "remote.fetch.max.wait.ms": 30_000}
    return tierlog_broker_factory(
        settings, object_store=s3.url(tmp_path.name), environment=s3_servers.CREDENTIALS
    )


def fill(broker: TierlogBroker, topic: str, **changes: str) -> AdminClient:
    """Create a topic and produce 10 batches of 11 kB, which fill two segments."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    config = TIERED | {name.replace("_", "."): value for name, value in changes.items()}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(60)
    client = Client(broker.bootstrap)
    for batch in range(BATCHES):
        new = [NewRecord(START_MS, b"k", b"%0100d" % (batch * RECORDS + n), ()) for n in range(RECORDS)]
        assert client.produce(topic, encode_batch(new)).error_code == ErrorCode.NONE
    client.close()
    return admin


def flush(broker: TierlogBroker, topic: str) -> dict[str, Any]:
    """Upload the topic, and wait until no record of it is local. Returns its tier status."""
    api = AdminApi(broker.admin_url, timeout_s=60)
    api.post("/v1/tier/flush", {"topic": topic})
    for _ in api.changes():
        [line] = api.get("/v1/tier/status", topic=topic)["partitions"]
        if line["local_log_start_offset"] == line["log_end_offset"]:
            return line
    raise AssertionError("the stream of events ended")


class Values:
    """The metrics of one scrape."""

    def __init__(self, broker: TierlogBroker) -> None:
        self.samples = scraped(broker)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))

    def kafka(self, name: str, topic: str) -> tuple[float | None, float | None]:
        """The values of the topic, and of all topics."""
        return self(KAFKA + name, topic=topic), self(KAFKA + name)


def test_uploads_and_reads_are_counted_by_topic(broker) -> None:
    fill(broker, "orders")
    line = flush(broker, "orders")
    client = Client(broker.bootstrap)
    [answer] = client.fetch("orders", 0).responses[0].partitions
    client.close()
    size, segments = line["remote_bytes"], line["remote_segments"]
    values = Values(broker)
    assert segments == 2
    assert values.kafka("remotecopybytes_total", "orders") == (size, size)
    assert values.kafka("remotecopyrequests_total", "orders") == (segments, segments)
    assert values.kafka("remotecopyerrors_total", "orders") == (None, 0)
    assert values.kafka("remotecopylagbytes", "orders") == (0, 0)
    assert values.kafka("remotecopylagsegments", "orders") == (0, 0)
    assert values("tierlog_remote_copy_lag_seconds", topic="orders") == 0
    assert values.kafka("remotelogsizebytes", "orders") == (size, size)
    assert values.kafka("remotelogmetadatacount", "orders") == (segments, segments)
    read = len(answer.records)
    assert values.kafka("remotefetchbytes_total", "orders") == (read, read)
    assert values.kafka("remotefetchrequests_total", "orders") == (1, 1)
    assert values("kafka_log_remote_remotelogmanager_remotelogreaderfetchrateandtimems_count") == 1
    assert values("kafka_log_remote_remotestoragethreadpool_remotelogreadertaskqueuesize") == 0
    memory, budget = (values(f"tierlog_remote_manifest_memory_{one}bytes") for one in ("", "budget_"))
    assert 0 < memory < budget == 192 << 20


def test_calls_of_the_store_and_of_the_cache_are_counted(broker) -> None:
    fill(broker, "orders")
    size = flush(broker, "orders")["remote_bytes"]
    client = Client(broker.bootstrap)
    for _ in range(3):
        client.fetch("orders", 500)  # in the last segment, so nothing is read ahead
    client.close()
    values = Values(broker)
    calls = lambda operation, kind: values(  # noqa: E731
        "tierlog_object_store_requests_total", operation=operation, kind=kind, outcome="ok"
    )
    assert calls("put", "segment") == calls("put", "index") == 2
    assert values("tierlog_object_store_bytes_total", operation="put", kind="segment") == size
    assert calls("get", "segment") == values("tierlog_remote_cache_misses_total") == 1
    assert calls("get", "index") == 1, "the first byte of a cold offset takes two requests"
    assert values("tierlog_remote_cache_hits_total") == 2
    assert values("tierlog_remote_cache_size_bytes") == size / 2
    assert values("tierlog_object_store_request_seconds_count", operation="put") >= 4
    assert values("tierlog_object_store_request_seconds_sum", operation="put") > 0


def test_topic_that_is_not_uploaded_has_pending_bytes_and_no_lag(broker) -> None:
    fill(broker, "waiting", remote_log_copy_disable="true", local_retention_ms="-1")
    [line] = AdminApi(broker.admin_url).get("/v1/tier/status", topic="waiting")["partitions"]
    values = Values(broker)
    assert line["pending_bytes"] > 0
    assert line["pending_segments"] == 1
    assert values.kafka("remotecopylagbytes", "waiting") == (None, 0)
    assert values.kafka("remotecopylagsegments", "waiting") == (None, 0)
    assert values("tierlog_remote_copy_lag_seconds") == 0


def test_deletions_wait_for_the_grace_and_a_deleted_topic_leaves_no_samples(broker) -> None:
    admin = fill(broker, "orders")
    end = flush(broker, "orders")["log_end_offset"]
    [deleted] = admin.delete_records([TopicPartition("orders", 0, end)]).values()
    deleted.result(60)
    wait_for_metric(broker, 2, f"{KAFKA}remotedeletelagsegments", topic="orders")
    admin.delete_topics(["orders"])["orders"].result(60)
    values = Values(broker)
    assert [labels for _, labels in values.samples if ("topic", "orders") in labels] == []
    assert values(f"{KAFKA}remotecopyrequests_total") == 2


def test_deletions_are_counted(tierlog_broker_factory, tmp_path) -> None:
    broker = tierlog_broker_factory(
        {"remote.log.delete.grace.ms": 0, "remote.log.manager.task.interval.ms": 200},
    )
    admin = fill(broker, "orders")
    end = flush(broker, "orders")["log_end_offset"]
    [deleted] = admin.delete_records([TopicPartition("orders", 0, end)]).values()
    deleted.result(60)
    wait_for_metric(broker, 2, f"{KAFKA}remotedeleterequests_total", topic="orders")


def test_throttle_times_and_free_slots_are_reported(tierlog_broker_factory, s3, tmp_path) -> None:
    """KIP-956. The second segment waits until the first one is paid off, which takes almost 3 s."""
    broker = tierlog_broker_factory(
        {
            "remote.log.manager.task.interval.ms": 200,
            "remote.fetch.max.wait.ms": 30_000,
            "remote.log.manager.copy.max.bytes.per.second": 20_000,
            "remote.log.manager.fetch.max.bytes.per.second": 20_000,
        },
        object_store=s3.url(tmp_path.name),
        environment=s3_servers.CREDENTIALS,
    )
    fill(broker, "orders")
    flush(broker, "orders")
    client = Client(broker.bootstrap)
    for offset in (0, 500):
        client.fetch("orders", offset)
    client.close()
    values = Values(broker)
    for kind in ("copy", "fetch"):
        mean = values(f"kafka_server_remotelogmanager_remote_{kind}_throttle_time_avg")
        longest = values(f"kafka_server_remotelogmanager_remote_{kind}_throttle_time_max")
        assert mean is not None and longest is not None and 0 < mean <= longest
    assert values("kafka_log_remote_remotelogmanager_remotelogmanagertasksavgidlepercent") == 1


def test_delete_lag_has_the_bytes_of_the_segments(broker) -> None:
    admin = fill(broker, "orders")
    line = flush(broker, "orders")
    [deleted] = admin.delete_records([TopicPartition("orders", 0, line["log_end_offset"])]).values()
    deleted.result(60)
    wait_for_metric(broker, line["remote_bytes"], f"{KAFKA}remotedeletelagbytes", topic="orders")
    assert Values(broker).kafka("remotedeletelagbytes", "orders") == (line["remote_bytes"],) * 2


def test_outage_shows_in_the_metrics_of_the_circuit_breaker(tierlog_broker_factory, tmp_path) -> None:
    with s3_servers.running("versitygw", tmp_path) as server:
        broker = tierlog_broker_factory(
            {"remote.log.manager.task.interval.ms": 200},
            object_store=server.url("outage"),
            environment=s3_servers.CREDENTIALS,
        )
        fill(broker, "orders")
        flush(broker, "orders")
        values = Values(broker)
        assert values("tierlog_object_store_available") == 1
        assert values("tierlog_object_store_outages_total") == 0
        assert values("tierlog_object_store_refused_calls_total") == 0
        server.kill()
        fill(broker, "during")  # its uploads fail until the breaker opens
        until(lambda: metric(broker, "tierlog_object_store_available") == 0, "the breaker does not open")
        client = Client(broker.bootstrap)
        [answer] = client.fetch("orders", 0).responses[0].partitions
        client.close()
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        wait_for_metric(broker, 1, "tierlog_object_store_refused_calls_total")
        assert metric(broker, "tierlog_object_store_outages_total") == 1
        server.start()
        wait_for_metric(broker, 1, "tierlog_object_store_available")
        assert flush(broker, "during")["remote_bytes"] > 0
        assert metric(broker, "tierlog_object_store_outages_total") == 1
