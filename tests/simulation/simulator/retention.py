"""Retention that deletes tiered records within a run, and a witness that checks each deletion.

Each request of a leader to move the log start is checked when it is sent, with the leader's clock and log:
every batch below the new start must be older than retention.ms, or have retention.bytes above it. The
quorum must commit no other log start. Called by TierWitness for each image that moves one.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from simulator.witness import Violation
from tierlog.base.types import TopicIdPartition
from tierlog.records.batch import BatchHeader, iter_batches
from tierlog.records.record import iter_records

SHARE = 0.4
"""Share of the tiered runs in which retention deletes."""

RETENTION_BYTES = (1000, 2000, 4000)
"""A few segments, less than a partition gets in a run. Never smaller than `local.retention.bytes`."""

RETENTION_MS = (1000, 3000)
"""Shorter than any run."""

NO_LIMIT = -1
MAX_RECORDS_BYTES = 1 << 20


class Limits(NamedTuple):
    """retention.bytes and retention.ms of the topic; -1 for none that takes effect in a run."""

    size: int = NO_LIMIT
    age_ms: int = NO_LIMIT

    @property
    def configs(self) -> Mapping[str, str]:
        wanted = {"retention.bytes": self.size, "retention.ms": self.age_ms}
        return {name: str(value) for name, value in wanted.items() if value != NO_LIMIT}


class Batch(NamedTuple):
    """`newest_ms`: largest timestamp of the records, None without timestamps."""

    base_offset: int
    end_offset: int
    size: int
    newest_ms: int | None


def draw_limits(rng: random.Random) -> Limits:
    """Limits by size, by time, or both."""
    size, age_ms = rng.choice(RETENTION_BYTES), rng.choice(RETENTION_MS)
    return rng.choice((Limits(size), Limits(size), Limits(age_ms=age_ms), Limits(size, age_ms)))


class RetentionWitness:
    """`limits`: by name of the topic."""

    def __init__(self, limits: Mapping[str, Limits], done: Counter[str]) -> None:
        self._limits, self._done = limits, done
        self._faults: defaultdict[tuple[TopicIdPartition, int], list[str | None]] = defaultdict(list)
        """(partition, requested log start) -> the fault of each request, None for a correct one. Refused
        requests count, too: only the sender knows which one was executed."""

    def requested(
        self, where: TopicIdPartition, topic: str, wanted: int, high_watermark: int, fault: str | None
    ) -> None:
        """A leader requests a log start. `fault`: why its log does not allow that, or None."""
        if topic not in self._limits:
            fault = f"{topic} has no retention that deletes within a run"
        elif wanted > high_watermark:
            fault = f"only {high_watermark} is committed"
        self._faults[where, wanted].append(fault)

    def dropped(self, where: TopicIdPartition, wanted: int, fault: str | None) -> None:
        """A leader requests to drop what is remote, and this log start. `fault`: as above."""
        self._faults[where, wanted].append(fault)

    def fault(self, topic: str, batches: Iterable[Batch], wanted: int, now_ms: int) -> str | None:
        """`batches`: all that the leader has, from the log start on; `now_ms`: the leader's clock."""
        limits, known = self._limits.get(topic, Limits()), list(batches)
        above = sum(batch.size for batch in known)
        for batch in known:
            if batch.base_offset >= wanted:
                break
            above -= batch.size
            # without timestamps, its neighbours' or the last write's apply, and that clock may be wrong
            is_old = batch.newest_ms is None or now_ms - batch.newest_ms > limits.age_ms
            if not (is_old and limits.age_ms != NO_LIMIT) and not 0 <= limits.size <= above:
                return f"{batch} is not old at {now_ms}, and {above} bytes are above it: {limits}"
        return None

    def moved(self, where: TopicIdPartition, start: int) -> None:
        """A log start was committed. Raises Violation."""
        faults = self._faults[where, start]
        if None not in faults:
            raise Violation(f"{where}: retention does not allow a log start of {start}: {faults}")
        self._done["log starts moved"] += 1


def batches_of(content: bytes) -> Iterator[Batch]:
    for at, header in iter_batches(content):
        yield Batch(header.base_offset, header.next_offset, header.size, _newest_ms(content, at, header))


def _newest_ms(content: bytes, at: int, header: BatchHeader) -> int | None:
    """From the records: a client may write any timestamp into the header."""
    found = [record.timestamp for record in iter_records(content, at, max_bytes=MAX_RECORDS_BYTES)]
    newest = max(found, default=0)
    return newest if newest > 0 else None
