"""Streams of the REST gateway, in both directions, continue when the leader of their partition dies."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from confluent_kafka.admin import AdminClient
from rest_process import RestProcess

from tierlog.cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
BEFORE, AFTER = 300, 300


async def test_streams_continue_when_the_leader_dies(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path / "nodes", 3, {"min.insync.replicas": "2"}) as cluster,
        RestProcess(tmp_path, cluster.bootstrap) as rest,
    ):
        base = rest.cluster_path()
        body = {"topic_name": "t", "partitions_count": 1, "replication_factor": 3}
        assert rest.post(f"{base}/topics", body).status == 201
        permits = asyncio.Semaphore(BEFORE)
        follow = f"{rest.url}/v1/topics/t/consume?follow=true"
        produce, headers = f"{rest.url}{base}/topics/t/records", {"Content-Type": "application/json"}

        async def records() -> AsyncIterator[bytes]:
            for number in range(BEFORE + AFTER):
                await permits.acquire()
                yield json.dumps({"value": {"type": "JSON", "data": number}}).encode()

        async with (
            aiohttp.ClientSession() as session,
            session.get(follow) as consumed,
            session.post(produce, data=records(), headers=headers) as written,
        ):
            for number in range(BEFORE):
                assert json.loads(await written.content.readline())["offset"] == number
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            leader = admin.list_topics("t", timeout=60).topics["t"].partitions[0].leader
            await asyncio.to_thread(cluster.nodes[leader].kill)
            for _ in range(AFTER):
                permits.release()
            for number in range(BEFORE, BEFORE + AFTER):
                row = json.loads(await written.content.readline())
                assert (row["error_code"], row["offset"]) == (200, number), row
            for number in range(BEFORE + AFTER):  # each once, in order
                row = json.loads(await consumed.content.readline())
                assert (row.get("offset"), row.get("value")) == (number, number), row
