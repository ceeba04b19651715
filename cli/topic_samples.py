"""Sampler of `tierlog topic analyze`: reads a bounded part of a topic's batches in a range of offsets."""

import time
from collections.abc import Iterator, Mapping, Sequence

from tierlog.cli import topics
from tierlog.cli.client import KafkaClient, raise_for
from tierlog.cli.errors import CliError
from tierlog.cli.topic_analysis import KeySample, PartitionLoad, Slice, slices_of
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tierlog.records.batch import iter_batches
from tierlog.records.errors import RecordsError
from tierlog.records.record import iter_records

MAX_WAIT_MS = 500
PARTITION_MAX_BYTES = 1 << 20
FETCH_MAX_BYTES = 16 << 20
BATCH_MAX_BYTES = 64 << 20  # decompressed; protects against decompression bombs
SLICES = 8
"""Slices of a partition, spread evenly over its range."""

SLICE_BYTES_MIN = 16 << 10
"""Least budget of a slice: a few batches. With many partitions, the sample may therefore exceed its size."""


def read_samples(
    client: KafkaClient,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    sample_bytes: int,
    keys: KeySample | None = None,
) -> list[PartitionLoad]:
    """Sample [first, end) of each partition. `sample_bytes`: of all partitions together. `keys`: gets the
    keys of the records. Raises CliError if a partition cannot be read for the client's timeout."""
    loads = {}
    for partition, (first, end) in sorted(ranges.items()):
        budget = max(sample_bytes // len(ranges), SLICES * SLICE_BYTES_MIN)
        parts = slices_of(partition, first, end, count=SLICES, budget_bytes=budget)
        leader = client.leader(topic, partition)
        loads[partition] = PartitionLoad(
            partition=partition, leader=leader, offsets=(first, end), slices=parts
        )
    sampler = _Sampler(client, topic, loads, keys)
    while sampler.read_more():
        pass
    return list(loads.values())


class _Sampler:
    def __init__(
        self, client: KafkaClient, topic: str, loads: Mapping[int, PartitionLoad], keys: KeySample | None
    ) -> None:
        self._client, self._topic, self._loads, self._keys = client, topic, loads, keys
        self._skipped: set[int] = set()  # partitions whose range was deleted while it was read
        self._progress_at = time.monotonic()

    def read_more(self) -> bool:
        """Read one slice of each partition, or a part of it. Returns False once all are read."""
        pending = list(self._pending())
        by_leader: dict[int, list[Slice]] = {}
        for one in pending:
            by_leader.setdefault(self._client.leader(self._topic, one.partition), []).append(one)
        problem = "no records arrive"
        for leader, wanted in by_leader.items():
            slices = {one.partition: one for one in wanted}
            for data in self._fetch(leader, wanted):
                problem = self._add(slices[data.partition_index], data) or problem
        if pending and time.monotonic() > self._progress_at + self._client.timeout_s:
            raise CliError(
                f"cannot read {self._topic}: {problem}",
                hint="Run `tierlog cluster health` to see what is wrong.",
            )
        return bool(pending)

    def _pending(self) -> Iterator[Slice]:
        for load in self._loads.values():
            waiting = [one for one in load.slices if not one.is_done]
            if waiting and load.partition not in self._skipped:
                yield waiting[0]

    def _fetch(self, leader: int, wanted: Sequence[Slice]) -> list[PartitionData]:
        partitions = [
            FetchPartition(
                partition=one.partition,
                fetch_offset=one.position,
                partition_max_bytes=min(one.budget_bytes - one.bytes, PARTITION_MAX_BYTES),
            )
            for one in wanted
        ]
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_MAX_BYTES,
            isolation_level=topics.READ_UNCOMMITTED,  # aborted records are load, too
            topics=[FetchTopic(topic=self._topic, partitions=partitions)],
        )
        response = self._client.call(request, leader)
        raise_for(response.error_code, None, f"fetch from {self._topic}")
        return response.responses[0].partitions if response.responses else []

    def _add(self, part: Slice, data: PartitionData) -> str:
        """Returns the problem if the partition cannot be read now."""
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._skipped.add(part.partition)
            return ""
        if data.error_code:
            code = ErrorCode(data.error_code)
            if not code.retriable:
                raise_for(code, None, f"{self._topic}-{part.partition}")
            deadline = self._progress_at + self._client.timeout_s
            self._client.refresh(self._topic, deadline, f"cannot read {self._topic}: {code.name}")
            return code.name
        records = data.records if isinstance(data.records, memoryview) else b""
        load = self._loads[part.partition]
        for at, header in iter_batches(records):
            if part.is_done:
                break
            self._progress_at = time.monotonic()
            if not part.add(header):
                continue
            load.batch_bytes.append(header.size)
            load.codec_bytes[header.codec] += header.size
            if self._keys is not None and not header.is_control:
                self._add_keys(self._keys, part.partition, records, at)
        return ""

    def _add_keys(self, keys: KeySample, partition: int, records: "memoryview | bytes", at: int) -> None:
        try:
            for record in iter_records(records, at, max_bytes=BATCH_MAX_BYTES):
                keys.add(partition, record.key, record.value)
        except RecordsError:
            keys.undecoded += 1
