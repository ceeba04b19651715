"""Verification: checks that the files of a partition are intact and consistent, for `tierlog log verify`.

The log is authoritative: each batch is checked by its CRC and its offsets, and the other files are compared
with it. A problem counts as damage unless a broker repairs it when it starts: the end of a log after the
recovery point may be torn if it was not closed cleanly, and its indexes are rebuilt. Called by the command
line.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tierlog.base.leader_epochs import LeaderEpochs, MalformedEpochs
from tierlog.base.types import NO_EPOCH
from tierlog.broker.storage.checked_batches import LARGEST_BATCH
from tierlog.broker.storage.core.producer_state import MalformedSnapshot
from tierlog.broker.storage.core.retention import LARGEST_RELATIVE_OFFSET
from tierlog.broker.storage.names import (
    EPOCH_CHECKPOINT,
    INDEXES,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    segment_file,
)
from tierlog.broker.storage_tools.index_checks import (
    Check,
    OffsetIndexCheck,
    ProducersCheck,
    TimeIndexCheck,
    TxnIndexCheck,
)
from tierlog.broker.storage_tools.offline import BatchFound, PartitionFiles, UnreadableTail, read_batches
from tierlog.records.errors import RecordsError
from tierlog.records.record import iter_records

MESSAGES_PER_FILE = 5
"""Maximum number of messages per file: an index that belongs to another segment is wrong in every entry."""


class Problem(NamedTuple):
    """`damage`: records are lost or readers get wrong data; otherwise a broker repairs the file when it
    starts."""

    path: Path
    message: str
    damage: bool = True


class Totals:
    """Number of segments, batches, records and bytes checked."""

    def __init__(self) -> None:
        self.segments = self.batches = self.records = self.size = 0


OnBytesRead = Callable[[int], None]
"""Called with the number of bytes that have been read."""


class Verification:
    """Verification of one partition; `problems` runs it once. `records`: also decode all records.
    `compacted`: offsets, and batches that snapshots were built from, may be missing.
    """

    def __init__(
        self,
        partition: PartitionFiles,
        totals: Totals,
        advance: OnBytesRead = lambda size: None,
        *,
        records: bool = False,
        compacted: bool = False,
    ) -> None:
        self._partition = partition
        self._totals = totals
        self._advance = advance
        self._records = records
        self._epochs = LeaderEpochs()
        self._wrong_epoch: int = NO_EPOCH
        self._unconfirmed: Problem | None = None  # the previous batch, if it has an unexpected epoch
        self._producers: ProducersCheck | None = None
        self._snapshots: list[int] = []
        self._unreadable: list[Problem] = []
        self._end = -1  # expected offset of the next batch; -1 after damage
        self._unless_compacted: list[Problem] = []  # problems only if the log was never compacted
        self._compacted = compacted or partition.compacted

    def problems(self) -> Iterator[Problem]:
        """Raises OSError."""
        partition = self._partition
        bases = [base for base in partition.bases if base in partition.chosen]
        yield from self._open(bases[0])
        for base in bases:
            if base > self._end >= 0:
                self._gap(partition.log(base), self._end, base)
            elif base < self._end:
                yield Problem(partition.log(base), f"the segment before it ends at {self._end}")
            self._end = base
            yield from self._segment(base, last=base == partition.bases[-1])
        if self._unconfirmed is not None:
            yield self._unconfirmed
        if bases[-1] == partition.bases[-1]:
            yield from self._compare_snapshots(self._end)
            for offset in self._snapshots:
                yield Problem(
                    self._file(offset, SNAPSHOT),
                    "it is beyond the end of the log",
                    self._is_durable(offset),
                )
        if not self._compacted:
            yield from self._unless_compacted

    def _open(self, base: int) -> Iterator[Problem]:
        partition = self._partition
        path = partition.directory / EPOCH_CHECKPOINT
        try:
            if path.exists():
                self._epochs = LeaderEpochs.decode(path.read_bytes())
        except MalformedEpochs as error:
            yield Problem(path, str(error), damage=False)
        first = self._file(base, SNAPSHOT)
        try:
            self._producers = ProducersCheck(first.read_bytes() if first.exists() else None)
        except MalformedSnapshot as error:
            yield Problem(first, str(error))
        self._snapshots = [offset for offset in partition.snapshots() if offset > base]

    # -- the log --

    def _segment(self, base: int, *, last: bool) -> Iterator[Problem]:
        path, fault, intact = self._partition.log(base), "", True
        checks: dict[Path, Check] = {}
        messages: dict[Path, list[str]] = {}
        for file, check in self._index_checks(base, rolled=not last):
            checks[file] = check
            messages[file] = []
        yield from self._unreadable
        for found in read_batches(path):
            self._advance(found.size)
            if fault:
                yield Problem(path, fault)  # batches follow: it is not a torn end
                self._end, fault = -1, ""
            if isinstance(found, UnreadableTail) or found.fault:
                fault, intact = f"position {found.position}: {found.fault}", False
                self._producers = None
                continue
            yield from self._batch(path, base, found)
            ended = self._producers.batch(found) if self._producers is not None else None
            for file, check in checks.items():
                messages[file] += check.batch(found, ended)
        if fault:
            yield Problem(path, fault, not last or self._is_durable(self._end))
        self._totals.segments += 1
        self._totals.size += path.stat().st_size
        for file, check in checks.items() if intact else ():  # after damage the rest of the log is unknown
            for message in islice([*messages[file], *check.end()], MESSAGES_PER_FILE):
                yield Problem(file, message, self._is_durable(self._end - 1))
        if not intact and not last:
            self._end = -1

    def _batch(self, path: Path, base: int, found: BatchFound) -> Iterator[Problem]:
        header = found.header
        offset = header.base_offset
        self._totals.batches += 1
        self._totals.records += header.record_count
        if header.record_count <= header.last_offset_delta:
            self._compacted = True
        if offset > self._end >= 0:
            self._gap(path, self._end, offset)
        elif offset < max(self._end, base):
            yield Problem(
                path, f"position {found.position}: offset {offset} after {max(self._end, base) - 1}"
            )
        if header.last_offset - base > LARGEST_RELATIVE_OFFSET:
            yield Problem(
                path, f"position {found.position}: offset {header.last_offset} is too far from {base}"
            )
        if self._records:
            yield from self._decode(path, found)
        yield from self._epoch(path, found)
        yield from self._compare_snapshots(offset)
        self._end = header.next_offset

    def _decode(self, path: Path, found: BatchFound) -> Iterator[Problem]:
        last = found.header.base_offset - 1
        try:
            for record in iter_records(found.data, max_bytes=LARGEST_BATCH):
                if record.offset <= last:
                    yield Problem(path, f"position {found.position}: record {record.offset} after {last}")
                last = record.offset
        except RecordsError as error:
            yield Problem(path, f"position {found.position}: {error}")

    def _gap(self, path: Path, end: int, offset: int) -> None:
        self._unless_compacted.append(Problem(path, f"offsets {end} to {offset - 1} are missing"))

    # -- the other files --

    def _index_checks(self, base: int, *, rolled: bool) -> Iterator[tuple[Path, Check]]:
        self._unreadable = []
        for suffix in INDEXES:
            file = self._file(base, suffix)
            content = file.read_bytes() if file.exists() else None
            if content is None and suffix != TXN_INDEX:
                self._unreadable.append(Problem(file, "it is missing", damage=False))
                continue
            try:
                if suffix == OFFSET_INDEX:
                    yield file, OffsetIndexCheck(content or b"", base)
                elif suffix == TIME_INDEX:
                    yield file, TimeIndexCheck(content or b"", base, rolled=rolled)
                else:
                    yield file, TxnIndexCheck(content or b"")
            except RecordsError as error:
                self._unreadable.append(Problem(file, str(error), self._is_durable(base)))

    def _epoch(self, path: Path, found: BatchFound) -> Iterator[Problem]:
        """No CRC covers a batch's epoch or the leader epoch checkpoint. If only one batch disagrees with the
        file, the batch is wrong. If two batches in a row have the same other epoch, the file is.
        """
        header, unconfirmed = found.header, self._unconfirmed
        epoch, expected = header.leader_epoch, self._epochs.epoch_of(header.last_offset)
        self._unconfirmed = None
        if self._epochs.allows(epoch, header.last_offset):
            self._wrong_epoch = NO_EPOCH
        elif unconfirmed is not None and epoch == self._wrong_epoch:
            yield unconfirmed._replace(
                path=self._partition.directory / EPOCH_CHECKPOINT,
                message=f"leader epoch {expected} at offset {header.base_offset}, but {epoch} in the log",
            )
            return
        elif epoch != self._wrong_epoch:  # each wrong epoch is reported once
            self._wrong_epoch = epoch
            at = f"position {found.position}: leader epoch {epoch} at offset {header.base_offset}"
            is_damage = self._is_durable(header.base_offset)
            self._unconfirmed = Problem(path, f"{at}, but {expected} in {EPOCH_CHECKPOINT}", is_damage)
        if unconfirmed is not None:
            yield unconfirmed

    def _compare_snapshots(self, before: int) -> Iterator[Problem]:
        """Compare the snapshots at or below an offset that the log has reached."""
        while self._snapshots and self._snapshots[0] <= before:
            offset = self._snapshots.pop(0)
            path = self._file(offset, SNAPSHOT)
            try:
                messages = list(self._producers.compare(path.read_bytes())) if self._producers else []
            except MalformedSnapshot as error:
                yield Problem(path, str(error), self._is_durable(offset - 1))
                continue
            for message in messages[:MESSAGES_PER_FILE]:
                self._unless_compacted.append(Problem(path, message, self._is_durable(offset - 1)))

    def _file(self, offset: int, suffix: str) -> Path:
        return segment_file(self._partition.directory, offset, suffix)

    def _is_durable(self, offset: int) -> bool:
        """Whether the offset is below the recovery point, so that a broker does not recover its files at
        startup."""
        return self._partition.recovery_point is None or offset < self._partition.recovery_point
