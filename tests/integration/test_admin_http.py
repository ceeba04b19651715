"""The admin HTTP server of a broker process, used as by Prometheus and a dashboard."""

import asyncio
import json
import re
from typing import Any

import aiohttp
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families
from wire_client import Client

from tierlog.broker.gateway.catalogue import CLIENT, METRICS, SECTIONS
from tierlog.protocol.messages import fetch
from tierlog.testing import TierlogBroker

TIMEOUT_S = 90.0


def create_topic(broker: TierlogBroker, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(TIMEOUT_S)


def produce(broker: TierlogBroker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


async def next_event(stream: aiohttp.StreamReader) -> tuple[int, Any]:
    """The id and data of the next server-sent event."""
    head, data, end = await stream.readline(), await stream.readline(), await stream.readline()
    assert head.startswith(b"id: ") and data.startswith(b"data: ") and end == b"\n"
    return int(head[4:]), json.loads(data[6:])


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scrape(session: aiohttp.ClientSession) -> Samples:
    """The value of each sample by name and labels."""
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


def of(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


async def test_metrics_show_log_offsets_and_requests(tierlog_broker: TierlogBroker) -> None:
    await asyncio.to_thread(create_topic, tierlog_broker, "orders", 2)
    await asyncio.to_thread(produce, tierlog_broker, "orders", 3)
    client = await asyncio.to_thread(Client, tierlog_broker.bootstrap)
    await asyncio.to_thread(client.produce, "orders", b"no batch")
    for offset in (0, 99):
        await asyncio.to_thread(client.fetch, "orders", offset)
    client.close()
    async with aiohttp.ClientSession(tierlog_broker.admin_url) as session:
        async with session.get("/health") as health:
            assert (health.status, await health.json()) == (200, {"status": "serving"})
        found = await scrape(session)
    first, second = of(topic="orders", partition="0"), of(topic="orders", partition="1")
    assert (found["kafka_log_log_logendoffset", first], found["kafka_log_log_logendoffset", second]) == (3, 0)
    assert found["tierlog_partition_high_watermark", first] == 3
    assert found["kafka_log_log_logstartoffset", first] == 0
    assert found["kafka_log_log_numlogsegments", first] == 1
    size = found["kafka_log_log_size", first]
    assert size > 61  # the header of a batch
    assert found["kafka_server_replicamanager_partitioncount", ()] == 2
    for name, value in {"bytesin": size, "bytesout": size, "messagesin": 3}.items():
        assert found[f"kafka_server_brokertopicmetrics_{name}_total", of(topic="orders")] == value
        assert found[f"kafka_server_brokertopicmetrics_{name}_total", ()] == value
    assert found["kafka_server_socket_server_metrics_incoming_byte_total", ()] > size
    requested = found["kafka_network_requestmetrics_requests_total", of(request="Produce")]
    assert 2 <= requested <= 4
    for kind in ("total", "local", "remote"):
        counted = f"kafka_network_requestmetrics_{kind}timems"
        assert found[f"{counted}_count", of(request="Produce")] == requested
        assert found[f"{counted}_bucket", of(le="+Inf", request="Produce")] == requested
    wrong = of(request="Produce", error="INVALID_RECORD")
    assert found["kafka_network_requestmetrics_errors_total", wrong] == 1
    wrong = of(request="Fetch", error="OFFSET_OUT_OF_RANGE")
    assert found["kafka_network_requestmetrics_errors_total", wrong] == 1


async def test_waiting_requests_are_counted_separately(tierlog_broker: TierlogBroker) -> None:
    await asyncio.to_thread(create_topic, tierlog_broker, "orders")
    client = await asyncio.to_thread(Client, tierlog_broker.bootstrap)
    requested = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [fetch.FetchTopic(topic="orders", partitions=[requested])]
    client.post(
        "Fetch", 12, fetch.FetchRequest(max_wait_ms=60_000, min_bytes=1, session_epoch=0, topics=topics)
    )
    in_purgatory = "kafka_server_delayedoperationpurgatory_purgatorysize", of(delayed_operation="Fetch")
    async with aiohttp.ClientSession(tierlog_broker.admin_url) as session:
        while not (await scrape(session))[in_purgatory]:
            pass
        await asyncio.to_thread(produce, tierlog_broker, "orders", 1)
        await asyncio.to_thread(client.receive, "Fetch", 12)
        found = await scrape(session)
        assert found[in_purgatory] == 0
        assert found["kafka_server_fetchsessioncache_numincrementalfetchsessions", ()] == 1
        assert found["kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", ()] == 1
        kind, request = "kafka_network_requestmetrics_{}timems_sum", of(request="Fetch")
        waited = found[kind.format("remote"), request]
        assert 0 < waited < found[kind.format("total"), request]
        assert found[kind.format("local"), request] > 0
        client.post("Fetch", 12, fetch.FetchRequest(max_wait_ms=1, min_bytes=1 << 20, topics=topics))
        await asyncio.to_thread(client.receive, "Fetch", 12)
        expired = (await scrape(session))["tierlog_purgatory_expired_total", of(delayed_operation="Fetch")]
        assert expired == 1
    client.close()


async def test_metrics_are_those_of_the_reference_page(tierlog_broker: TierlogBroker) -> None:
    """With a value, and the labels that it says."""
    await asyncio.to_thread(create_topic, tierlog_broker, "orders")
    await asyncio.to_thread(produce, tierlog_broker, "orders", 1)
    client = await asyncio.to_thread(Client, tierlog_broker.bootstrap)
    await asyncio.to_thread(client.produce, "no-such-topic", b"")
    client.close()
    async with aiohttp.ClientSession(tierlog_broker.admin_url) as session, session.get("/metrics") as answer:
        text = await answer.text()
    assert re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M) == [
        (metric.name, metric.kind) for metrics in SECTIONS.values() for metric in metrics
    ]
    for family in text_string_to_metric_families(text):
        metric = METRICS.get(family.name) or METRICS[f"{family.name}_total"]
        for sample in family.samples:
            assert set(sample.labels) - {"le"} in (set(metric.labels), set()), sample
        if metric.name not in WITHOUT_A_CAUSE:
            assert family.samples, f"{metric.name} has no value"


WITHOUT_A_CAUSE = {
    "tierlog_certificate_expiry_timestamp_seconds",
    "tierlog_certificate_reload_failures_total",
    "tierlog_connections_refused_total",
    "tierlog_remote_log_size_bytes",
    "tierlog_remote_log_segments",
    "tierlog_object_store_bytes_total",
    "kafka_consumergroup_current_offset",
    "kafka_consumergroup_lag",
    "kafka_consumergroup_lag_sum",
    *(metric.name for metric in SECTIONS["Quotas"] if metric.labels == CLIENT),
}
"""They have a value for each cause, place, group or client with a quota, and there was none."""


async def test_events_report_changes_until_the_broker_stops(tierlog_broker: TierlogBroker) -> None:
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


async def test_a_web_page_can_neither_stop_a_broker_nor_read_the_cluster(
    tierlog_broker: TierlogBroker,
) -> None:
    page = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}
    rebound = {"Host": "evil.example", "Content-Type": "application/json"}
    stop = "/v1/brokers/1/stop"
    async with aiohttp.ClientSession(tierlog_broker.admin_url) as session:
        assert (await session.post(stop, headers=page)).status == 403
        assert (await session.post(stop, headers=rebound)).status == 421
        assert (await session.post(stop)).status == 415
        assert (await session.get("/v1/cluster", headers=rebound)).status == 421
        brokers = (await (await session.get("/v1/brokers")).json())["brokers"]
        assert [broker["stopping"] for broker in brokers] == [False]
        assert (await session.post(stop, json={})).status == 200
