"""A byte of an object in S3 flips: the broker says so everywhere, downloads no more, and serves all else."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import s3_servers
from confluent_kafka.admin import AdminClient, NewTopic
from scraping import metric
from wire_client import Client

from tierlog.broker.diagnosis.health import Status, assess
from tierlog.cli.admin import AdminApi
from tierlog.cli.observation import observe
from tierlog.protocol.errors import ErrorCode
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker

TOPIC, INTACT, PREFIX = "orders", "intact", "damaged"
RECORDS = 200
START_MS = 1_700_000_000_000
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
async def broker(tierlog_broker_factory, proxy) -> TierlogBroker:
    """All records of its two topics are only in the bucket."""
    settings = {"remote.log.manager.task.interval.ms": 200, "remote.fetch.max.wait.ms": 30_000}
    broker = await asyncio.to_thread(
        tierlog_broker_factory, settings, object_store=proxy.url(PREFIX), environment=s3_servers.CREDENTIALS
    )
    await asyncio.to_thread(fill, broker)
    return broker


def fill(broker: TierlogBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    client, api = Client(broker.bootstrap), AdminApi(broker.admin_url, timeout_s=60)
    new = [NewRecord(START_MS, b"k", b"%0100d" % number, ()) for number in range(RECORDS)]
    for topic in (TOPIC, INTACT):
        admin.create_topics([NewTopic(topic, 1, 1, config=TIERED)])[topic].result(60)
        assert client.produce(topic, encode_batch(new)).error_code == ErrorCode.NONE
        api.post("/v1/tier/flush", {"topic": topic})
    client.close()
    for _ in api.changes():
        lines = api.get("/v1/tier/status")["partitions"]
        if all(line["local_log_start_offset"] == RECORDS for line in lines):
            return


def flip(broker: TierlogBroker, s3: s3_servers.S3Server) -> str:
    """Flip a byte in the topic's only segment, in the server's files. Returns its key below PREFIX."""
    topics = AdminApi(broker.admin_url).get("/v1/cluster")["topics"]
    [topic_id] = [topic["id"] for topic in topics if topic["name"] == TOPIC]
    bucket = s3.directory / "data" / s3_servers.BUCKET / PREFIX
    [path] = bucket.glob(f"**/{topic_id}/0/*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return str(path.relative_to(bucket))


def fetched(broker: TierlogBroker, topic: str) -> Any:
    client = Client(broker.bootstrap)
    [answer] = client.fetch(topic, 0).responses[0].partitions
    client.close()
    return answer


async def test_flipped_byte_is_reported_and_downloaded_no_more(broker, s3, proxy) -> None:
    name = await asyncio.to_thread(flip, broker, s3)
    for _ in range(5):
        answer = await asyncio.to_thread(fetched, broker, TOPIC)
        assert (answer.error_code, bytes(answer.records or b"")) == (ErrorCode.CORRUPT_MESSAGE, b"")
    requested = {path.partition("?")[0]: count for path, count in proxy.gets.items()}
    assert requested[f"/{s3_servers.BUCKET}/{PREFIX}/{name}"] == 2

    intact = await asyncio.to_thread(fetched, broker, INTACT)
    assert [record.offset for record in iter_records(intact.records, max_bytes=1 << 20)] == [*range(RECORDS)]

    [line] = [one for one in broker.log_tail().splitlines() if "remote_object.damaged" in one]
    assert "partition='orders-0'" in line and name in line and f"end_offset={RECORDS}" in line
    assert await asyncio.to_thread(metric, broker, "tierlog_remote_damaged_reads_total") == 2
    errors = "kafka_server_brokertopicmetrics_remotefetcherrors_total"
    assert await asyncio.to_thread(lambda: metric(broker, errors, topic=TOPIC)) == 5
    assert await asyncio.to_thread(metric, broker, "tierlog_remote_quarantined_objects") == 1
    [row] = (await asyncio.to_thread(AdminApi(broker.admin_url).get, "/v1/tier/damaged"))["damaged"]
    assert (row["topic"], row["partition"], row["object"]) == (TOPIC, 0, name)
    assert (row["first_offset"], row["end_offset"]) == (0, RECORDS)
    health = assess(await asyncio.to_thread(observe, [broker.admin_url]))
    assert health.status is Status.UNAVAILABLE
    assert any(f"orders-0 offsets 0 to {RECORDS - 1} ({name})" in one.what for one in health.problems)
