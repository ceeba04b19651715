"""The REST gateway as a process before a real broker: HTTP clients and Kafka clients see the same records."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from rest_process import RestProcess
from schema_registry import USER, running
from waiting import until

from tierlog.testing import TierlogBroker

PARTITIONS = 5
HEADERS = [{"name": "h", "value": "AP8="}]
JAVA = "murmur2_random"
"""librdkafka's name of the Java client's partitioner."""


@pytest.fixture(scope="module")
def registry() -> Iterator[Any]:
    with running() as served:
        yield served


@pytest.fixture(scope="module")
def rest(
    tierlog_session_broker: TierlogBroker, tmp_path_factory: pytest.TempPathFactory, registry: Any
) -> Iterator[RestProcess]:
    directory = tmp_path_factory.mktemp("rest")
    (directory / "login").write_text(f"{USER}\n")
    words = ("--registry", registry.url, "--registry-login", str(directory / "login"))
    with RestProcess(directory, tierlog_session_broker.bootstrap, *words) as process:
        yield process


@pytest.fixture(scope="module")
def base(rest: RestProcess) -> str:
    return rest.cluster_path()


def create(rest: RestProcess, topic: str, partitions: int = PARTITIONS, **configs: str) -> None:
    given = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
    body = {"topic_name": topic, "partitions_count": partitions, "configs": given}
    answer = rest.post(f"{rest.cluster_path()}/topics", body)
    assert answer.status == 201, answer


def consumed(broker: TierlogBroker, topic: str, count: int, partitions: int = PARTITIONS) -> list[Any]:
    """Messages of a real client, in order within a partition."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Any] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), 30)
        assert messages, f"{len(found)} of {count}"
        assert [message.error() for message in messages if message.error()] == []
        found += messages
    consumer.close()
    return found


def lines(answer: Any) -> list[Any]:
    return answer.body if isinstance(answer.body, list) else [answer.body]


# ---- produce -----------------------------------------------------------------------------------------


def test_records_have_the_bytes_and_partitions_of_a_java_client(
    rest: RestProcess, tierlog_session_broker: TierlogBroker
) -> None:
    create(rest, "rest-bytes", retention_ms="-1")  # the records are of 1970
    keys = [f"key-{number}-é" for number in range(200)] + [""]
    body = {
        "records": [
            {"key": key, "value": {"number": at}, "timestamp": 1000 + at, "headers": HEADERS}
            for at, key in enumerate(keys)
        ]
    }  # fmt: skip
    answer = rest.post("/v1/topics/rest-bytes/produce", body)
    assert (answer.status, answer.body["failed"]) == (200, 0)
    create(rest, "rest-java", retention_ms="-1")
    producer = Producer({"bootstrap.servers": tierlog_session_broker.bootstrap, "partitioner": JAVA})
    for at, key in enumerate(keys):
        value = json.dumps({"number": at}, separators=(",", ":"))
        producer.produce("rest-java", value, key, timestamp=1000 + at, headers=[("h", b"\0\xff")])
    assert producer.flush(30) == 0
    ours, theirs = (
        sorted(
            (one.partition(), one.timestamp()[1], one.key(), one.value(), one.headers())
            for one in consumed(tierlog_session_broker, topic, len(keys))
        )
        for topic in ("rest-bytes", "rest-java")
    )
    assert ours == theirs
    written = consumed(tierlog_session_broker, "rest-bytes", len(keys))
    places = {one.value(): (one.partition(), one.offset()) for one in written}
    for at, row in enumerate(answer.body["records"]):
        assert places[b'{"number":%d}' % at] == (row["partition"], row["offset"])


@pytest.mark.parametrize("timestamp", [2**62, "9999-12-31T23:59:59-01:00"])
def test_timestamps_that_no_response_can_name_are_refused(
    timestamp: int | str, rest: RestProcess, base: str
) -> None:
    topic = f"rest-future-{isinstance(timestamp, str)}"
    create(rest, topic, 1, message_timestamp_after_max_ms=str(2**63 - 1))
    rows = [{"value": {"data": 1}, **given} for given in ({}, {"timestamp": timestamp}, {})]
    answer = rest.post(f"{base}/topics/{topic}/records", "\n".join(map(json.dumps, rows)).encode())
    assert [row["error_code"] for row in answer.body] == [200, 40002, 200]


def test_a_body_that_is_not_in_its_encoding_is_refused(rest: RestProcess, base: str) -> None:
    create(rest, "rest-encoding", 1)
    for path in ("/v1/topics/rest-encoding/produce", f"{base}/topics/rest-encoding/records"):
        answer = rest.post(path, b"no gzip", Content_Encoding="gzip")
        assert answer.status == 400 and "cannot be read" in answer.body["message"]


def test_head_of_a_stream_is_refused(rest: RestProcess) -> None:
    """Its lines would be taken for the response to the next request of the connection."""
    create(rest, "rest-head", 1)
    assert rest.post("/v1/topics/rest-head/produce", {"records": [{"value": 1}]}).status == 200
    assert rest.call("HEAD", "/v1/topics/rest-head/consume").status == 405
    assert rest.call("HEAD", rest.cluster_path()).status == 200


def test_many_small_records_count_as_memory(tierlog_session_broker: TierlogBroker, tmp_path: Path) -> None:
    with RestProcess(tmp_path, tierlog_session_broker.bootstrap, "--memory", "64") as rest:
        create(rest, "rest-small", 1)
        body = b'{"records": [%s]}' % b",".join([b"{}"] * 100_000)
        with ThreadPoolExecutor(8) as pool:
            statuses = list(
                pool.map(lambda _: rest.post("/v1/topics/rest-small/produce", body).status, range(8))
            )
        assert 200 in statuses and set(statuses) <= {200, 503}
        assert rest.peak_memory_bytes() < 400 << 20


def test_stream_of_records_has_a_response_for_each_in_order(rest: RestProcess, base: str) -> None:
    create(rest, "rest-stream", 2)
    key = {"type": "BINARY", "data": "AQ=="}
    rows: list[dict[str, Any]] = [
        {"partition_id": number % 2, "key": key, "value": {"type": "STRING", "data": str(number)}}
        for number in range(3000)
    ]
    rows[7]["partition_id"] = 9
    body = "".join(json.dumps(row) for row in rows).encode()
    answer = rest.post(f"{base}/topics/rest-stream/records", body)
    assert answer.status == 200
    assert len(answer.body) == len(rows)
    assert answer.body[7]["error_code"] == 40403
    offsets: dict[int, int] = {}
    for number, row in enumerate(answer.body):
        if number != 7:
            assert (row["error_code"], row["partition_id"]) == (200, number % 2)
            assert row["offset"] == offsets.get(number % 2, 0)
            offsets[number % 2] = row["offset"] + 1
            assert (row["key"], row["value"]["size"]) == ({"type": "BINARY", "size": 1}, len(str(number)))


async def test_response_to_a_record_comes_before_the_next_one_is_sent(rest: RestProcess, base: str) -> None:
    create(rest, "rest-interactive", 1)
    turn: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def body() -> Any:
        while (data := await turn.get()) is not None:
            yield data

    record = json.dumps({"value": {"type": "JSON", "data": 1}}).encode()
    url, headers = f"{rest.url}{base}/topics/rest-interactive/records", {"Content-Type": "application/json"}
    await turn.put(record)
    async with aiohttp.ClientSession() as session, session.post(url, data=body(), headers=headers) as answer:
        for offset in range(3):
            assert json.loads(await answer.content.readline())["offset"] == offset
            await turn.put(record if offset < 2 else None)
        assert await answer.content.read() == b""


def test_one_invalid_record_does_not_fail_the_others_of_its_batch(rest: RestProcess) -> None:
    create(rest, "rest-compacted", 1, cleanup_policy="compact")
    body = {"records": [{"key": "a", "value": 1}, {"value": 2}, {"key": "b", "value": 3}]}
    answer = rest.post("/v1/topics/rest-compacted/produce", body)
    assert (answer.status, answer.body["failed"]) == (207, 1)
    assert [row.get("offset") for row in answer.body["records"]] == [0, None, 1]
    assert answer.body["records"][1]["error_code"] == 40002


def test_avro_is_written_and_read_by_the_schema_registry(rest: RestProcess, registry: Any, base: str) -> None:
    create(rest, "rest-avro", 1)
    fields = [{"name": "origin", "type": "string"}, {"name": "delay", "type": ["null", "int"]}]
    number = registry.register(
        "rest-avro-value", json.dumps({"type": "record", "name": "f", "fields": fields})
    )
    flight = {"origin": "EWR", "delay": {"int": 7}}
    first = {"records": [{"key": "a", "value": flight}], "value_format": "avro"}
    assert rest.post("/v1/topics/rest-avro/produce", first).status == 200
    second = {"value": {"schema_id": number, "data": flight}}
    assert rest.post(f"{base}/topics/rest-avro/records", second).body["value"] == {"type": "AVRO", "size": 11}
    plain = {"value": {"type": "STRING", "data": "no frame"}}
    assert rest.post(f"{base}/topics/rest-avro/records", plain).status == 200
    rows = lines(rest.get("/v1/topics/rest-avro/consume?value_format=avro"))
    assert [row.get("value") for row in rows] == [flight, flight, "bm8gZnJhbWU=", None]
    assert rows[2]["value_error"] == "no frame of a schema registry"


# ---- consume -----------------------------------------------------------------------------------------


def test_stream_begins_where_the_client_says_and_names_where_to_continue(rest: RestProcess) -> None:
    create(rest, "rest-positions", 2, retention_ms="-1")  # the records are of 1970
    records = [{"value": number, "partition": number % 2, "timestamp": 1000 + number} for number in range(20)]
    assert rest.post("/v1/topics/rest-positions/produce", {"records": records}).status == 200

    def read(query: str) -> tuple[list[int], dict[str, Any]]:
        *rows, end = lines(rest.get(f"/v1/topics/rest-positions/consume?{query}"))
        return [row["value"] for row in rows], end

    assert sorted(read("")[0]) == list(range(20))
    assert read("partition=1")[0] == list(range(1, 20, 2))
    assert sorted(read("offset=8")[0]) == [16, 17, 18, 19]
    assert read("offset=0:9")[0] == [18]
    assert sorted(read("timestamp=1015")[0]) == [15, 16, 17, 18, 19]
    assert sorted(read("timestamp=1970-01-01T00:00:01.015Z")[0]) == [15, 16, 17, 18, 19]
    assert read("timestamp=5000") == ([], {"reason": "end", "records": 0, "next_offsets": {"0": 10, "1": 10}})
    assert read("offset=latest&wait_ms=1")[1]["reason"] == "timeout"
    values, end = read("partition=0&max_records=3")
    assert (values, end["reason"], end["next_offsets"]) == ([0, 2, 4], "max_records", {"0": 3})
    assert read("offset=0:3&max_records=2")[0] == [6, 8]
    assert read("partition=0&max_bytes=1")[1] == {
        "reason": "max_bytes",
        "records": 1,
        "next_offsets": {"0": 1},
    }


async def test_long_poll_and_followed_stream_get_new_records(rest: RestProcess) -> None:
    create(rest, "rest-follow", 2)
    url = f"{rest.url}/v1/topics/rest-follow/consume?offset=latest"
    async with aiohttp.ClientSession() as session:
        poll = asyncio.ensure_future(session.get(f"{url}&wait_ms=60000"))
        async with session.get(f"{url}&follow=true") as follow:
            for number in range(3):
                body = {"records": [{"value": number, "partition": number % 2}]}
                await asyncio.to_thread(rest.post, "/v1/topics/rest-follow/produce", body)
                assert json.loads(await follow.content.readline())["value"] == number
            async with await poll as answer:
                rows = [json.loads(line) async for line in answer.content]
            assert rows[0]["value"] == 0
            assert rows[-1]["reason"] == "end"


def test_lists_come_in_pages(rest: RestProcess, base: str) -> None:
    for number in range(3):
        create(rest, f"rest-page-{number}")
    for path, name in ((f"{base}/topics", "topic_name"), (f"{base}/consumer-groups", "consumer_group_id")):
        expected = [row[name] for row in rest.get(path).body["data"]]
        found, url = list[str](), f"{path}?page_size=2"
        while url:
            page = rest.get(url).body
            assert 0 < len(page["data"]) <= 2 or not expected
            found += [row[name] for row in page["data"]]
            url = (page["metadata"]["next"] or "").removeprefix(rest.url)
        assert found == expected
    for wrong in ("0", "1001", "x"):
        assert rest.get(f"{base}/topics?page_size={wrong}").body["error_code"] == 40002


# ---- groups ------------------------------------------------------------------------------------------


def test_groups_and_their_lags(rest: RestProcess, base: str, tierlog_session_broker: TierlogBroker) -> None:
    create(rest, "rest-lag", 2)
    records = [{"value": number, "partition": number % 2} for number in range(10)]
    assert rest.post("/v1/topics/rest-lag/produce", {"records": records}).status == 200
    group = "rest group/é"
    path = f"{base}/consumer-groups/rest%20group%2F%C3%A9"
    consumer = Consumer(
        {
            "bootstrap.servers": tierlog_session_broker.bootstrap,
            "group.id": group,
            "client.id": "laptop",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["rest-lag"])
    assert len(consumer.consume(1, 60)) == 1
    consumer.commit(
        offsets=[TopicPartition("rest-lag", 0, 2), TopicPartition("rest-lag", 1, 4)], asynchronous=False
    )
    found = rest.get(path).body
    assert (found["consumer_group_id"], found["state"], found["is_simple"]) == (group, "STABLE", False)
    listed = {row["consumer_group_id"]: row for row in rest.get(f"{base}/consumer-groups").body["data"]}
    assert listed[group] == found
    (member,) = rest.get(f"{path}/consumers").body["data"]
    assert member["client_id"] == "laptop"
    assert urlsplit(found["lag_summary"]["related"]).path == f"{path}/lag-summary"
    summary = rest.get(f"{path}/lag-summary").body
    assert (summary["max_lag"], summary["total_lag"], summary["max_lag_partition_id"]) == (3, 4, 0)
    assert summary["max_lag_consumer_id"] == member["consumer_id"]
    rows = rest.get(f"{path}/lags").body["data"]
    assert [
        (row["partition_id"], row["current_offset"], row["log_end_offset"], row["lag"]) for row in rows
    ] == [
        (0, 2, 5, 3),
        (1, 4, 5, 1),
    ]
    assert rest.get(f"{path}/lags/rest-lag/partitions/1").body["lag"] == 1
    consumer.close()


def test_topics_and_settings_change_as_the_client_says(rest: RestProcess, base: str) -> None:
    create(rest, "rest-topic", 1, retention_ms="5000000")
    path = f"{base}/topics/rest-topic"
    assert rest.get(f"{path}/configs/retention.ms").body["value"] == "5000000"
    change = {
        "data": [
            {"name": "retention.ms", "operation": "DELETE"},
            {"name": "max.message.bytes", "value": "5000"},
        ]
    }
    assert rest.post(f"{path}/configs:alter", change).status == 204
    settings = {row["name"]: row for row in rest.get(f"{path}/configs").body["data"]}
    assert settings["retention.ms"]["is_default"]
    assert settings["max.message.bytes"]["value"] == "5000"
    assert rest.call("PUT", f"{path}/configs/max.message.bytes", {"value": "6000"}).status == 204
    assert rest.call("DELETE", f"{path}/configs/max.message.bytes").status == 204
    assert rest.get(f"{path}/configs/max.message.bytes").body["is_default"]
    assert rest.call("PATCH", path, {"partitions_count": 3}).body["partitions_count"] == 3
    assert len(rest.get(f"{path}/partitions").body["data"]) == 3
    body = {"topic_name": "rest-dry", "partitions_count": 2, "validate_only": True}
    assert rest.post(f"{base}/topics", body).status == 200
    assert rest.get(f"{base}/topics/rest-dry").status == 404
    assert rest.call("DELETE", path).status == 204
    assert rest.get(path).status == 404


# ---- bad inputs --------------------------------------------------------------------------------------

CONSUME, PRODUCE, RECORDS = (
    "/v1/topics/rest-bad/consume",
    "/v1/topics/rest-bad/produce",
    "{base}/topics/rest-bad/records",
)
ALTER = "{base}/topics/rest-bad/configs:alter"
BAD = [
    ("GET", f"{CONSUME}?offset=x", None, 40002),
    ("GET", f"{CONSUME}?offset=0:x", None, 40002),
    ("GET", f"{CONSUME}?offset=0:0,1", None, 40002),
    ("GET", f"{CONSUME}?offset=1", None, 41601),
    ("GET", f"{CONSUME}?offset=99999999999999999999", None, 40002),
    ("GET", f"{CONSUME}?offset=0&timestamp=0", None, 40002),
    ("GET", f"{CONSUME}?offset=0:0&partition=0", None, 40002),
    ("GET", f"{CONSUME}?timestamp=yesterday", None, 40002),
    ("GET", f"{CONSUME}?partition=9", None, 40403),
    ("GET", f"{CONSUME}?partition=-1", None, 40002),
    ("GET", f"{CONSUME}?partition=", None, 40002),
    ("GET", f"{CONSUME}?max_records=-1", None, 40002),
    ("GET", f"{CONSUME}?wait_ms=999999999", None, 40002),
    ("GET", f"{CONSUME}?follow=maybe", None, 40002),
    ("GET", f"{CONSUME}?value_format=xml", None, 40002),
    ("GET", f"{CONSUME}?isolation=none", None, 40002),
    ("GET", f"{CONSUME}?ofset=0", None, 40002),
    ("GET", "/v1/topics/nowhere/consume", None, 40403),
    ("GET", "/v1/topics/bad%2Fname/consume", None, 40002),
    ("POST", PRODUCE, b"", 40001),
    ("POST", PRODUCE, b"{", 40001),
    ("POST", PRODUCE, b"[]", 40001),
    ("POST", PRODUCE, b'{"records":[{"value":"\xff"}]}', 40001),
    ("POST", PRODUCE, b'{"records":[{"value":' + b"[" * 100_000 + b"}]}", 40001),
    ("POST", PRODUCE, {"records": []}, 40002),
    ("POST", PRODUCE, {"records": [{"valu": 1}]}, 40001),
    ("POST", PRODUCE, {"records": [{"value": 1, "partition": 5}]}, 40403),
    ("POST", PRODUCE, {"records": [{"value": 1, "partition": -1}]}, 40001),
    ("POST", PRODUCE, {"records": [{"value": 1, "partition": 2**40}]}, 40001),
    ("POST", PRODUCE, {"records": [{"value": 1, "timestamp": -5}]}, 40001),
    ("POST", PRODUCE, {"records": [{"key": 5, "value": 1}]}, 40002),
    ("POST", PRODUCE, {"records": [{"value": 1}], "value_format": "xml"}, 40002),
    ("POST", PRODUCE, {"records": [{"value": {"a": 1}}], "value_format": "string"}, 40002),
    ("POST", PRODUCE, {"records": [{"value": 1, "headers": [{"name": "a", "value": "!"}]}]}, 40002),
    ("POST", PRODUCE, {"records": [{"value": 1}], "value_format": "avro"}, 40407),
    ("POST", PRODUCE, {"records": [{"value": "x" * 2_000_000}]}, 41301),
    ("POST", "/v1/topics/nowhere/produce", {"records": [{"value": 1}]}, 40403),
    ("POST", RECORDS, b"", 40002),
    ("POST", RECORDS, b"[]", 40001),
    ("POST", RECORDS, b'{"value"', 40001),
    ("POST", RECORDS, {"value": {"type": "PROTOBUF", "data": 1}}, 40002),
    ("POST", RECORDS, {"value": {"type": "BINARY", "data": "!"}}, 40002),
    ("POST", RECORDS, {"value": {"type": "JSON", "data": 1}, "timestamp": "soon"}, 40002),
    ("POST", RECORDS, {"partition_id": 7}, 40403),
    ("GET", "/v3/clusters/other/topics", None, 40401),
    ("GET", "{base}/topics/nowhere", None, 40403),
    ("GET", "{base}/topics/rest-bad/partitions/x", None, 40403),
    ("GET", "{base}/topics/rest-bad/configs/nothing", None, 40405),
    ("DELETE", "{base}/topics/nowhere", None, 40403),
    ("POST", "{base}/topics", {"topic_name": "bad/name"}, 40002),
    ("POST", "{base}/topics", {"topic_name": "x", "partitions_count": 0}, 40001),
    ("POST", "{base}/topics", {"topic_name": "rest-bad"}, 40002),
    ("POST", "{base}/topics", {"topic_name": "x", "replication_factor": 7}, 40002),
    ("POST", "{base}/topics", {"topic_name": "x", "configs": [{"name": "nothing", "value": "1"}]}, 40002),
    ("POST", ALTER, {"data": [{"name": "retention.ms", "operation": "ADD"}]}, 40002),
    ("POST", ALTER, {"data": [{"name": "retention.ms", "value": "x"}]}, 40002),
    ("PUT", "{base}/topics/rest-bad/configs/nothing", {"value": "1"}, 40002),
    ("PATCH", "{base}/topics/rest-bad", {"partitions_count": 1}, 40002),
    ("GET", "{base}/consumer-groups/nobody-there", None, 40404),
    ("GET", "{base}/consumer-groups/nobody-there/lag-summary", None, 40404),
    ("GET", "{base}/brokers/99", None, 40403),
    ("GET", "/v2/topics", None, 404),
    ("DELETE", "/v3/clusters", None, 405),
]  # fmt: skip


def test_bad_requests_have_a_status_a_code_and_a_message(rest: RestProcess, base: str) -> None:
    create(rest, "rest-bad", 1)
    for method, path, body, code in BAD:
        answer = rest.call(method, path.replace("{base}", base), body)
        found = answer.body[-1] if isinstance(answer.body, list) else answer.body
        assert (answer.status, found["error_code"]) == (int(str(code)[:3]), code), (method, path, answer)
        assert found["message"], (method, path)
    end = lines(rest.get(CONSUME))[-1]
    assert end["next_offsets"] == {"0": 0}  # nothing of it was written


def test_pages_of_other_sites_are_refused(rest: RestProcess) -> None:
    body = {"records": [{"value": 1}]}
    assert rest.get("/v3/clusters", Host="evil.example").body["error_code"] == 42101
    assert rest.post(PRODUCE, body, Content_Type="text/plain").body["error_code"] == 41501
    assert rest.post(PRODUCE, body, Origin="http://evil.example").status == 400
    assert rest.get("/v3/clusters", login="someone:canary-of-rest").status == 401


# ---- limits and stops --------------------------------------------------------------------------------


def slow_reader(rest: RestProcess, topic: str) -> socket.socket:
    """A client that asks for everything and reads nothing."""
    url = urlsplit(rest.url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((url.hostname, url.port))
    path = f"/v1/topics/{topic}/consume?value_format=string"
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode())
    return client


def test_slow_readers_hold_bounded_memory_and_others_are_served(
    tierlog_session_broker: TierlogBroker, tmp_path: Path
) -> None:
    megabytes, readers = 40, 50
    with RestProcess(tmp_path, tierlog_session_broker.bootstrap, "--memory", "8") as rest:
        create(rest, "rest-slow", 1)
        producer = Producer({"bootstrap.servers": tierlog_session_broker.bootstrap, "linger.ms": 5})
        for _ in range(megabytes * 10):
            producer.produce("rest-slow", b"x" * 100_000)
            producer.poll(0)
        assert producer.flush(60) == 0
        before = rest.memory_bytes()
        clients = [slow_reader(rest, "rest-slow") for _ in range(readers)]
        until(
            lambda: rest.metric("tierlog_rest_records_consumed_total") >= readers, "every reader has a batch"
        )
        until(lambda: rest.metric("tierlog_rest_memory_bytes") > 4 << 20, "the budget is half used")
        answer = rest.get("/v1/topics/rest-slow/consume?value_format=string&max_records=30")
        assert len(answer.body) == 31
        assert rest.metric("tierlog_rest_slow_clients_total") > 0  # they made space for it
        assert rest.memory_bytes() - before < 200 << 20  # the streams have 2 GB to send
        for client in clients:
            client.close()
        until(lambda: rest.metric("tierlog_rest_memory_bytes") == 0, "closed streams hold nothing")
        until(lambda: rest.metric("tierlog_rest_streams") == 0, "their streams end")


def test_bytes_of_compressed_batches_count_as_they_are_unpacked(
    tierlog_session_broker: TierlogBroker, tmp_path: Path
) -> None:
    with RestProcess(tmp_path, tierlog_session_broker.bootstrap, "--memory", "8") as rest:
        create(rest, "rest-packed", 1)
        producer = Producer(
            {
                "bootstrap.servers": tierlog_session_broker.bootstrap,
                "compression.type": "zstd",
                "linger.ms": 50,
            }
        )
        for _ in range(200):
            producer.produce("rest-packed", b"x" * 100_000)
        assert producer.flush(60) == 0
        client = slow_reader(rest, "rest-packed")
        until(lambda: rest.metric("tierlog_rest_memory_bytes") > 500_000, "the unpacked batch counts")
        client.close()
        until(lambda: rest.metric("tierlog_rest_memory_bytes") == 0, "it is gone")


def test_requests_beyond_the_limits_are_refused_with_a_time_to_try_again(
    tierlog_session_broker: TierlogBroker, tmp_path: Path
) -> None:
    words = ("--memory", "2", "--max-body", "1", "--max-streams", "1")
    with RestProcess(tmp_path, tierlog_session_broker.bootstrap, *words) as rest:
        create(rest, "rest-limits", 1)
        url = urlsplit(rest.url)
        held = []
        for _ in range(2):  # bodies that lack their last byte
            client = socket.create_connection((url.hostname, url.port))
            head = "POST /v1/topics/rest-limits/produce HTTP/1.1\r\nContent-Type: application/json\r\n"
            head += f"Host: {url.netloc}\r\nContent-Length: {1 << 20}\r\n\r\n"
            client.sendall(head.encode() + b" " * ((1 << 20) - 1))
            held.append(client)
        until(lambda: rest.metric("tierlog_rest_memory_bytes") == (2 << 20) - 2, "both bodies are there")
        refused = rest.post("/v1/topics/rest-limits/produce", {"records": [{"value": 1}]})
        assert (refused.body["error_code"], refused.headers["Retry-After"]) == (50303, "1")
        large = rest.post("/v1/topics/rest-limits/produce", {"records": [{"value": "x" * (1 << 20)}]})
        assert large.body["error_code"] == 41301
        for client in held:
            client.close()
        until(lambda: rest.metric("tierlog_rest_memory_bytes") == 0, "closed connections hold nothing")
        assert rest.post("/v1/topics/rest-limits/produce", {"records": [{"value": 1}]}).status == 200
        records = f"{rest.cluster_path()}/topics/rest-limits/records"
        head = f"POST {records} HTTP/1.1\r\nContent-Type: application/json\r\nHost: {url.netloc}\r\n"
        with socket.create_connection((url.hostname, url.port)) as client:  # a record that never ends
            client.sendall(f"{head}Content-Length: 1000000\r\n\r\n".encode() + b'{"value"' + b" " * 900_000)
            until(lambda: rest.metric("tierlog_rest_memory_bytes") == 900_008, "it counts")
        until(lambda: rest.metric("tierlog_rest_memory_bytes") == 0, "it is gone")
        with socket.create_connection((url.hostname, url.port)) as client:
            path = "/v1/topics/rest-limits/consume?follow=true"
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 200")
            refused = rest.get("/v1/topics/rest-limits/consume")
            assert (refused.body["error_code"], refused.headers["Retry-After"]) == (42901, "1")


async def test_thousand_connections_are_served_at_a_time(rest: RestProcess) -> None:
    create(rest, "rest-many", 2)
    url = f"{rest.url}/v1/topics/rest-many/consume?offset=latest&follow=true"
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        streams = await asyncio.gather(*(session.get(url) for _ in range(1000)))
        assert {stream.status for stream in streams} == {200}
        body = {"records": [{"value": "all", "partition": 1}]}
        assert (await asyncio.to_thread(rest.post, "/v1/topics/rest-many/produce", body)).status == 200
        rows = await asyncio.gather(*(stream.content.readline() for stream in streams))
        assert {json.loads(row)["value"] for row in rows} == {"all"}
        for stream in streams:
            stream.close()


async def test_stop_ends_streams_with_their_last_line(
    tierlog_session_broker: TierlogBroker, tmp_path: Path
) -> None:
    with RestProcess(tmp_path, tierlog_session_broker.bootstrap) as rest:
        create(rest, "rest-stop", 1)
        body = {"records": [{"value": number} for number in range(3)]}
        assert rest.post("/v1/topics/rest-stop/produce", body).status == 200
        url = f"{rest.url}/v1/topics/rest-stop/consume?follow=true"
        async with aiohttp.ClientSession() as session, session.get(url) as stream:
            for _ in range(3):
                await stream.content.readline()
            stopping = asyncio.ensure_future(asyncio.to_thread(rest.stop))
            last = json.loads(await stream.content.readline())
            assert last == {"reason": "stopping", "records": 3, "next_offsets": {"0": 3}}
            assert await stopping == 0


async def test_acknowledged_records_survive_the_death_of_the_gateway(
    tierlog_session_broker: TierlogBroker, tmp_path: Path
) -> None:
    with RestProcess(tmp_path, tierlog_session_broker.bootstrap) as rest:
        create(rest, "rest-killed", 1)
        url = f"{rest.url}{rest.cluster_path()}/topics/rest-killed/records"
        numbers = iter(range(10**9))

        async def body() -> Any:
            for number in numbers:
                await asyncio.sleep(0)  # the responses are read between the records
                yield json.dumps({"value": {"type": "JSON", "data": number}}).encode()

        acknowledged: list[int] = []
        headers = {"Content-Type": "application/json"}
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                async with session.post(url, data=body(), headers=headers) as answer:
                    async for line in answer.content:
                        acknowledged.append(json.loads(line)["offset"])
                        if len(acknowledged) == 500:
                            os.kill(rest.pid, signal.SIGKILL)
    assert acknowledged == list(range(len(acknowledged)))
    found = consumed(tierlog_session_broker, "rest-killed", len(acknowledged), 1)
    assert [int(one.value()) for one in found] == acknowledged
