"""Marker sender: writes the markers of prepared transactions to the leaders of their partitions.

A marker is sent until its leader has written it: after a failure, and to the new leader if the partition has
moved. A deleted partition needs none. Jobs of a shard that was closed end: the next coordinator writes their
markers, with a higher coordinator epoch. Called by the transaction service.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from tierlog.base.network import Caller, Network, Unreachable
from tierlog.base.safeguards import safeguard
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition, numbers_by_topic
from tierlog.broker.transactions.broker_requests import REQUEST_TIMEOUT_S, BrokerRequests
from tierlog.broker.transactions.core.events import WriteMarkers
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

RETRY_S, RETRY_MAX_S = 0.1, 1.0
"""Pause before a marker is sent again, at first and at most. A new leader is usually elected within half a
second."""

PARTITIONS_PER_MARKER = 1_000
"""Markers that a broker appends in one turn of the event loop."""

DELETED = -2

MARKERS_VERSION = 2

LocalResponse = WriteTxnMarkersResponse | Coroutine[Any, Any, WriteTxnMarkersResponse]
WriteLocally = Callable[[WriteTxnMarkersRequest], LocalResponse]
"""A coroutine if the markers wait for other replicas."""

Errors = dict[TopicPartition, ErrorCode]
_log = structlog.get_logger("tierlog.transactions")


@dataclass(slots=True)
class Job:
    """The markers of one transaction. `is_current`: whether this broker still coordinates it."""

    markers: WriteMarkers
    coordinator_epoch: int
    is_current: Callable[[], bool]
    done: Callable[[], None]


class MarkerSender:
    def __init__(
        self,
        node_id: int,
        image: Callable[[], ClusterImage],
        write_locally: WriteLocally,
        network: Network | None,
        tasks: TaskGroup,
    ) -> None:
        """`write_locally`: carries out a WriteTxnMarkers on this broker. `network`: None if there are no
        others."""
        self._node_id = node_id
        self._image = image
        self._write_locally = write_locally
        self._tasks = tasks
        self._others: BrokerRequests[WritableTxnMarker, Errors] | None = None
        if network is not None:
            self._others = BrokerRequests(
                network, image, tasks, "transaction markers", _exchange, _partitions_of
            )

    def write(self, job: Job) -> None:
        """Write all markers, then call `job.done`: later, so that the client has its reply before."""
        asyncio.get_running_loop().call_soon(self._start, job)

    def close(self) -> None:
        if self._others is not None:
            self._others.close()

    def _start(self, job: Job) -> None:
        """Write the markers at once if this broker leads all partitions and has their only replicas in sync,
        otherwise in a task."""
        if not job.is_current():
            return None
        partitions: Sequence[TopicPartition] = sorted(job.markers.partitions)
        groups = self._by_leader(partitions)
        name, waiting = f"markers of {job.markers.transactional_id}", None
        if len(groups) == 1 and self._leader(groups[0][0]) == self._node_id:
            [partitions] = groups
            found = self._write_locally(WriteTxnMarkersRequest(markers=[_marker(job, partitions)]))
            if isinstance(found, WriteTxnMarkersResponse):
                partitions = self._unwritten(job, partitions, _errors(found)[0])
                if not partitions:
                    return job.done()
            else:
                waiting = self._tasks.spawn(name, found)
        self._tasks.spawn(name, self._write(job, partitions, waiting))
        return None

    async def _write(
        self,
        job: Job,
        partitions: Sequence[TopicPartition],
        waiting: "asyncio.Task[WriteTxnMarkersResponse] | None",
    ) -> None:
        """`waiting`: the response of this broker, which was asked for all partitions."""
        if waiting is not None:
            partitions = self._unwritten(job, partitions, _errors(await waiting)[0])
        await self._write_to_leaders(job, partitions)
        if job.is_current():
            job.done()

    async def _write_to_leaders(self, job: Job, partitions: Sequence[TopicPartition]) -> None:
        """Write to each leader until it has all markers, or other brokers lead the rest. A leader that does
        not answer delays no other."""
        pause_s = RETRY_S
        while job.is_current():
            groups = self._by_leader(partitions)
            if len(groups) > 1:
                await asyncio.gather(*(self._write_to_leaders(job, group) for group in groups))
                return
            if not groups:
                return
            [partitions] = groups
            partitions = await self._send(job, self._leader(partitions[0]), partitions)
            if not partitions:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _by_leader(self, partitions: Sequence[TopicPartition]) -> list[list[TopicPartition]]:
        """The partitions that exist, by leader, in requests of at most PARTITIONS_PER_MARKER."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            leader = self._leader(partition)
            if leader != DELETED:
                by_leader.setdefault(leader, []).append(partition)
        return [
            group[at : at + PARTITIONS_PER_MARKER]
            for group in by_leader.values()
            for at in range(0, len(group), PARTITIONS_PER_MARKER)
        ]

    def _leader(self, partition: TopicPartition) -> int:
        topic = self._image().topic(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            return DELETED
        return topic.partitions[partition.partition].leader

    async def _send(
        self, job: Job, leader: int, partitions: Sequence[TopicPartition]
    ) -> Sequence[TopicPartition]:
        """Returns the partitions that do not have their marker."""
        marker = _marker(job, partitions)
        try:
            if leader == self._node_id:
                found = self._write_locally(WriteTxnMarkersRequest(markers=[marker]))
                response = found if isinstance(found, WriteTxnMarkersResponse) else await found
                errors = _errors(response)[0]
            elif leader >= 0 and self._others is not None:
                errors = await self._others.send(leader, marker)
            else:
                return partitions
        except Unreachable:
            return partitions
        return self._unwritten(job, partitions, errors)

    def _unwritten(
        self, job: Job, partitions: Sequence[TopicPartition], errors: Errors
    ) -> list[TopicPartition]:
        return [each for each in partitions if not self._is_written(job, each, errors.get(each))]

    @safeguard("a marker is sent until its partition has it")
    def _is_written(self, job: Job, partition: TopicPartition, error: ErrorCode | None) -> bool:
        if error == ErrorCode.INVALID_PRODUCER_EPOCH:
            # A later epoch has written here, so this transaction has ended in the partition. Only a log that
            # lost records can show this.
            _log.error(
                "transaction.marker.skipped",
                transactional_id=job.markers.transactional_id,
                partition=str(partition),
            )
            return True
        return error == ErrorCode.NONE


def _partitions_of(marker: WritableTxnMarker) -> int:
    return sum(len(topic.partition_indexes) for topic in marker.topics)


def _marker(job: Job, partitions: Sequence[TopicPartition]) -> WritableTxnMarker:
    numbers = numbers_by_topic(partitions)
    return WritableTxnMarker(
        producer_id=job.markers.producer_id,
        producer_epoch=job.markers.producer_epoch,
        transaction_result=job.markers.commit,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=each) for name, each in numbers.items()],
        coordinator_epoch=job.coordinator_epoch,
        transaction_version=job.markers.client_version,
    )


async def _exchange(caller: Caller, markers: list[WritableTxnMarker]) -> list[Errors]:
    request = WriteTxnMarkersRequest(markers=markers)
    key = BY_NAME["WriteTxnMarkers"].key
    return _errors(await caller.call(key, MARKERS_VERSION, request, REQUEST_TIMEOUT_S))


def _errors(response: WriteTxnMarkersResponse) -> list[Errors]:
    """The errors of each marker, in the order of the request."""
    return [
        {
            TopicPartition(topic.name, each.partition_index): ErrorCode(each.error_code)
            for topic in marker.topics
            for each in topic.partitions
        }
        for marker in response.markers
    ]
