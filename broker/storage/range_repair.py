"""Range repair: replaces a damaged range of a log with the same batches from another replica.

Replicas have the same bytes as their leader, so the intact batches have the same length as the range and are
written over it in place. Batches before and after it, the indexes and the log end stay unchanged. The range
is not served until the file is synced, so after a crash in between it is either still damaged or intact.
Replicas that were compacted at different times may have other batches; those do not fit, and the log is
truncated instead (`maintenance/log_repair.py`).

`sync` waits for the disk, in a thread; everything else runs on the event loop.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from tierlog.base.files import Buffer
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.base.open_files import SharedFile
from tierlog.broker.storage.core.continuity import MAX_OFFSET, HeaderRules
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.segment import CorruptLog, Damage, Segment
from tierlog.records.batch import HEADER_SIZE, check_batch, iter_batches, read_header
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import OFFSET_ENTRY


class CheckedPrefix(NamedTuple):
    """Intact batches that follow each other: their size, the offset after them, and the last leader epoch."""

    size: int
    next_offset: int
    epoch: int


def rules_of(log: PartitionLog, end_offset: int = MAX_OFFSET) -> HeaderRules:
    """The rules that batches of another replica must satisfy to belong to this log.

    Offset and leader epoch together identify a batch on any replica (Raft, section 5.3: log matching).
    """
    return HeaderRules(gaps=log.may_have_gaps, epochs=LeaderEpochs(log.epochs.entries), end_offset=end_offset)


def check(content: Buffer, start: CheckedPrefix, end_offset: int, rules: HeaderRules) -> CheckedPrefix:
    """Check the batches in `content` that begin below `end_offset`, after the prefix `start`. Raises
    CorruptLog.

    If the rules allow gaps and end at `end_offset`, a gap may reach beyond it. The checked prefix then ends
    at `end_offset`. A base offset that a flipped bit raised looks like such a gap, so the caller must also
    compare the length (`fits`).
    """
    size, offset, epoch = start
    at = 0
    while offset < end_offset and len(content) - at >= HEADER_SIZE:
        try:
            header = read_header(content, at)
            if header.size > len(content) - at:
                break
            if header.base_offset >= end_offset:
                offset = end_offset if rules.gaps and rules.end_offset == end_offset else offset
                break
            check_batch(content, at)
        except RecordsError as damage:
            raise CorruptLog(str(damage)) from None
        fault = rules.fault(header, offset)
        if fault or header.leader_epoch < epoch:
            raise CorruptLog(fault or f"leader epoch {header.leader_epoch} follows {epoch}")
        at += header.size
        offset, epoch = header.next_offset, header.leader_epoch
    return CheckedPrefix(size + at, offset, epoch)


class RangeRepair:
    """Repair of one range: `write` and `sync` the content if it `fits`, then `finish`.

    It must be abandoned when the segment has changed (`is_current`).
    """

    def __init__(self, log: PartitionLog, segment: Segment, damage: Damage) -> None:
        self.damage = damage
        self._log = log
        self._segment = segment
        self._content_version, self._swaps = segment.content_version, log.swaps
        self._file: SharedFile | None = None
        self._epochs: list[tuple[int, int]] = []  # leader epoch and base offset of each written batch

    @property
    def size(self) -> int:
        return self.damage.end_position - self.damage.position

    @property
    def is_current(self) -> bool:
        log, segment = self._log, self._segment
        same = segment.content_version == self._content_version and log.swaps is self._swaps
        return same and log.has(segment) and self.damage in segment.damage

    def fits(self, content: Buffer) -> bool:
        """Whether the content has the length of the range and its batches begin where the index says. Raises
        OSError.
        """
        if len(content) != self.size:
            return False
        segment, damage = self._segment, self.damage
        index, count = segment.offset_index, segment.index_entries
        batch_positions = {damage.position + at for at, _ in iter_batches(content)}

        def position(entry: int) -> int:
            return int(OFFSET_ENTRY.unpack_from(index, entry * OFFSET_ENTRY.size)[1])

        first = bisect_left(range(count), damage.position, key=position)
        indexed = takewhile(lambda at: at < damage.end_position, map(position, range(first, count)))
        fits = batch_positions.issuperset(indexed)
        segment.unload()  # the index of a rolled segment was read for this
        return fits

    def write(self, content: Buffer) -> None:
        """Write the content. After an OSError, as after a crash, the range is still damaged.

        Uses a file descriptor of its own: the kernel reports a failed write once per descriptor, and the
        log's descriptor must still report failures of the log's own writes.
        """
        segment = self._segment
        self._file = SharedFile(segment.files, segment.path())
        segment.files.writev_at(self._file.fd, (content,), self.damage.position)
        self._epochs = [(header.leader_epoch, header.base_offset) for _, header in iter_batches(content)]

    def sync(self) -> None:
        """Make the written content durable; waits for the disk. Raises OSError."""
        if self._file is not None:
            self._segment.files.sync(self._file.fd)

    def finish(self) -> bool:
        """Serve the range again. Returns False if the segment has changed."""
        if not self.is_current:
            return False
        self._log.mark_repaired(self._segment, self.damage)
        if self._log.epochs.restore(self._epochs):
            self._log.flusher.epochs_changed()
        return True


def range_repairs(log: PartitionLog) -> Sequence[RangeRepair]:
    """One repair for each known damaged range that ends above the log start."""
    in_reach = log.damage_in_reach
    return [
        RangeRepair(log, segment, damage)
        for segment in log.segment_files
        for damage in segment.damage
        if damage in in_reach
    ]
