"""Small segments in S3 are merged while a real client consumes from offset 0: every record stays the same."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3_servers
from confluent_reader import read_from_start
from uploaded_segments import upload_segments

from tierlog.cli.admin import AdminApi
from tierlog.testing import TierlogBroker

TOPIC, PREFIX = "events", "merged"
SEGMENTS, RECORDS = 40, 5  # records of each segment
SETTINGS = {
    "remote.log.manager.task.interval.ms": 200,
    "remote.log.delete.grace.ms": 0,
}
CONFIG = {"remote.storage.enable": "true", "local.retention.ms": "0", "retention.ms": "-1"}


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[s3_servers.S3Server]:
    with s3_servers.running("versitygw", tmp_path) as server:
        yield server


@pytest.fixture
async def broker(tierlog_broker_factory, s3: s3_servers.S3Server) -> TierlogBroker:
    url = s3.url(PREFIX)
    return await asyncio.to_thread(
        tierlog_broker_factory, SETTINGS, object_store=url, environment=s3_servers.CREDENTIALS
    )


def value(number: int) -> bytes:
    return b"value %06d " % number * 20


def fill(broker: TierlogBroker) -> None:
    """Segments of a few records, as of a topic that rolls often."""
    ranges = (range(first, first + RECORDS) for first in range(0, SEGMENTS * RECORDS, RECORDS))
    segments = (((b"%d" % number, value(number)) for number in numbers) for numbers in ranges)
    upload_segments(broker, TOPIC, CONFIG, segments, first_timestamp=1_700_000_000_000)


def consumed(broker: TierlogBroker) -> list[tuple[int, bytes, bytes, int]]:
    """Offset, key, value and timestamp of all records."""
    found = read_from_start(broker.bootstrap, TOPIC)
    return [(one.offset(), one.key(), one.value(), one.timestamp()[1]) for one in found]


def objects(s3: s3_servers.S3Server) -> int:
    bucket = s3.directory / "data" / s3_servers.BUCKET / PREFIX
    return len(list(bucket.glob("**/*.log")))


async def test_consumers_read_the_same_while_segments_are_merged(
    broker: TierlogBroker, s3: s3_servers.S3Server
) -> None:
    await asyncio.to_thread(fill, broker)
    expected = [
        (number, b"%d" % number, value(number), 1_700_000_000_000 + number)
        for number in range(SEGMENTS * RECORDS)
    ]
    reads = 0
    async with asyncio.timeout(120):
        while objects(s3) > SEGMENTS // 4 or not reads:  # also until the old objects are deleted
            assert await asyncio.to_thread(consumed, broker) == expected
            reads += 1
    assert await asyncio.to_thread(consumed, broker) == expected
    [line] = AdminApi(broker.admin_url).get("/v1/tier/status")["partitions"]
    assert line["local_log_start_offset"] == SEGMENTS * RECORDS, "all of it was read from the bucket"
