"""Continuity: which batch may follow another in a log, as far as base offset, length and leader epoch tell.

The CRC of a batch covers none of these three (KIP-98: the leader writes them without computing it again). A
flipped bit in them shows only where a batch is compared with its neighbours, and with the leader epochs that
the log, or the manifest of the remote tier, knows beside it. A wrong length changes what the CRC is computed
over, so that check finds it. Called wherever batches are read back and checked: recovery, scrub, reads,
compaction, upload and download.

Not found: a base offset that stays within a gap that compaction has left, as any offset there is possible.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.base.types import NO_EPOCH, NO_OFFSET
from tierlog.records.batch import BatchHeader

MAX_OFFSET = (1 << 63) - 1

Batch = TypeVar("Batch", bound=tuple[Any, ...])
"""A tuple with the header in second place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderRules:
    """What is known of the batches of a log from elsewhere than their headers.

    `gaps`: compaction may have removed batches, so offsets need only grow. `end_offset`: no batch ends above
    it. `epochs` tells the leader epoch of every offset below `epochs_end`.
    """

    gaps: bool
    epochs: LeaderEpochs
    epochs_end: int = MAX_OFFSET
    end_offset: int = MAX_OFFSET

    def fault(self, header: BatchHeader, expected: int) -> str:
        """What a header says that cannot be, if all batches before it end below `expected`; else empty."""
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
        said, epoch = self.epochs.epoch_of(offset), header.leader_epoch
        return f"the batch at offset {header.base_offset} is of leader epoch {epoch}, expected {said}"

    def known_until(self, header: BatchHeader) -> int:
        """Up to which offset batches with that header's epoch have no fault, if they follow each other."""
        end_offset = min(self.end_offset, self.epochs_end)
        return self.epochs.known_until(header.leader_epoch, header.last_offset, end_offset)

    def is_certain(self, header: BatchHeader, expected: int, last_epoch: int) -> bool:
        """Whether a header without a fault needs no batch behind it that confirms what it says."""
        if header.base_offset > expected:
            return False
        known = header.last_offset < self.epochs_end and self.epochs.epoch_of(header.last_offset) != NO_EPOCH
        return known or header.leader_epoch == last_epoch


def in_order(
    batches: Iterable[Batch],
    start_offset: int,
    rules: HeaderRules,
    last_epoch: int = NO_EPOCH,
    behind: BatchHeader | None = None,
) -> Iterator[Batch]:
    """The batches up to the first whose header cannot be right. `start_offset` and `last_epoch`: the end and
    the leader epoch of the batch before the first one. `behind`: what follows the last one.

    A header may jump ahead: over a gap, or to an epoch that nothing else knows. It is believed only if the
    batch behind it does not say the opposite: where that one goes on from before the jump, the jump is wrong.
    """
    expected, epoch = start_offset, last_epoch
    known_until: int = NO_OFFSET
    doubted: Batch | None = None
    for batch in batches:
        header: BatchHeader = batch[1]
        following = header.base_offset + header.last_offset_delta + 1
        if header.base_offset == expected and header.leader_epoch == epoch and following <= known_until:
            yield batch  # nearly all of them
            expected = following
            continue
        if doubted is not None:
            if _refutes(header, doubted[1], expected, epoch):
                return
            yield doubted
            expected, epoch, doubted = doubted[1].next_offset, doubted[1].leader_epoch, None
        if header.leader_epoch < epoch or rules.fault(header, expected):
            return
        if not rules.is_certain(header, expected, epoch):
            doubted, known_until = batch, NO_OFFSET
            continue
        yield batch
        expected, epoch, known_until = following, header.leader_epoch, rules.known_until(header)
    if doubted is not None and (behind is None or not _refutes(behind, doubted[1], expected, epoch)):
        yield doubted


def _refutes(header: BatchHeader, jumped: BatchHeader, expected: int, epoch: int) -> bool:
    """Whether a header goes on from where the log was before one that jumps, and not from there."""
    follows = header.base_offset >= jumped.next_offset and header.leader_epoch >= jumped.leader_epoch
    return not follows and header.base_offset >= expected and header.leader_epoch >= epoch
