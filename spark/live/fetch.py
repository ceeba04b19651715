"""Raw Fetch of an offset range, on an executor: record batches as the broker has them, and aborted ranges.

The next Fetch is under way while the caller decodes. A range ends below the last stable offset of its plan,
so each response tells all transactions that are aborted in it (`read_committed`). If the broker has deleted
the local copy of a segment, it reads the records from the bucket itself.
"""

import time
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tierlog.client import ClientError, Cluster, TimedOut, Unreachable, error_name, is_retriable
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from tierlog.records.batch import BatchHeader, Buffer, iter_batches
from tierlog.records.columnar import AbortedRange
from tierlog.spark.history.plan import MAX_OFFSET, OffsetRange, OffsetsUnavailable, Source
from tierlog.spark.live.connection import pooled
from tierlog.spark.live.positions import (
    EARLIEST,
    READ_COMMITTED,
    TIMEOUTS,
    BrokerUnavailable,
    list_offsets,
)
from tierlog.spark.options.stream import LiveOptions

MAX_WAIT_MS = 500


class TopicRecreated(RuntimeError):
    """The topic of the checkpoint was deleted, and perhaps created again: its offsets mean nothing there."""


class Fetched(NamedTuple):
    """Complete batches. The first one may begin below `first_offset`, with records that are not wanted or
    were deleted. `next_offset` is the position after the batches."""

    batches: Buffer
    aborted: Sequence[AbortedRange]
    first_offset: int
    next_offset: int


def fetch_range(
    live: LiveOptions, source: Source, offsets: OffsetRange, *, fail_on_data_loss: bool
) -> Iterator[Fetched]:
    """The batches that contain the offsets, in order. Raises OffsetsUnavailable, TopicRecreated and
    BrokerUnavailable."""
    with pooled(live) as cluster, ThreadPoolExecutor(1) as pool:
        fetcher = _Fetcher(cluster, live, source, offsets, fail_on_data_loss)
        pending = pool.submit(fetcher.next)
        while (fetched := pending.result()) is not None:
            pending = pool.submit(fetcher.next)
            yield fetched


class _Fetcher:
    def __init__(
        self,
        cluster: Cluster,
        live: LiveOptions,
        source: Source,
        offsets: OffsetRange,
        fail_on_data_loss: bool,
    ) -> None:
        self._cluster = cluster
        self._live = live
        self._source = source
        self._position = offsets.start
        self._end = offsets.end
        self._fail_on_data_loss = fail_on_data_loss

    def next(self) -> Fetched | None:
        """The next batches of the range; None at its end."""
        deadline = time.monotonic() + TIMEOUTS * self._live.timeout_s
        while self._position < self._end:
            try:
                data = self._fetch()
            except (Unreachable, TimedOut) as failure:
                self._retry(deadline, str(failure))
                continue
            except ClientError as failure:
                raise BrokerUnavailable(f"{self._source}: {failure}") from failure
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._skip_lost()
            elif data.error_code:
                self._retry(deadline, self._retriable(data.error_code))
            elif batches := list(iter_batches(records_of(data))):
                return self._advance(data, batches)
            else:
                self._retry(deadline, "the response has no records")
        return None

    def _fetch(self) -> PartitionData:
        source = self._source
        wanted = FetchPartition(
            partition=source.partition,
            fetch_offset=self._position,
            partition_max_bytes=self._live.fetch_bytes,
        )
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=self._live.fetch_bytes,
            isolation_level=READ_COMMITTED,
            topics=[FetchTopic(topic=source.topic, topic_id=source.topic_id, partitions=[wanted])],
        )
        response = self._cluster.call(request, self._cluster.leader(source.topic, source.partition))
        if response.error_code or not response.responses:
            return PartitionData(error_code=response.error_code)
        data: PartitionData = response.responses[0].partitions[0]
        return data

    def _advance(self, data: PartitionData, batches: list[tuple[int, BatchHeader]]) -> Fetched:
        first, last = self._position, batches[-1]
        self._position = max(self._position, last[1].next_offset)
        content = memoryview(records_of(data))[: last[0] + last[1].size]
        aborted = aborted_ranges(data.aborted_transactions or (), batches)
        return Fetched(content, aborted, first, self._position)

    def _retriable(self, code: int) -> str:
        """The problem, if it may end by itself."""
        problem = error_name(code)
        if not is_retriable(code):
            raise BrokerUnavailable(f"{self._source}: cannot read offset {self._position:,}: {problem}")
        return problem

    def _retry(self, deadline: float, problem: str) -> None:
        """Pause, and look for the leader again at the next request. After the deadline, raise."""
        source = self._source
        try:
            self._cluster.refresh(source.topic, deadline, problem)
            is_same = self._cluster.topic(source.topic).topic_id == source.topic_id
        except (Unreachable, TimedOut):
            return
        except ClientError as failure:
            text = f"{source}: cannot read offset {self._position:,} of [.., {self._end:,}): {failure}"
            raise BrokerUnavailable(text) from failure
        if not is_same:
            raise TopicRecreated(f"{source}: the topic with the id {source.topic_id} was deleted")

    def _skip_lost(self) -> None:
        """Continue at the log start offset, if records were deleted and that is allowed. Brokers do not
        return it with the error. If the log ends before the position, nothing is left of the range."""
        start = list_offsets(self._cluster, {self._source: EARLIEST})[self._source]
        missing = f"{self._source}: offset {self._position:,} is not on the brokers"
        reason = (
            f"{missing}, whose log starts at {start:,}"
            if start > self._position
            else f"{missing}: the log of the leader ends before it, as after an unclean election"
        )
        if self._fail_on_data_loss:
            raise OffsetsUnavailable(f"{reason}; set failOnDataLoss=false to read the available offsets")
        warnings.warn(f"{reason}: records were lost", stacklevel=2)
        self._position = min(start, self._end) if start > self._position else self._end


def records_of(data: PartitionData) -> Buffer:
    return data.records if isinstance(data.records, memoryview) else b""


def aborted_ranges(
    aborted: Sequence[AbortedTransaction], batches: Sequence[tuple[int, BatchHeader]]
) -> list[AbortedRange]:
    """The aborted transactions with their ends: a response has the first offsets, and the control batches of
    the producers end them. A transaction without one among the batches ends after them."""
    if not aborted:
        return []
    markers: dict[int, list[int]] = {}
    for _, header in batches:
        if header.is_control:
            markers.setdefault(header.producer_id, []).append(header.base_offset)
    ranges = []
    for txn in aborted:
        ends = markers.get(txn.producer_id, [])
        at = bisect_right(ends, txn.first_offset)
        end = ends[at] if at < len(ends) else MAX_OFFSET
        ranges.append(AbortedRange(txn.producer_id, txn.first_offset, end))
    return ranges
