"""Marker sender: markers of this broker are written at once; those that are not written yet are repeated."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from immutables import Map

from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.transactions.core.events import WriteMarkers
from tierlog.broker.transactions.marker_sender import Job, LocalResponse, MarkerSender
from tierlog.metadata.image import ClusterImage, TopicImage
from tierlog.metadata.records import PartitionRecord
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

HERE, TOPIC = 1, uuid.UUID(int=7)


def response(request: WriteTxnMarkersRequest, error: ErrorCode) -> WriteTxnMarkersResponse:
    [marker] = request.markers
    topics = [
        WritableTxnMarkerTopicResult(
            name=topic.name,
            partitions=[
                WritableTxnMarkerPartitionResult(partition_index=each, error_code=error)
                for each in topic.partition_indexes
            ],
        )
        for topic in marker.topics
    ]
    return WriteTxnMarkersResponse(
        markers=[WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)]
    )


class Sending:
    """A marker sender on a broker that leads two partitions. `errors`: of its requests, one after another."""

    def __init__(self, tasks: TaskGroup) -> None:
        record = PartitionRecord(
            topic_id=TOPIC,
            partition=0,
            replicas=(HERE,),
            in_sync=(HERE,),
            leader=HERE,
            leader_epoch=0,
            partition_epoch=0,
        )
        topic = TopicImage(topic_id=TOPIC, name="t", partitions=(record, record))
        image = ClusterImage(cluster_id="c", topics=Map({TOPIC: topic}), topic_ids=Map({"t": TOPIC}))
        self.sender = MarkerSender(HERE, lambda: image, self._write_locally, None, tasks)
        self.errors: list[ErrorCode] = []
        self.waits = False
        self.requests: list[WriteTxnMarkersRequest] = []
        self.done = asyncio.Event()

    def write(self) -> None:
        markers = WriteMarkers(
            transactional_id="id",
            producer_id=7,
            producer_epoch=1,
            commit=True,
            client_version=2,
            partitions=frozenset((TopicPartition("t", 0), TopicPartition("t", 1))),
        )
        self.sender.write(Job(markers, 3, lambda: True, self.done.set))

    def _write_locally(self, request: WriteTxnMarkersRequest) -> LocalResponse:
        self.requests.append(request)
        found = response(request, self.errors.pop(0) if self.errors else ErrorCode.NONE)
        return self._later(found) if self.waits else found

    async def _later(self, found: WriteTxnMarkersResponse) -> WriteTxnMarkersResponse:
        await asyncio.sleep(0)
        return found


@pytest.fixture
async def tasks() -> AsyncIterator[TaskGroup]:
    failures: list[Any] = []
    group = TaskGroup(lambda *failure: failures.append(failure))
    yield group
    await group.close()
    assert failures == []


async def test_markers_of_this_broker_are_written_without_a_task(tasks: TaskGroup) -> None:
    sending = Sending(tasks)
    sending.write()
    assert not sending.requests, "the reply to the client goes first"
    await asyncio.sleep(0)
    assert sending.done.is_set()
    [request] = sending.requests
    [marker] = request.markers
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("t", [0, 1])]


@pytest.mark.parametrize("waits", [True, False])
async def test_markers_are_repeated_until_they_are_written(tasks: TaskGroup, waits: bool) -> None:
    sending = Sending(tasks)
    sending.waits = waits
    sending.errors = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NONE]
    sending.write()
    await sending.done.wait()
    assert len(sending.requests) == 2
