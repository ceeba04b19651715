"""WriteTxnMarkers (v1-2): ends transactions in partitions that this broker leads. Sent by the transaction
coordinator, which repeats a marker until its partition has it.

A marker of `__consumer_offsets` goes through the group coordinator, which then commits or drops the offsets
of the transaction. Others are appended to the log. Each is acknowledged like a write with acks=all.
"""

import asyncio

from tierlog.broker.coordinators.core.effects import Producer
from tierlog.broker.groups.group_service import GroupService
from tierlog.broker.handlers.context import Pending, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.purgatory import Write
from tierlog.broker.replication.replica import Replica
from tierlog.broker.transactions.marker_sender import LocalResponse
from tierlog.config.topic import OFFSETS_TOPIC
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tierlog.records.markers import EndMarker

ACKS_ALL = -1
TIMEOUT_MS = 5_000
"""Time for the replicas. A marker that is not acknowledged by then is in the log, and is sent again."""


_Offsets = list[tuple[WritableTxnMarkerPartitionResult, "asyncio.Future[ErrorCode]"]]


class _Append:
    """An appended marker that waits until the replica acknowledges it."""

    __slots__ = ("end_offset", "leader_epoch", "replica", "result")

    def __init__(self, replica: Replica, end_offset: int, result: WritableTxnMarkerPartitionResult) -> None:
        self.replica = replica
        self.end_offset = end_offset
        self.leader_epoch = replica.leader_epoch
        self.result = result

    def is_complete(self) -> bool:
        error = self.replica.as_leader.acknowledgement(self.end_offset, ACKS_ALL, self.leader_epoch)
        if error is not None:
            self.result.error_code = error
        return error is not None


class MarkerWriter:
    def __init__(self, deps: Dependencies, groups: GroupService) -> None:
        self._deps = deps
        self._groups = groups

    def handle(self, context: RequestContext, request: WriteTxnMarkersRequest) -> Reply | Pending:
        found = self._write_all(request)
        return found if isinstance(found, WriteTxnMarkersResponse) else Pending(found)

    def write_locally(self, request: WriteTxnMarkersRequest) -> LocalResponse:
        """The markers of this broker's own transaction coordinator."""
        return self._write_all(request)

    def _write_all(self, request: WriteTxnMarkersRequest) -> LocalResponse:
        response = WriteTxnMarkersResponse()
        appends: list[_Append] = []
        offsets: _Offsets = []
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                results = [
                    self._write(marker, topic.name, index, appends, offsets)
                    for index in topic.partition_indexes
                ]
                topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=results))
            response.markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        waiting = [each for each in appends if not each.is_complete()]
        return self._finish(response, waiting, offsets) if waiting or offsets else response

    def _write(
        self,
        marker: WritableTxnMarker,
        topic: str,
        index: int,
        appends: list[_Append],
        offsets: _Offsets,
    ) -> WritableTxnMarkerPartitionResult:
        result = WritableTxnMarkerPartitionResult(partition_index=index)
        found = self._deps.find_leader(topic, index)
        if not isinstance(found, Replica):
            result.error_code = found
            return result
        end = EndMarker(marker.transaction_result, marker.coordinator_epoch)
        if topic == OFFSETS_TOPIC:
            producer = Producer(marker.producer_id, marker.producer_epoch)
            error = self._groups.end_transaction(index, producer, end, marker.transaction_version)
            if isinstance(error, asyncio.Future):
                offsets.append((result, error))
            else:
                result.error_code = error
            return result
        appended = found.as_leader.append_marker(
            marker.producer_id,
            marker.producer_epoch,
            end,
            self._deps.clock.now_ms(),
            transaction_version=marker.transaction_version,
        )
        result.error_code = appended.error
        if appended.error == ErrorCode.NONE:
            appends.append(_Append(found, appended.last_offset + 1, result))
        return result

    async def _finish(
        self, response: WriteTxnMarkersResponse, waiting: list[_Append], offsets: _Offsets
    ) -> WriteTxnMarkersResponse:
        def expire() -> WriteTxnMarkersResponse:
            for each in waiting:
                if not each.is_complete():
                    each.result.error_code = ErrorCode.REQUEST_TIMED_OUT
            return response

        if waiting:
            writes = [Write(each.replica.name, ACKS_ALL, each.is_complete) for each in waiting]
            reply = self._deps.purgatory.wait_in_order(writes, TIMEOUT_MS, response, expire)
            if isinstance(reply, Pending):
                await reply.work
        for result, error in offsets:
            result.error_code = await error
        return response
