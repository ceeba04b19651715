"""Facts about a log before it is opened, and the result of opening it. Called by recovery and the log."""

from dataclasses import dataclass, field
from pathlib import Path

from tierlog.base.files import Files
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.broker.storage.core.producer_state import ProducerStateManager
from tierlog.broker.storage.segment import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class LogToOpen:
    """Facts about a log that are known before it is opened.

    `may_have_lost`: a power failure may have lost unsynced data. Truncating such data is not damage, unless
    it was below the recovery point or an earlier start found damage. `same_boot`: the machine has run since
    the last process of the log wrote to it, so its writes are all there. `gaps`: compaction may have removed
    records. Kafka's cleaner also removes the last records of a segment, which then ends before the next one
    begins. tierlog's cleaner keeps the last batch, so above the recovery point such a segment is incomplete.
    If the recovery point is unknown (None), the segments after it are kept, because they may hold
    acknowledged records.
    """

    files: Files
    directory: Path
    now_ms: int
    interval_bytes: int
    start_offset: int
    recovery_point: int | None
    high_watermark: int
    clean: bool
    may_have_lost: bool
    same_boot: bool
    gaps: bool


@dataclass(slots=True)
class LoadedLog:
    """A loaded log, and what recovery did.

    `truncated_bytes` and `dropped` (segments) count what recovery removed; the log reports them. `damaged`:
    recovery removed more than the batch that a killed process was writing. `rebuilt`: base offsets of the
    segments whose indexes were rebuilt. `snapshot_offset`: offset of the producer snapshot that was used, -1
    if there was none. `missing_end`: the log end offset that the checkpoints prove, if the log ends below it;
    else 0. `saved_epochs`: the content of the leader epoch checkpoint, empty if it is missing or wrong.
    `restart_point`: the offset of the producer snapshot inside the active segment (None: there is none), and
    the position from which the segment was read.
    """

    segments: list[Segment]
    epochs: LeaderEpochs
    producers: ProducerStateManager
    truncated_bytes: int = 0
    dropped: int = 0
    damaged: bool = False
    rebuilt: list[int] = field(default_factory=list)
    snapshot_offset: int = -1
    missing_end: int = 0
    saved_epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    restart_point: tuple[int | None, int] = (None, 0)

    @property
    def has_changed(self) -> bool:
        """Whether recovery changed the log or its leader epochs, so that the next flush must sync them."""
        epochs_changed = self.epochs.entries != self.saved_epochs.entries
        return bool(self.rebuilt or self.truncated_bytes) or epochs_changed

    def unsynced(self, recovery_point: int) -> list[Segment]:
        """Rolled segments with a file that may not be on disk, such as rebuilt indexes. One that ends at the
        recovery point, or at a log end below it, may have been rolled after the last flush."""
        synced = min(recovery_point, self.segments[-1].end_offset)
        return [s for s in self.segments[:-1] if s.end_offset >= synced or s.base_offset in self.rebuilt]
