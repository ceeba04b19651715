"""A change and a read sent in one system call: the second response shows the change, as in Kafka."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from controller_and_broker import controller_and_broker
from wire_client import Client, message

from tierlog.records.writer import NewRecord, encode_batch

TOPIC = 2  # resource type
ROUNDS = 5


class Apart:
    """A controller node and a broker that is not a voter: it applies a change before it shows it."""

    def __init__(self, directory: Path) -> None:
        self._controller, self._broker = controller_and_broker(directory)

    async def start(self) -> str:
        await self._controller.start()
        await self._broker.start()
        return self._broker.bootstrap

    async def stop(self) -> None:
        await self._broker.stop()
        await self._controller.stop()


@pytest.fixture(scope="module")
def broker_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that is not a controller, on an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    apart = Apart(tmp_path_factory.mktemp("apart"))
    try:
        yield run(apart.start())
    finally:
        run(apart.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(params=["broker and controller", "broker alone"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    if request.param == "broker alone":
        bootstrap = request.getfixturevalue("broker_alone")
    else:
        bootstrap = request.getfixturevalue("tierlog_session_broker").bootstrap
    with contextlib.closing(Client(bootstrap)) as client:
        yield client


def produce(topic: str) -> tuple[str, int, Any]:
    records = bytes(encode_batch([NewRecord(1_700_000_000_000, b"k", b"v", ())]))
    data = {"name": topic, "partition_data": [{"index": 0, "records": records}]}
    return "Produce", 9, message("Produce", {"acks": -1, "timeout_ms": 5000, "topic_data": [data]})


def list_offsets(topic: str, timestamp: int) -> tuple[str, int, Any]:
    requested = {"name": topic, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}
    return "ListOffsets", 8, message("ListOffsets", {"replica_id": -1, "topics": [requested]})


def metadata(topic: str) -> tuple[str, int, Any]:
    requested = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    return "Metadata", 12, message("Metadata", requested)


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_deleted_records_are_visible_to_pipelined_list_offsets(client: Client, _round: int) -> None:
    topic = client.create(retention_ms="-1")
    requested = {"topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": -1}]}]}
    delete = ("DeleteRecords", 2, message("DeleteRecords", {**requested, "timeout_ms": 5000}))
    answers = client.send_together(
        produce(topic), produce(topic), list_offsets(topic, -1), delete, list_offsets(topic, -2)
    )
    offsets = [answers[at].topics[0].partitions[0].offset for at in (2, 4)]
    assert (offsets, answers[3].topics[0].partitions[0].low_watermark) == ([2, 2], 2)


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_topic_changes_are_visible_to_pipelined_requests(client: Client, _round: int) -> None:
    topic = client.create()
    grow = {"topics": [{"name": topic, "count": 3, "assignments": None}], "timeout_ms": 5000}
    delete = {"topics": [{"name": topic}], "timeout_ms": 5000}
    create = {"topics": [{"name": topic, "num_partitions": 2, "replication_factor": 1}], "timeout_ms": 5000}
    shown = client.send_together(
        ("CreatePartitions", 3, message("CreatePartitions", grow)),
        metadata(topic),
        ("DeleteTopics", 6, message("DeleteTopics", delete)),
        metadata(topic),
        ("CreateTopics", 7, message("CreateTopics", create)),
        metadata(topic),
    )[1::2]
    assert [len(answer.topics[0].partitions) for answer in shown] == [3, 0, 2]


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_altered_settings_are_visible_to_pipelined_describe(client: Client, _round: int) -> None:
    topic = client.create()
    change = {"name": "retention.ms", "config_operation": 0, "value": "77777"}
    altered = {"resource_type": TOPIC, "resource_name": topic, "configs": [change]}
    requested = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["retention.ms"]}
    _, described = client.send_together(
        ("IncrementalAlterConfigs", 1, message("IncrementalAlterConfigs", {"resources": [altered]})),
        ("DescribeConfigs", 4, message("DescribeConfigs", {"resources": [requested]})),
    )
    assert described.results[0].configs[0].value == "77777"


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_committed_offsets_are_visible_to_pipelined_offset_fetch(client: Client, _round: int) -> None:
    topic = client.create()
    client.coordinator(topic)
    where = {"partition_index": 0, "committed_offset": 7}
    commit = {"group_id": topic, "topics": [{"name": topic, "partitions": [where]}]}
    fetch = {"group_id": topic, "topics": [{"name": topic, "partition_indexes": [0]}]}
    _, fetched = client.send_together(
        ("OffsetCommit", 8, message("OffsetCommit", commit)),
        ("OffsetFetch", 5, message("OffsetFetch", fetch)),
    )
    assert fetched.topics[0].partitions[0].committed_offset == 7


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_offset_fetch_does_not_show_a_commit_that_was_sent_after_it(client: Client, _round: int) -> None:
    topic = client.create()
    client.coordinator(topic)

    def commit(offset: int) -> tuple[str, int, Any]:
        where = {"partition_index": 0, "committed_offset": offset}
        requested = {"group_id": topic, "topics": [{"name": topic, "partitions": [where]}]}
        return "OffsetCommit", 8, message("OffsetCommit", requested)

    fetch = {"group_id": topic, "topics": [{"name": topic, "partition_indexes": [0]}]}
    _, fetched, _ = client.send_together(
        commit(1), ("OffsetFetch", 5, message("OffsetFetch", fetch)), commit(2)
    )
    assert fetched.topics[0].partitions[0].committed_offset == 1
