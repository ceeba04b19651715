"""Consumer of `tierlog consume`: reads assigned partitions from both tiers."""

import math
import time
from collections.abc import Iterator
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


class Consumed(NamedTuple):
    partition: int
    record: Record


class Consumer:
    """Reads partitions of one topic. `positions`: next offset of each partition, for a group to commit."""

    def __init__(self, client: KafkaClient, topic: str, positions: dict[int, int]) -> None:
        self.positions = dict(positions)
        self._client = client
        self._topic = topic
        self._failing_since: dict[int, float] = {}
        """Partition -> when its reads began to fail, since the last that succeeded."""
        self._is_reported = False

    def read(self, *, follow: bool) -> Iterator[Consumed]:
        """Yield records up to the current end offsets, or forever with `follow`; in order within a
        partition."""
        count = len(self._client.topic(self._topic).partitions)
        ends = topics.offsets(self._client, self._topic, count, topics.LATEST)
        for partition, position in self.positions.items():
            if position > ends[partition]:
                raise self._out_of_range(partition)
        while follow or any(position < ends[partition] for partition, position in self.positions.items()):
            for leader, partitions in self._by_leader(ends, follow=follow).items():
                for data in self._fetch(leader, partitions):
                    yield from self._records(data, None if follow else ends[data.partition_index])

    def _by_leader(self, ends: dict[int, int], *, follow: bool) -> dict[int, list[int]]:
        wanted = [
            partition
            for partition, position in self.positions.items()
            if follow or position < ends[partition]
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
