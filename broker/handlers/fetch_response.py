"""Fetch responses: the data of each partition, and the two encodings of a response.

A response without an error, a diverging epoch or aborted transactions is plain: from v15 on it is encoded
without the codec's message classes. The bytes equal the codec's (tests/unit/handlers/test_fetch_response.py)
and take a third of the time. Called by `fetch`.
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

PLAIN_FROM = 15  # KIP-903
_HEAD = Struct(">ihi").pack  # throttle time, error, session
_PARTITION = Struct(">ihqqqBi").pack
"""Index, error, high watermark, last stable offset, log start, aborted transactions, preferred replica."""
_NULL = 0
_NO_TAGS = b"\0"
_NO_RECORDS = b"\1"


class FetchPartitionData:
    """One partition of a response. `replica`: the offsets are its at the time of the response; they may move
    while the request waits.
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
        self.aborted: Sequence[tuple[int, int]] | None = (
            None  # (producer id, first offset), if read_committed
        )
        self.diverging: EpochEnd = UNKNOWN_END
        self.preferred_replica = LEADER_ITSELF

    def fail(self, code: ErrorCode) -> None:
        self.error_code = code
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1
        self.replica = self.records = self.aborted = None

    def take_offsets(self) -> None:
        """Take the offsets of the replica."""
        replica = self.replica
        if replica is not None:
            self.high_watermark = replica.high_watermark
            self.last_stable_offset = replica.last_stable_offset
            self.log_start_offset = replica.log_start_offset

    @property
    def is_noteworthy(self) -> bool:
        """Whether the client must get it although its error and offsets are as before."""
        if self.records is not None:
            return True
        return self.diverging.end_offset >= 0 or self.preferred_replica != LEADER_ITSELF

    @property
    def is_plain(self) -> bool:
        if self.error_code or self.aborted is not None:
            return False
        return self.diverging.end_offset < 0 and self.preferred_replica == LEADER_ITSELF


FetchedPartitions = list[tuple[str | UUID, FetchPartitionData]]
"""Topic and partition. Consecutive partitions of a topic share its entry."""


def whole_response(session_id: int, fetched: FetchedPartitions) -> FetchResponse:
    response = FetchResponse(session_id=session_id)
    for topic, data in fetched:
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


def _partition_data(fetched: FetchPartitionData) -> PartitionData:
    data = PartitionData(
        partition_index=fetched.partition,
        error_code=fetched.error_code,
        high_watermark=fetched.high_watermark,
        last_stable_offset=fetched.last_stable_offset,
        log_start_offset=fetched.log_start_offset,
        aborted_transactions=None,
        preferred_read_replica=fetched.preferred_replica,
        records=b"" if fetched.records is None else fetched.records,
    )
    if fetched.diverging.end_offset >= 0:
        epoch, end_offset = fetched.diverging
        data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
    if fetched.aborted is not None:
        data.aborted_transactions = [
            AbortedTransaction(producer_id=producer, first_offset=first)
            for producer, first in fetched.aborted
        ]
    return data


def plain_response(session_id: int, fetched: FetchedPartitions) -> RawReply | None:
    """The body from v15 on. None: the data of a partition is not plain."""
    topics: list[tuple[UUID, list[FetchPartitionData]]] = []
    for topic, data in fetched:
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
            found = data.records
            if found is None:
                pieces.append(_NO_RECORDS)
            else:
                pieces.append(uvarint(found.size + 1))
                parts.append(b"".join(pieces))
                parts.extend(found.parts)
                pieces = []
            pieces.append(_NO_TAGS)
        pieces.append(_NO_TAGS)
    pieces.append(_NO_TAGS)
    parts.append(b"".join(pieces))
    return RawReply(parts)
