"""Fetch response: the data of each partition, and the two ways to encode a response.

A response without errors, diverging epochs, aborted transactions and preferred replicas is plain: from v15
on it is encoded without the codec's message classes. The bytes equal the codec's
(tests/unit/handlers/test_fetch_response.py) and take a third of the time. Called by `fetch`.
"""

from collections.abc import Sequence
from struct import Struct
from uuid import UUID

from tierlog.base.files import Part
from tierlog.base.leader_epochs import UNKNOWN_END, EpochEnd
from tierlog.base.slices import LogSlice
from tierlog.broker.handlers.context import RawReply
from tierlog.broker.handlers.nearest_replica import LEADER_ITSELF
from tierlog.broker.replication.replica import Replica
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from tierlog.protocol.primitives import uvarint

PLAIN_FROM = 15  # first version that is encoded as plain
_HEAD = Struct(">ihi").pack  # throttle time, error, session
_PARTITION = Struct(">ihqqqBi").pack
"""Index, error, high watermark, last stable offset, log start, aborted transactions, preferred replica."""
_NULL = 0
_NO_TAGS = b"\0"
_NO_RECORDS = b"\1"


class FetchPartitionData:
    """The result for one partition, as Kafka's FetchPartitionData. With a `replica`, the offsets are taken
    from it when the response is sent, because they may move while the request waits.
    """

    __slots__ = (
        "aborted", "diverging", "error_code", "high_watermark", "last_stable_offset", "log_start_offset",
        "partition", "preferred_replica", "records", "replica",
    )  # fmt: skip

    def __init__(
        self, partition: int, replica: Replica | None = None, records: LogSlice | None = None
    ) -> None:
        self.partition = partition
        self.replica = replica
        self.records = records
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1
        self.error_code = 0
        self.aborted: Sequence[tuple[int, int]] | None = None
        """Producer id and first offset of each aborted transaction; None unless `read_committed`."""
        self.diverging: EpochEnd = UNKNOWN_END
        self.preferred_replica = LEADER_ITSELF

    def fail(self, code: ErrorCode) -> None:
        self.error_code = code
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1
        self.replica = self.records = self.aborted = None

    def update_offsets(self) -> None:
        """Set the offsets to those of the replica, if there is one."""
        replica = self.replica
        if replica is not None:
            self.high_watermark = replica.high_watermark
            self.last_stable_offset = replica.last_stable_offset
            self.log_start_offset = replica.log_start_offset

    @property
    def must_be_sent(self) -> bool:
        """Whether a fetch session must send the partition even if its error and offsets have not changed."""
        if self.records is not None:
            return True
        return self.diverging.end_offset >= 0 or self.preferred_replica != LEADER_ITSELF

    @property
    def is_plain(self) -> bool:
        if self.error_code or self.aborted is not None:
            return False
        return self.diverging.end_offset < 0 and self.preferred_replica == LEADER_ITSELF


FetchedPartitions = list[tuple[str | UUID, FetchPartitionData]]
"""Topic name or id, and one of its partitions. Consecutive partitions of a topic share an entry of the
response."""


def response_message(session_id: int, response_data: FetchedPartitions) -> FetchResponse:
    """The response for the codec, in any version."""
    response = FetchResponse(session_id=session_id)
    for topic, data in response_data:
        last = response.responses[-1] if response.responses else None
        if last is not None and topic in (last.topic, last.topic_id):
            last.partitions.append(_partition_data(data))
            continue
        entry = FetchableTopicResponse(partitions=[_partition_data(data)])
        if isinstance(topic, str):
            entry.topic = topic
        else:
            entry.topic_id = topic
        response.responses.append(entry)
    return response


def _partition_data(data: FetchPartitionData) -> PartitionData:
    partition = PartitionData(
        partition_index=data.partition,
        error_code=data.error_code,
        high_watermark=data.high_watermark,
        last_stable_offset=data.last_stable_offset,
        log_start_offset=data.log_start_offset,
        aborted_transactions=None,
        preferred_read_replica=data.preferred_replica,
        records=b"" if data.records is None else data.records,
    )
    if data.diverging.end_offset >= 0:
        epoch, end_offset = data.diverging
        partition.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
    if data.aborted is not None:
        partition.aborted_transactions = [
            AbortedTransaction(producer_id=producer, first_offset=first) for producer, first in data.aborted
        ]
    return partition


def plain_response(session_id: int, response_data: FetchedPartitions) -> RawReply | None:
    """The encoded response, in v15 or later. None if a partition is not plain."""
    topics: list[tuple[UUID, list[FetchPartitionData]]] = []
    for topic, data in response_data:
        if not data.is_plain or isinstance(topic, str):
            return None
        if topics and topics[-1][0] == topic:
            topics[-1][1].append(data)
        else:
            topics.append((topic, [data]))
    parts: list[Part] = []
    pieces = [_HEAD(0, 0, session_id), uvarint(len(topics) + 1)]
    for topic, partitions in topics:
        pieces.append(topic.bytes)
        pieces.append(uvarint(len(partitions) + 1))
        for data in partitions:
            high, stable, start = data.high_watermark, data.last_stable_offset, data.log_start_offset
            pieces.append(_PARTITION(data.partition, 0, high, stable, start, _NULL, LEADER_ITSELF))
            records = data.records
            if records is None:
                pieces.append(_NO_RECORDS)
            else:
                pieces.append(uvarint(records.size + 1))
                parts.append(b"".join(pieces))
                parts.extend(records.parts)
                pieces = []
            pieces.append(_NO_TAGS)
        pieces.append(_NO_TAGS)
    pieces.append(_NO_TAGS)
    parts.append(b"".join(pieces))
    return RawReply(parts)
