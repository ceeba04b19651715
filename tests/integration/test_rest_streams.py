"""Streams of a REST gateway with little memory: they end, have turns, and do not wait for themselves."""

import asyncio
import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import aiohttp
import pytest
from rest_process import RestProcess
from waiting import until

from tierlog.testing import TierlogBroker


def create(rest: RestProcess, topic: str, partitions: int = 1) -> None:
    until(lambda: rest.metric("tierlog_rest_streams") == 0, "streams of other tests end")
    body = {"topic_name": topic, "partitions_count": partitions}
    assert rest.post(f"{rest.cluster_path()}/topics", body).status == 201


@pytest.fixture(scope="module")
def small(
    tierlog_session_broker: TierlogBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RestProcess]:
    directory = tmp_path_factory.mktemp("small")
    with RestProcess(directory, tierlog_session_broker.bootstrap, "--memory", "1") as process:
        yield process


async def test_streams_that_wait_for_records_leave_the_memory_to_others(small: RestProcess) -> None:
    create(small, "rest-wait")
    url = f"{small.url}/v1/topics/rest-wait/consume?offset=latest&follow=true"
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        streams = await asyncio.gather(*(session.get(url) for _ in range(300)))

        def all_wait() -> None:
            until(lambda: small.metric("tierlog_rest_memory_bytes") == 0, "waiting streams hold nothing")

        for value in ("first", "second"):
            await asyncio.to_thread(all_wait)
            body = {"records": [{"value": value}]}
            answer = await asyncio.to_thread(small.post, "/v1/topics/rest-wait/produce", body)
            assert answer.status == 200, answer
            rows = await asyncio.gather(*(stream.content.readline() for stream in streams))
            assert {json.loads(row)["value"] for row in rows} == {value}
        for stream in streams:
            stream.close()


def test_record_that_comes_in_parts_does_not_wait_for_its_own_memory(small: RestProcess) -> None:
    create(small, "rest-parts")
    url, path = urlsplit(small.url), f"{small.cluster_path()}/topics/rest-parts/records"
    body = json.dumps({"value": {"type": "STRING", "data": "x" * 900_000}}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((url.hostname, url.port), timeout=120) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:800_000])
        until(lambda: small.metric("tierlog_rest_memory_bytes") == 800_000, "the first part is there")
        client.sendall(body[800_000:])
        assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_slow_sender_holds_only_the_bytes_that_it_has_sent(small: RestProcess) -> None:
    create(small, "rest-slow-sender")
    url, path = urlsplit(small.url), "/v1/topics/rest-slow-sender/produce"
    head = f"POST {path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
    body = json.dumps({"records": [{"value": "x" * 900_000}]}).encode()
    with socket.create_connection((url.hostname, url.port), timeout=120) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:1_000])
        until(lambda: small.metric("tierlog_rest_memory_bytes") == 1_000, "the first part is there")
        assert small.call("POST", path, body).status == 200
        client.sendall(body[1_000:])
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    assert small.metric("tierlog_rest_memory_bytes") == 0


def test_followed_stream_ends_with_its_connection_while_no_record_comes(small: RestProcess) -> None:
    create(small, "rest-gone")
    url = urlsplit(small.url)
    with socket.create_connection((url.hostname, url.port)) as client:
        path = "/v1/topics/rest-gone/consume?follow=true"
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert small.metric("tierlog_rest_streams") == 1
    until(lambda: small.metric("tierlog_rest_streams") == 0, "the stream ends")


def test_every_partition_has_its_turn_in_a_stream(small: RestProcess) -> None:
    """Each batch of the first one fills a response."""
    create(small, "rest-turns", 2)
    for first in range(0, 31, 5):
        records = [{"value": "x" * 100_000, "partition": at // 30} for at in range(first, min(first + 5, 31))]
        assert small.post("/v1/topics/rest-turns/produce", {"records": records}).status == 200
    rows = small.get("/v1/topics/rest-turns/consume").body
    assert len(rows) == 32
    assert [row["partition"] for row in rows[:-1]].index(1) < 15
