"""The admin HTTP server of a broker process, as Prometheus and a dashboard use it."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from tierlog.testing import TierlogBroker

PATIENCE_S = 30.0
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "admin-api.md"


def create_topic(broker: TierlogBroker, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(PATIENCE_S)


def produce(broker: TierlogBroker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_S) == 0


async def next_event(stream: aiohttp.StreamReader) -> tuple[int, Any]:
    """Id and data of the next server-sent event."""
    head, data, end = await stream.readline(), await stream.readline(), await stream.readline()
    assert head.startswith(b"id: ") and data.startswith(b"data: ") and end == b"\n"
    return int(head[4:]), json.loads(data[6:])


async def scrape(session: aiohttp.ClientSession) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Name and labels of each sample, and its value."""
    async with session.get("/metrics") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = list(text_string_to_metric_families(await answer.text()))
    assert all(family.documentation for family in families)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


async def test_metrics_say_where_logs_stand_and_what_was_asked(tierlog_broker: TierlogBroker) -> None:
    await asyncio.to_thread(create_topic, tierlog_broker, "orders", 2)
    await asyncio.to_thread(produce, tierlog_broker, "orders", 3)
    async with aiohttp.ClientSession(tierlog_broker.admin_url) as session:
        async with session.get("/health") as health:
            assert (health.status, await health.json()) == (200, {"status": "serving"})
        found = await scrape(session)
    first, second = (
        (("partition", "0"), ("topic", "orders")),
        (("partition", "1"), ("topic", "orders")),
    )
    assert (found["kafka_log_log_end_offset", first], found["kafka_log_log_end_offset", second]) == (3, 0)
    assert found["kafka_cluster_partition_high_watermark", first] == 3
    assert found["kafka_log_log_start_offset", first] == 0
    assert found["kafka_log_log_size", first] > 61  # the header of a batch
    assert found["kafka_server_replica_manager_partition_count", ()] == 2
    assert found["kafka_server_bytes_in_total", ()] > 0
    asked = found["kafka_network_request_duration_seconds_count", (("request", "Produce"),)]
    assert 1 <= asked <= 3
    slowest = found["kafka_network_request_duration_seconds_bucket", (("le", "+Inf"), ("request", "Produce"))]
    assert slowest == asked
    assert found["kafka_network_request_failures_total", (("request", "Produce"),)] == 0


async def test_every_metric_is_in_the_reference(tierlog_broker: TierlogBroker) -> None:
    async with aiohttp.ClientSession(tierlog_broker.admin_url) as session, session.get("/metrics") as answer:
        exposed = {family.name for family in text_string_to_metric_families(await answer.text())}
    assert exposed == set(re.findall(r"`((?:kafka|tierlog)_\w+)`", REFERENCE.read_text(encoding="utf-8")))


async def test_events_follow_the_cluster_until_the_broker_stops(tierlog_broker: TierlogBroker) -> None:
    async with (
        aiohttp.ClientSession(tierlog_broker.admin_url) as session,
        session.get("/v1/events") as stream,
    ):
        assert stream.headers["Content-Type"] == "text/event-stream"
        index, first = await next_event(stream.content)
        assert first == {"image_index": index, "changed": []}
        await asyncio.to_thread(create_topic, tierlog_broker, "orders")
        later, changed = await next_event(stream.content)
        while "topics" not in changed["changed"]:
            later, changed = await next_event(stream.content)
        assert later == changed["image_index"] > index
        async with session.get("/v1/cluster") as answer:
            cluster = await answer.json()
        assert cluster["image_index"] >= later
        assert [topic["name"] for topic in cluster["topics"]] == ["orders"]
        await asyncio.to_thread(tierlog_broker.stop)
        await stream.content.read()
        assert stream.content.at_eof()
