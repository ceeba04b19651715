"""What happens to a log once damage is found in it: nobody gets the damaged batches from then on, and the
replica repairs itself as soon as another one has them.

Kept safe: nothing is cut before the controller has taken this replica out of the in-sync set, and out of
those that are eligible, and that only where another one that lives is in it. So

- a follower is reported as one that has lost its log, cuts it at the damage, and fetches from there;
- a leader is reported so too, with which the controller elects another (as after a start that found damage),
  and goes on as a follower;
- the only one that has all that is committed keeps what it has: reads of the damaged range are refused with
  CORRUPT_MESSAGE, all else is served, behind the damage too, until another one is in sync, retention drops
  the range, or somebody decides what to do about it.

From before the report until the cut a follower does not fetch: its fetch offset would tell the leader that it
has what it is about to give up, and the leader would take it in again. What it had told before, a leader
forgets with the image that marks it, before which the controller takes no proposal of that leader.

Owned by the composition root; the scrubber and tiering call `found`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import structlog

from tierlog.broker.log.segment import CorruptLog, Damage, Segment
from tierlog.broker.ports.clock import Clock
from tierlog.broker.ports.tasks import TaskGroup
from tierlog.broker.runtime.replica import Replica
from tierlog.broker.runtime.replica_manager import ReplicaManager
from tierlog.metadata.image import ClusterImage, PartitionImage

RETRY_S = 0.5
"""Until the image has what was told, a flush is through, or another replica is in sync."""

TellLost = Callable[[Sequence[tuple[UUID, int]]], Awaitable[None]]
_log = structlog.get_logger("tierlog.repair")


class LogRepair:
    def __init__(
        self,
        broker_id: int,
        image: Callable[[], ClusterImage],
        replicas: ReplicaManager,
        clock: Clock,
        tasks: TaskGroup,
        tell_lost: TellLost | None,
    ) -> None:
        """`tell_lost` returns once the controller takes a replica of this broker for one that lost its log.
        None: of a broker that is alone.
        """
        self._broker_id = broker_id
        self._image = image
        self._replicas = replicas
        self._clock = clock
        self._tasks = tasks
        self._tell_lost = tell_lost
        self._repairing: dict[Replica, asyncio.Task[None]] = {}
        self._damaged: set[Replica] = set()  # some of them are whole again, or gone
        self.found_count = self.repaired = 0

    @property
    def damaged(self) -> list[Replica]:
        """Those of which a part is not served."""
        here = self._replicas.holds
        self._damaged = {replica for replica in self._damaged if replica.log.damage and here(replica)}
        return sorted(self._damaged, key=lambda replica: replica.name)

    def found(self, replica: Replica, segment: Segment, damage: Sequence[Damage], cause: str) -> None:
        """From here on nobody reads it. On the event loop; the segment is one of that log, as it is now."""
        log = replica.log
        self._damaged.add(replica)
        for one in damage:
            if one in log.damage:
                continue  # two have looked
            self.found_count += 1
            log.note_damage(segment, one)
            _log.error(
                "a log is damaged",
                partition=str(replica.name),
                file=str(segment.path()),
                position=one.position,
                first_offset=one.start_offset,
                end_offset=one.end_offset,
                noticed=cause,
            )
        if log.damage and self._tell_lost is not None and replica not in self._repairing:
            self._repairing[replica] = self._tasks.spawn(f"repair {replica.name}", self._repair(replica))

    async def stop(self) -> None:
        for task in self._repairing.values():
            task.cancel()
        await asyncio.gather(*self._repairing.values(), return_exceptions=True)

    async def _repair(self, replica: Replica) -> None:
        try:
            while replica.log.damage and self._replicas.holds(replica) and replica.failed is None:
                if not await self._go_on(replica):
                    await asyncio.sleep(RETRY_S)
        finally:
            del self._repairing[replica]
            self._let_move(replica)

    async def _go_on(self, replica: Replica) -> bool:
        """The next step, if there is one now."""
        partition = self._image().partition(replica.topic_id, replica.name.partition)
        if partition is None or self._tell_lost is None:
            return False
        counts = self._broker_id in (*partition.in_sync, *partition.eligible)
        if counts and not self._others(partition):
            self._let_move(replica)  # it may be all that there is
            return False
        if not replica.holds_still:
            replica.holds_still = True
            if replica.follows:
                self._replicas.fetch_anew(replica)
        if counts:
            await self._tell_lost([(replica.topic_id, replica.name.partition)])
            return False
        return replica.follows and self._cut(replica)

    def _others(self, partition: PartitionImage) -> list[int]:
        """Those that have all that is committed, and can serve it."""
        brokers = self._image().brokers
        marked = {self._broker_id, *partition.offline, *partition.emptied}
        return [
            one
            for one in (*partition.in_sync, *partition.eligible)
            if one not in marked and (broker := brokers.get(one)) is not None and broker.may_lead
        ]

    def _cut(self, replica: Replica) -> bool:
        log = replica.log
        start, end = log.damage[0].start_offset, log.log_end_offset
        try:
            replica.truncate_to(start, self._clock.now_ms())
        except BlockingIOError:
            return False  # a flush is under way
        except CorruptLog as more:  # there is more of it in what would remain
            for segment in log.segments:
                replica.suspect(segment.base_offset, str(more))
            return False
        except OSError as failure:  # the directory has noted it
            _log.error("cannot cut a damaged log", partition=str(replica.name), error=str(failure))
            return False
        self.repaired += 1
        _log.warning(
            "cut a log at its damage; the rest is fetched again",
            partition=str(replica.name),
            from_offset=start,
            to_offset=end,
            leader=replica.leader,
        )
        return True

    def _let_move(self, replica: Replica) -> None:
        if replica.holds_still:
            replica.holds_still = False
            if replica.follows and self._replicas.holds(replica):
                self._replicas.fetch_anew(replica)
