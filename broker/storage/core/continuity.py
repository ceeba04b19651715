"""Batch continuity: checks that a batch can follow another one, by base offset, length and leader epoch.

These three fields are outside the batch's CRC, since the leader writes them without computing it again
(KIP-98). A flipped bit in them is only visible by comparison with the neighbouring batches and with the
leader epoch cache of the log, or of the remote manifest. A wrong length is detected by the CRC too, as it
changes the bytes the CRC covers. Called wherever batches are read back and checked: recovery, scrubbing,
reads, compaction, upload and download.

Not detected: a wrong base offset within a gap left by compaction, where any offset is possible.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.base.safeguards import safeguard
from tierlog.base.types import NO_EPOCH, NO_OFFSET
from tierlog.records.batch import BatchHeader

MAX_OFFSET = (1 << 63) - 1

Batch = TypeVar("Batch", bound=tuple[Any, ...])
"""A tuple whose second element is the header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderRules:
    """Facts about a log's batches that are known independently of their headers.

    `gaps`: compaction may have removed batches, so offsets only need to grow. `end_offset`: no batch ends
    above it. `epochs` holds the leader epoch of every offset below `epochs_end`.
    """

    gaps: bool
    epochs: LeaderEpochs
    epochs_end: int = MAX_OFFSET
    end_offset: int = MAX_OFFSET

    def fault(self, header: BatchHeader, expected: int) -> str:
        """Why a header is invalid, given that all previous batches end below `expected`; empty if it is
        valid.
        """
        offset = header.base_offset
        if offset < expected or (offset > expected and not self.gaps):
            return f"a batch begins at offset {offset}, expected {expected}"
        if header.next_offset > self.end_offset:
            return f"a batch ends at offset {header.last_offset}, beyond {self.end_offset - 1}"
        return self.epoch_fault(header)

    def epoch_fault(self, header: BatchHeader) -> str:
        offset = header.last_offset
        if offset >= self.epochs_end or self.epochs.allows(header.leader_epoch, offset):
            return ""
        expected, epoch = self.epochs.epoch_of(offset), header.leader_epoch
        return f"the batch at offset {header.base_offset} has leader epoch {epoch}, expected {expected}"

    def known_until(self, header: BatchHeader) -> int:
        """End of the range in which batches with that header's epoch are valid, if they are contiguous."""
        end_offset = min(self.end_offset, self.epochs_end)
        return self.epochs.known_until(header.leader_epoch, header.last_offset, end_offset)

    def is_certain(self, header: BatchHeader, expected: int, last_epoch: int) -> bool:
        """Whether a valid header needs no confirmation by the next batch."""
        if header.base_offset > expected:
            return False
        known = header.last_offset < self.epochs_end and self.epochs.epoch_of(header.last_offset) != NO_EPOCH
        return known or header.leader_epoch == last_epoch


safeguard("a batch's base offset must follow the previous batch")(HeaderRules.fault)


def consistent_prefix(
    batches: Iterable[Batch],
    start_offset: int,
    rules: HeaderRules,
    last_epoch: int = NO_EPOCH,
    next_header: BatchHeader | None = None,
) -> Iterator[Batch]:
    """The batches before the first one whose header is invalid.

    `start_offset` and `last_epoch`: the end offset and leader epoch of the batch before the first one.
    `next_header`: the header after the last batch.

    A header may jump ahead, over a gap or to an unknown leader epoch. It is accepted unless the next batch
    contradicts it by continuing from before the jump.
    """
    expected, epoch = start_offset, last_epoch
    known_until: int = NO_OFFSET
    unconfirmed: Batch | None = None
    for batch in batches:
        header: BatchHeader = batch[1]
        following = header.base_offset + header.last_offset_delta + 1
        if header.base_offset == expected and header.leader_epoch == epoch and following <= known_until:
            yield batch  # the common case
            expected = following
            continue
        if unconfirmed is not None:
            if _refutes(header, unconfirmed[1], expected, epoch):
                return
            yield unconfirmed
            expected, epoch = unconfirmed[1].next_offset, unconfirmed[1].leader_epoch
            unconfirmed = None
        if header.leader_epoch < epoch or rules.fault(header, expected):
            return
        if not rules.is_certain(header, expected, epoch):
            unconfirmed, known_until = batch, NO_OFFSET
            continue
        yield batch
        expected, epoch, known_until = following, header.leader_epoch, rules.known_until(header)
    if unconfirmed is not None and (
        next_header is None or not _refutes(next_header, unconfirmed[1], expected, epoch)
    ):
        yield unconfirmed


def _refutes(header: BatchHeader, jumped: BatchHeader, expected: int, epoch: int) -> bool:
    """Whether a header continues from before another header that jumped ahead, and not from after it."""
    follows = header.base_offset >= jumped.next_offset and header.leader_epoch >= jumped.leader_epoch
    return not follows and header.base_offset >= expected and header.leader_epoch >= epoch
