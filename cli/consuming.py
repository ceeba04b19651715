"""Consumer of `tierlog consume`: reads assigned partitions from both tiers."""

import math
import time
from collections.abc import Collection, Iterator
from typing import NamedTuple

from tierlog.cli import topics
from tierlog.cli.client import SLOW_S, KafkaClient, raise_for
from tierlog.cli.errors import CliError, ExitCode
from tierlog.cli.output import print_status
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tierlog.records.batch import iter_batches
from tierlog.records.record import Record, iter_records

MAX_WAIT_MS = 500
PARTITION_MAX_BYTES = 4 << 20
FETCH_MAX_BYTES = 16 << 20
BATCH_MAX_BYTES = 64 << 20  # decompressed; protects against decompression bombs
UNKNOWN_INTERVAL_S = 1.0
"""How often a reader that follows asks for starts which their leaders do not know yet."""


class Consumed(NamedTuple):
    partition: int
    record: Record


class Start(NamedTuple):
    """`positions`: first offset of each partition. `unknown`: partitions whose leader does not know which
    offset `position` is (a timestamp, or LATEST), because it does not know the end."""

    positions: dict[int, int]
    unknown: Collection[int] = ()
    position: int = topics.LATEST


class Consumer:
    """Reads partitions of one topic. `positions`: next offset of each partition, for a group to commit."""

    def __init__(self, client: KafkaClient, topic: str, start: Start) -> None:
        self.positions = dict(start.positions)
        self._client = client
        self._topic = topic
        self._unknown = set(start.unknown)
        self._position = start.position
        self._looked_at = 0.0
        self._failing_since: dict[int, float] = {}
        """Partition -> when its reads began to fail, since the last that succeeded."""
        self._is_reported = False

    def read(self, *, follow: bool) -> Iterator[Consumed]:
        """Yield records up to the current end offsets, or forever with `follow`; in order within a
        partition. Raises CliError in the end if there are partitions whose end is not known."""
        without_end = set(self._unknown)
        ends = topics.offsets(
            self._client, self._topic, list(self.positions), topics.LATEST, unknown=without_end
        )
        for partition, position in self.positions.items():
            if position > ends.get(partition, position):
                raise self._out_of_range(partition)
        if follow and self._unknown:
            waiting = topics.end_unknown(self._topic, self._unknown, "waiting")
            print_status(f"{waiting}. {waiting.hint}")
        while follow or any(position < ends.get(one, 0) for one, position in self.positions.items()):
            if follow and self._unknown:
                self._find_starts()
            for leader, partitions in self._by_leader(ends, follow=follow).items():
                for data in self._fetch(leader, partitions):
                    yield from self._records(data, None if follow else ends[data.partition_index])
        if without_end:
            raise topics.end_unknown(self._topic, without_end, "not read")

    def _find_starts(self) -> None:
        """Add the partitions whose leader knows the end by now."""
        if not self.positions:
            self._client.refresh(self._topic, math.inf, "")
        if time.monotonic() < self._looked_at + UNKNOWN_INTERVAL_S:
            return
        unknown: set[int] = set()
        self.positions |= topics.start_offsets(
            self._client, self._topic, self._unknown, self._position, unknown=unknown, wait_s=0
        )
        self._unknown, self._looked_at = unknown, time.monotonic()

    def _by_leader(self, ends: dict[int, int], *, follow: bool) -> dict[int, list[int]]:
        wanted = [
            partition
            for partition, position in self.positions.items()
            if follow or position < ends.get(partition, 0)
        ]
        found: dict[int, list[int]] = {}
        for partition in wanted:
            found.setdefault(self._client.leader(self._topic, partition), []).append(partition)
        return found

    def _fetch(self, leader: int, partitions: list[int]) -> list[PartitionData]:
        wanted = [
            FetchPartition(
                partition=partition,
                fetch_offset=self.positions[partition],
                partition_max_bytes=PARTITION_MAX_BYTES,
            )
            for partition in partitions
        ]
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_MAX_BYTES,
            isolation_level=topics.READ_COMMITTED,
            topics=[FetchTopic(topic=self._topic, partitions=wanted)],
        )
        response = self._client.call(request, leader)
        raise_for(response.error_code, None, f"fetch from {self._topic}")
        return response.responses[0].partitions if response.responses else []

    def _records(self, data: PartitionData, end: int | None) -> Iterator[Consumed]:
        partition = data.partition_index
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise self._out_of_range(partition)
        if data.error_code:
            code = ErrorCode(data.error_code)
            if not code.retriable:
                raise_for(code, None, f"{self._topic}-{partition}")
            self._retry(partition, code.name, is_patient=end is None)
            return
        self._failing_since.pop(partition, None)
        aborted = sorted(
            data.aborted_transactions or [], key=lambda transaction: transaction.first_offset, reverse=True
        )
        aborting: set[int] = set()  # producers whose aborted transaction contains the current batch
        records = data.records if isinstance(data.records, memoryview) else b""
        for at, header in iter_batches(records):
            while aborted and aborted[-1].first_offset <= header.last_offset:
                aborting.add(aborted.pop().producer_id)
            skipped = header.is_control or (header.is_transactional and header.producer_id in aborting)
            if header.is_control:
                aborting.discard(header.producer_id)
            for record in () if skipped else iter_records(records, at, max_bytes=BATCH_MAX_BYTES):
                if record.offset >= self.positions[partition] and (end is None or record.offset < end):
                    self.positions[partition] = record.offset + 1
                    yield Consumed(partition, record)
            self.positions[partition] = max(self.positions[partition], header.next_offset)

    def _retry(self, partition: int, error: str, *, is_patient: bool) -> None:
        """Pause, and find the leaders again. Raises CliError after the timeout, unless `is_patient`: then it
        prints the problem once."""
        problem, now = f"cannot read {self._topic}-{partition}: {error}", time.monotonic()
        since = self._failing_since.setdefault(partition, now)
        if is_patient and not self._is_reported and now > since + SLOW_S:
            self._is_reported = True
            print_status(f"{problem}; waiting. Run `tierlog cluster health` to see what is wrong.")
        deadline = math.inf if is_patient else since + self._client.timeout_s
        self._client.refresh(self._topic, deadline, problem)

    def _out_of_range(self, partition: int) -> CliError:
        return CliError(
            f"offset {self.positions[partition]:,} of {self._topic}-{partition} is out of range",
            hint=f"See the valid offsets with `tierlog topic describe {self._topic}`.",
            code=ExitCode.NOT_FOUND,
        )
