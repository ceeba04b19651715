"""What happens to a log once damage is found in it: nobody gets the damaged batches from then on, and the
replica takes them from another one that has them, and nothing else.

The range is read from any replica that serves it whole, the leader first, and written over what the disk has
changed (`storage/range_repair.py`). The replica keeps its role, its place in the in-sync set and all that it
has beside the range: so several replicas that are damaged at different places mend each other. Where nobody
serves the range nothing is changed; it is tried again, less often each time, until somebody does, retention
drops it, or an operator decides. Reads of it are refused with CORRUPT_MESSAGE, all else is served.

The last resort is to cut the log at the damage and fetch all from there again. It is for what cannot be put
back in place: compaction left other batches on the others, or the range is not committed and stays so. Before
it another replica, in sync, must have been seen to serve all that is committed of what is cut; and before
that the controller must have taken this one out of the in-sync set, and out of those that are eligible: a
follower is reported as one that has lost its log, and a leader too, with which the controller elects another.
From before the report until the cut a follower does not fetch: its fetch offset would tell the leader that it
has what it is about to give up, and the leader would take it in again. What it had told before, a leader
forgets with the image that marks it, before which the controller takes no proposal of that leader.

Damage below the log start is left alone: no replica serves that range, and retention deletes it.

Owned by the composition root; the scrubber and tiering call `found`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import structlog

from tierlog.base.clock import Clock
from tierlog.base.network import Network
from tierlog.base.tasks import TaskGroup
from tierlog.broker.maintenance.range_reader import RangeReader, RangeUnavailable
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.damage import damage_in_reach
from tierlog.broker.storage.range_repair import RangeRepair, range_repairs, rules_of
from tierlog.broker.storage.segment import CorruptLog, Damage, Segment
from tierlog.metadata.image import BrokerImage, ClusterImage, PartitionImage

RETRY_S = 0.5
"""Until the image has what was told, a flush is through, or another replica serves the range; twice as long
each time,
"""

RETRY_MAX_S = 8.0
"""but not longer: whoever comes back is asked soon."""

MEND_TRIES = 3
"""Before a log may be cut: what is not committed yet is so by then, and whoever was restarted is back."""

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
        network: Network | None,
    ) -> None:
        """`tell_lost` returns once the controller takes a replica of this broker for one that lost its log.
        Both None: of a broker that is alone.
        """
        self._broker_id = broker_id
        self._image = image
        self._replicas = replicas
        self._clock = clock
        self._tasks = tasks
        self._tell_lost = tell_lost
        self._reader = None if network is None else RangeReader(broker_id, network)
        self._one_range = asyncio.Lock()
        """One range at a time is in memory."""
        self._repairing: dict[Replica, asyncio.Task[None]] = {}
        self._damaged: set[Replica] = set()  # some of them are whole again, or gone
        self.found_count = self.repaired = 0

    @property
    def damaged(self) -> list[Replica]:
        """Those of which a part is not served."""
        here = self._replicas.holds
        self._damaged = {one for one in self._damaged if damage_in_reach(one.log) and here(one)}
        return sorted(self._damaged, key=lambda replica: replica.name)

    def found(self, replica: Replica, segment: Segment, damage: Sequence[Damage], cause: str) -> None:
        """From here on nobody reads it. On the event loop; the segment is one of that log, as it is now."""
        log = replica.log
        self._damaged.add(replica)
        for one in damage:
            if one in log.damage:
                continue  # two have looked
            self.found_count += 1
            log.add_damage(segment, one)
            _log.error(
                "a log is damaged",
                partition=str(replica.name),
                file=str(segment.path()),
                position=one.position,
                first_offset=one.start_offset,
                end_offset=one.end_offset,
                noticed=cause,
            )
        if damage_in_reach(log) and self._tell_lost is not None and replica not in self._repairing:
            self._repairing[replica] = self._tasks.spawn(f"repair {replica.name}", self._repair(replica))

    async def stop(self) -> None:
        for task in self._repairing.values():
            task.cancel()
        await asyncio.gather(*self._repairing.values(), return_exceptions=True)

    async def _repair(self, replica: Replica) -> None:
        tries, time_s = 0, asyncio.get_running_loop().time
        try:
            while damage_in_reach(replica.log) and self._is_here(replica):
                began_s = time_s()
                if await self._continue(replica, tries):
                    tries = 0
                else:
                    wait_s = RETRY_S if replica.holds_still else RETRY_S * 2**tries
                    took_s = time_s() - began_s  # it may have read all behind the damage from another replica
                    await asyncio.sleep(max(min(wait_s, RETRY_MAX_S), took_s))
                    tries = min(tries + 1, 2 * MEND_TRIES)
        finally:
            del self._repairing[replica]
            self._let_move(replica)

    async def _continue(self, replica: Replica, tries: int) -> bool:
        """The next step, if there is one now."""
        if await self._mend_all(replica):
            return True
        return tries >= MEND_TRIES and await self._give_up(replica)

    # -- in place --

    async def _mend_all(self, replica: Replica) -> bool:
        """Whether a range of it is whole again."""
        any_mended = False
        for repair in range_repairs(replica.log):
            if repair.is_current and await self._mend(replica, repair):
                any_mended = True  # and others of that segment have to be looked at anew
        return any_mended

    async def _mend(self, replica: Replica, repair: RangeRepair) -> bool:
        where = repair.damage
        for source in self._sources(replica):
            try:
                async with self._one_range:
                    written = await self._write(replica, repair, source)
                if written:
                    await asyncio.get_running_loop().run_in_executor(replica.room.threads, repair.sync)
            except RangeUnavailable as why:
                _log.info(
                    "a replica does not have what is damaged here",
                    partition=str(replica.name),
                    first_offset=where.start_offset,
                    end_offset=where.end_offset,
                    replica=source.broker_id,
                    why=str(why),
                )
                continue
            except OSError as failure:  # the directory has noted it
                _log.error("cannot repair a log", partition=str(replica.name), error=str(failure))
                return False
            if not written or not self._is_here(replica) or not repair.finish():
                return False
            self._tell_repaired(replica, where, source)
            replica.repaired()
            return True
        return False

    async def _write(self, replica: Replica, repair: RangeRepair, source: BrokerImage) -> bool:
        """Returns False if the log has changed: another task repaired it, or it was truncated, moved or
        deleted. Raises RangeUnavailable and OSError.
        """
        if self._reader is None:
            return False
        start, end = repair.damage.start_offset, repair.damage.end_offset
        rules = rules_of(replica.log, end)
        content = await self._reader.read(source, replica, start, end, rules, repair.size)
        if not self._is_here(replica) or not repair.is_current:
            return False
        if not repair.fits(content):
            raise RangeUnavailable("other batches")
        repair.write(content)
        return True

    def _tell_repaired(self, replica: Replica, damage: Damage, source: BrokerImage) -> None:
        self.repaired += 1
        _log.warning(
            "repaired a log from another replica",
            partition=str(replica.name),
            first_offset=damage.start_offset,
            end_offset=damage.end_offset,
            replica=source.broker_id,
        )

    def _sources(self, replica: Replica) -> list[BrokerImage]:
        """The replicas that can be asked, in sync or not: what one serves is committed. The leader first."""
        image = self._image()
        partition = image.partition(replica.topic_id, replica.name.partition)
        if partition is None:
            return []
        asked = sorted(partition.replicas, key=lambda one: one != partition.leader)
        brokers = [image.brokers.get(one) for one in asked if one != self._broker_id]
        return [broker for broker in brokers if broker is not None and not broker.fenced]

    def _is_here(self, replica: Replica) -> bool:
        return self._replicas.holds(replica) and replica.failed is None

    # -- the last resort --

    async def _give_up(self, replica: Replica) -> bool:
        """The next step on the way to a cut, if there is one now."""
        partition = self._image().partition(replica.topic_id, replica.name.partition)
        if partition is None or self._tell_lost is None:
            return False
        held_still = replica.holds_still
        if not await self._is_elsewhere(replica, partition):
            self._let_move(replica)  # it may be all that there is
            return False
        partition = self._image().partition(replica.topic_id, replica.name.partition)  # it took a while
        if partition is None:
            return False
        if not held_still:
            replica.holds_still = True
            if replica.follows:
                self._replicas.fetch_anew(replica)
        if self._broker_id in (*partition.in_sync, *partition.eligible):
            await self._tell_lost([(replica.topic_id, replica.name.partition)])
            return False
        return held_still and replica.follows and self._cut(replica)

    async def _is_elsewhere(self, replica: Replica, partition: PartitionImage) -> bool:
        """Whether one that is in sync serves all that is committed of what a cut gives up."""
        damage, brokers = damage_in_reach(replica.log), self._image().brokers
        if self._reader is None or not damage:
            return False
        start, end = damage[0].start_offset, replica.high_watermark
        others = self._others(partition)
        for one in sorted(others, key=lambda one: one != partition.leader):
            try:
                await self._reader.has(brokers[one], replica, start, end, rules_of(replica.log))
            except RangeUnavailable:
                continue
            return self._is_here(replica) and damage_in_reach(replica.log)[:1] == damage[:1]
        return False

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
        damage = damage_in_reach(log)
        if not damage:
            return False
        start, end = damage[0].start_offset, log.log_end_offset
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
