"""Lineage of leader epochs: compares a partition's manifest with the local log of its new leader. Pure.

A leader epoch has one leader, so two logs with the same epoch at an offset are equal up to it. Every replica
that a clean election chooses has all records that are remote, with the same epochs. Only after an unclean
election may the new leader's log differ: it has records of its own that the previous leader never had, and
the manifest has those of the previous leader at the same offsets (docs/adr/0027). Called by the replica
manager before a replica leads.
"""

from dataclasses import dataclass

from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.base.types import NO_EPOCH
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.records import RemoteSegment


@dataclass(frozen=True, slots=True)
class Divergence:
    """The local log has other records than the manifest, at the newest remote offset, `last_offset`, and
    perhaps before.

    `first_offset`: base offset of the first manifest entry which has such records. `is_covered`: the local
    log has all readable records from `first_offset` on, so the entries from there on can be replaced.
    """

    last_offset: int
    remote_epoch: int
    first_offset: int
    is_covered: bool


def find_divergence(
    remote: RemotePartition, epochs: LeaderEpochs, local_log_start: int, log_end: int
) -> Divergence | None:
    """None if the logs agree, or have no offset in common whose epochs are known."""
    entries = remote.entries
    if not entries or entries[-1].end_offset > log_end or _agrees(entries[-1], epochs, local_log_start):
        return None
    at = len(entries) - 1
    while at and not _agrees(entries[at - 1], epochs, local_log_start):
        at -= 1
    first = entries[at]
    # pages hold older entries, of which the epochs are not known here
    begins_alike = at > 0 or not remote.pages or _base_agrees(first, epochs, local_log_start)
    is_covered = begins_alike and local_log_start <= max(first.base_offset, remote.log_start_offset)
    newest = entries[-1]
    return Divergence(newest.last_offset, epoch_in(newest, newest.last_offset), first.base_offset, is_covered)


def agrees_below(remote: RemotePartition, epochs: LeaderEpochs, local_log_start: int, end: int) -> bool:
    """Whether the local log has the manifest's records just below an offset, and so all before, as far as is
    known."""
    entry = next((one for one in reversed(remote.entries) if one.base_offset < end), None)
    last = end - 1 if entry is None else min(entry.last_offset, end - 1)
    return entry is None or last < local_log_start or epochs.allows(epoch_in(entry, last), last)


def epoch_in(entry: RemoteSegment, offset: int) -> int:
    """The leader epoch of an entry's record at an offset."""
    return max((epoch for epoch, start in entry.leader_epochs if start <= offset), default=NO_EPOCH)


def _agrees(entry: RemoteSegment, epochs: LeaderEpochs, local_log_start: int) -> bool:
    """Whether the last records are the same, as far as is known."""
    if entry.last_offset < local_log_start:
        return True
    return epochs.allows(epoch_in(entry, entry.last_offset), entry.last_offset)


def _base_agrees(entry: RemoteSegment, epochs: LeaderEpochs, local_log_start: int) -> bool:
    """Whether the entries before this one agree, because its first records do, or cannot be compared."""
    if local_log_start >= entry.base_offset:
        return True
    return epochs.allows(epoch_in(entry, entry.base_offset), entry.base_offset)
