"""Leader epoch cache of one partition: the start offset of each leader epoch (KIP-101, KIP-320).

Invariant: epochs and start offsets both increase from entry to entry. Owned by the log, which assigns an
epoch with its first record and stores the entries in Kafka's `leader-epoch-checkpoint` file.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from operator import attrgetter
from typing import NamedTuple

from tierlog.base.safeguards import safeguard
from tierlog.base.types import NO_EPOCH, NO_OFFSET, require

_CHECKPOINT_VERSION = 0
_START_OFFSET = attrgetter("start_offset")


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


def earliest_starts(*known: Iterable[tuple[int, int]]) -> tuple[EpochEntry, ...]:
    """The epochs of parts of one log, each from the smallest start offset that a part knows."""
    starts: dict[int, int] = {}
    for epoch, start_offset in chain(*known):
        starts[epoch] = min(start_offset, starts.get(epoch, start_offset))
    return tuple(EpochEntry(*line) for line in sorted(starts.items()))


class EpochEnd(NamedTuple):
    """The end of an epoch; both -1 if this replica does not know it."""

    epoch: int
    end_offset: int


UNKNOWN_END = EpochEnd(NO_EPOCH, NO_OFFSET)


class MalformedEpochs(ValueError):
    """The text is not a leader-epoch checkpoint; the log rebuilds the entries from its batches."""


class LeaderEpochs:
    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries = [EpochEntry(*entry) for entry in entries]
        self.check()

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    @property
    def latest(self) -> EpochEntry | None:
        return self._entries[-1] if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Start an epoch and remove entries that contradict it (after truncation of a follower's log).
        Returns whether it is new.
        """
        latest = self.latest
        if latest is not None and latest.epoch == epoch and latest.start_offset <= start_offset:
            return False
        kept = [entry for entry in self._entries if entry.epoch < epoch and entry.start_offset < start_offset]
        self._entries = [*kept, EpochEntry(epoch, start_offset)]
        return True

    def rebuild(self, epoch: int, base_offset: int, saved: "LeaderEpochs", gap_start: int) -> None:
        """Rebuild from the batches of a log that may be compacted: record a batch's epoch. Called in offset
        order.

        The epoch may have started in the gap [gap_start, base_offset) before the batch, at a record that
        compaction removed, and other epochs may have left no record at all. `saved`, the checkpoint, knows
        their starts.
        """
        latest = self.latest
        last_epoch = NO_EPOCH if latest is None else latest.epoch
        if epoch <= last_epoch:
            return
        for entry in saved.covering(gap_start, base_offset) if gap_start < base_offset else ():
            if entry.start_offset >= gap_start and last_epoch < entry.epoch <= epoch:
                self.assign(*entry)
        if self.latest is None or self.latest.epoch < epoch:
            self.assign(epoch, base_offset)

    def epoch_of(self, offset: int) -> int:
        """The epoch of the record at an offset; -1 if it is before all entries."""
        at = bisect_right(self._entries, offset, key=_START_OFFSET)
        return self._entries[at - 1].epoch if at else NO_EPOCH

    def allows(self, epoch: int, offset: int) -> bool:
        """Whether a record at an offset may be of that epoch. True if its epoch or all others are unknown. A
        record before the first known epoch is of an earlier one, or of that one below the log start."""
        if not self._entries or epoch == NO_EPOCH:
            return True
        latest = self._entries[-1]
        if latest.epoch == epoch and latest.start_offset <= offset:
            return True
        known = self.epoch_of(offset)
        return epoch <= self._entries[0].epoch if known == NO_EPOCH else epoch == known

    def known_until(self, epoch: int, offset: int, end_offset: int) -> int:
        """End of the records of that epoch from `offset` on, at most `end_offset`; `offset` if they are not
        known to be of that epoch.
        """
        at = bisect_right(self._entries, offset, key=_START_OFFSET)
        if not at or self._entries[at - 1].epoch != epoch:
            return offset
        return end_offset if at == len(self._entries) else min(self._entries[at].start_offset, end_offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """The largest known epoch <= `epoch` and its end (OffsetForLeaderEpoch, KIP-320)."""
        latest = self.latest
        if epoch < 0 or latest is None or epoch > latest.epoch:
            return UNKNOWN_END
        if epoch == latest.epoch:
            return EpochEnd(epoch, log_end_offset)
        above = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        known = self._entries[above - 1].epoch if above else epoch
        return EpochEnd(known, self._entries[above].start_offset)

    def covering(self, start_offset: int, end_offset: int) -> tuple[EpochEntry, ...]:
        """The entries of the records in [start_offset, end_offset), for a manifest."""
        first = max(0, bisect_right(self._entries, start_offset, key=lambda entry: entry.start_offset) - 1)
        return tuple(entry for entry in self._entries[first:] if entry.start_offset < end_offset)

    def agrees_with(self, other: "LeaderEpochs", start_offset: int, end_offset: int) -> bool:
        """Whether both have the same epoch for every offset in [start_offset, end_offset)."""
        return self._within(start_offset, end_offset) == other._within(start_offset, end_offset)

    def _within(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        covering = self.covering(start_offset, end_offset)
        return [(epoch, max(start, start_offset)) for epoch, start in covering]

    def restore(self, batches: Sequence[tuple[int, int]]) -> bool:
        """Record the epochs of repaired batches (epoch, base offset) below all entries: a start after a crash
        may have taken a flipped epoch for the first one, and the next leader removed it. Returns whether
        any was missing.
        """
        before = list(self._entries)
        for epoch, offset in reversed(batches):
            first = self._entries[0] if self._entries else None
            if first is None or (offset < first.start_offset and epoch <= first.epoch):
                same = first is not None and first.epoch == epoch
                self._entries[: 1 if same else 0] = [EpochEntry(epoch, offset)]
        return self._entries != before

    def truncate_from_end(self, offset: int) -> bool:
        """Remove epochs that start at or after the offset. Returns whether anything changed."""
        kept = [entry for entry in self._entries if entry.start_offset < offset]
        changed = len(kept) < len(self._entries)
        self._entries = kept
        return changed

    def truncate_from_start(self, offset: int) -> bool:
        """Remove epochs that end at or before a new log start offset; the epoch around it then starts
        there."""
        below = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        if not below or (self._entries[below - 1].start_offset == offset and below == 1):
            return False
        self._entries[:below] = [EpochEntry(self._entries[below - 1].epoch, offset)]
        return True

    def restart(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """Replace all entries. If two contradict, the later one wins."""
        self._entries = []
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    def encode(self) -> bytes:
        """Kafka's text: version, count, then `epoch start_offset` a line."""
        lines = [
            str(_CHECKPOINT_VERSION),
            str(len(self._entries)),
            *(f"{epoch} {start}" for epoch, start in self._entries),
        ]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, text: bytes) -> "LeaderEpochs":
        """Raises MalformedEpochs."""
        try:
            if not text.endswith(b"\n"):
                raise MalformedEpochs("truncated")  # its last number may be too short
            version, count, *lines = text.decode().splitlines()
            entries = [tuple(map(int, line.split())) for line in lines]
            if (
                int(version) != _CHECKPOINT_VERSION
                or int(count) != len(entries)
                or any(len(e) != 2 for e in entries)
            ):
                raise MalformedEpochs("wrong version or number of lines")
            if any(a[0] >= b[0] or a[1] >= b[1] for a, b in pairwise(entries)):
                raise MalformedEpochs("epochs do not increase")
        except MalformedEpochs:
            raise
        except ValueError as error:
            raise MalformedEpochs(str(error)) from None
        return cls((epoch, start) for epoch, start in entries)

    def check(self) -> None:
        """Raises InvariantViolation unless epochs and offsets both increase."""
        for before, after in pairwise(self._entries):
            require(
                before.epoch < after.epoch and before.start_offset < after.start_offset,
                f"epochs: {before}, {after}",
            )


safeguard("a batch's leader epoch must match the leader epoch cache")(LeaderEpochs.allows)
