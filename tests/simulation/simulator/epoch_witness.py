"""Witness of leader epochs: after a restart, each replica knows the epochs that it knew before.

It must know them from its log start on, also below its first local segment: consumers and followers ask for
the end of these epochs (OffsetForLeaderEpoch, KIP-320).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from simulator.witness import Violation
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.base.types import TopicIdPartition
from tierlog.broker.replication.replica import Replica


class _Known(NamedTuple):
    """Leader epochs of a replica, and the offsets for which its next process must know them."""

    epochs: LeaderEpochs
    start_offset: int
    end_offset: int


class EpochWitness:
    """The leader epochs of one broker's replicas. `is_damaged`: whether a flipped bit is on its disk: a start
    may take a wrong epoch of a first batch for the right one, until log repair restores it (ADR 0014)."""

    def __init__(self, name: str) -> None:
        self.is_damaged: Callable[[], bool] = lambda: False
        self._name = name
        self._known: dict[TopicIdPartition, _Known] = {}

    def on_end(self, replicas: Iterable[Replica], *, loses_power: bool) -> None:
        """The process has ended. Recovery takes the epochs of later records from the batches, in which bits
        may flip. A loss of power may also take back what was written and deleted since the last flush.
        """
        self._known = {}
        if self.is_damaged():
            return
        for replica in replicas:
            log = replica.log
            if not (log.is_empty or log.damage):  # an empty log may be about to start elsewhere
                epochs, deleted_end = LeaderEpochs(log.epochs.entries), log.local_log_start_offset
                start = max([log.log_start_offset, *(entry.start_offset for entry in epochs.entries[:1])])
                end = log.recovery_point if loses_power else max(log.recovery_point, deleted_end)
                self._known[replica.id] = _Known(epochs, start, end)

    def forget(self) -> None:
        """The disk has other files."""
        self._known = {}

    def on_start(self, replicas: Iterable[Replica]) -> Iterator[Violation]:
        """The next process has opened its logs."""
        if self.is_damaged():
            return
        for replica in replicas:
            log, before = replica.log, self._known.get(replica.id)
            if before is None or log.is_empty or log.damage or log.was_damaged:
                continue
            start = max(before.start_offset, log.log_start_offset)
            end = min(before.end_offset, log.log_end_offset)
            if start < end and not log.epochs.agrees_with(before.epochs, start, end):
                known, now = before.epochs.entries, log.epochs.entries
                what = f"{self._name} knew other leader epochs of {replica.name} in [{start}, {end})"
                yield Violation(f"{what}: {_pairs(known)}, now {_pairs(now)}")


def _pairs(entries: Iterable[tuple[int, int]]) -> str:
    return " ".join(f"{epoch}@{offset}" for epoch, offset in entries)
