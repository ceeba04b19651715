"""Loss budget: the disks that one cluster run may lose at once, which depends on the guarantee under test.

With flush.messages=1 any nodes may lose power, also all of them (guarantee 2). Otherwise one disk at a time
may lose its unsynced data, and the next disk only when the first is in sync again (guarantee 1). Processes
are killed at any time. Any number of disks may fail and come back unchanged, but not beside a disk that has
lost data: the replicas of a failed disk count only when they have caught up, so no replica would be left to
elect. The same applies to brokers that are removed.
"""

import random
from collections.abc import Mapping, Sequence

from simulator.bit_rot import BitRot
from simulator.broker import SimBroker
from simulator.identities import Twins
from simulator.partitions import PartitionWitness


class LossBudget:
    def __init__(
        self,
        brokers: Mapping[int, SimBroker],
        partitions: PartitionWitness,
        bit_rot: BitRot,
        rng: random.Random,
        *,
        synced_is_safe: bool,
    ) -> None:
        """`synced_is_safe`: all acknowledged records are synced, so all nodes may lose power."""
        self._brokers, self._partitions, self._bit_rot, self._rng = brokers, partitions, bit_rot, rng
        self._synced_is_safe = synced_is_safe
        self.twins: Twins | None = None
        # brokers stay here until they are in sync again
        self._lossy: SimBroker | None = None  # its unsynced bytes may be lost
        self._failed: set[SimBroker] = set()  # a disk failed, or the broker was removed from the cluster

    def power_victims(self, victim: SimBroker) -> Sequence[SimBroker]:
        """The brokers that lose power together when the power of `victim` fails.

        With flush.messages=1 all may, unless a wiped or damaged disk is not reported yet: then no replica
        may be left to elect. Otherwise one disk may lose unsynced data, and the next one when the first is
        in sync again.
        """
        lossy = self._lossy
        reported = lossy is None or (
            self._partitions.has_reported(lossy) and not self._may_lack_unreported(lossy)
        )
        if self._synced_is_safe and reported and not self._bit_rot.is_pending_elsewhere(victim):
            self._partitions.check_flushed()
            return list(self._brokers.values()) if self._rng.random() < 0.2 else [victim]
        return [victim] if self._may_lose(victim) else []

    def may_wipe(self, victim: SimBroker) -> bool:
        """Whether a disk of the broker may be wiped. It must not hold the only replica that can be elected.

        A broker that lost power is not eligible, whatever it has. This includes a broker that is down and
        still counts as in sync, because no controller has noticed.
        """
        everywhere = map(self._partitions.is_in_sync, self._brokers.values())
        return self._partitions.all_in_sync() and all(everywhere) and self._may_lose(victim)

    def _may_lose(self, victim: SimBroker) -> bool:
        """Whether one disk may lose data: all others that lost data or failed have caught up."""
        others_caught_up = all(map(self._is_caught_up, {self._lossy, *self._failed} - {None, victim}))
        if others_caught_up and not self._bit_rot.is_pending_elsewhere(victim):
            self._lossy = victim
            return True
        return False

    def may_fail(self, victim: SimBroker) -> bool:
        """Whether a disk may fail and come back unchanged, or its broker be removed: no other disk lost
        data."""
        nothing_lost = self._lossy in (None, victim) or self._is_caught_up(self._lossy)
        if nothing_lost and not self._bit_rot.is_pending_elsewhere(victim):
            self._failed.add(victim)
            return True
        return False

    def _is_caught_up(self, broker: SimBroker) -> bool:
        return (
            not broker.disk.fails_at
            and not broker.lacks_directories
            and self._partitions.is_in_sync(broker)
            and not self._may_lack_unreported(broker)
        )

    def _may_lack_unreported(self, broker: SimBroker) -> bool:
        """Whether the broker may lack records that it has not reported to the controller."""
        return self._bit_rot.is_pending(broker) or (self.twins is not None and self.twins.of is broker)

    def forget_recovered(self) -> None:
        """A broker that is in sync again holds all records, so another one may lose data."""
        self._failed = {broker for broker in self._failed if not self._is_caught_up(broker)}
        if self._lossy is not None and self._is_caught_up(self._lossy):
            self._lossy = None
