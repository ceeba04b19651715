"""Log repair: stops serving damaged batches and replaces them with intact ones from another replica.

The damaged range is read from any replica that serves all of it, the leader first, and written over the
damage (`storage/range_repair.py`). The replica keeps its role, its place in the ISR and its other records, so
replicas damaged in different places repair each other. If no replica serves the range, nothing is changed,
and repair is tried again, less often each time, until a replica serves it, retention deletes it, or an
operator decides. Reads of the range fail with CORRUPT_MESSAGE; everything else is served.

The last resort is to truncate the log at the damage and fetch again from there. It is for ranges that cannot
be replaced in place, because compaction left other batches on the other replicas, or because the range is not
committed and will not be. Before truncating, this broker checks that another in-sync or eligible leader
replica serves all committed records that will be truncated, and the controller must have removed this replica
from the ISR and the eligible leader replicas. To that end the replica is reported as having lost its log; if
it is the leader, the controller elects another one. The follower stops fetching before the report and resumes
after the truncation: its fetch offset would claim records that it is about to remove, and the leader would
add it to the ISR again. The leader forgets the replica's fetch offset when its image shows the report. Until
then the controller rejects its ISR proposals: they name an older partition epoch.

Damage below the log start is left alone: no replica serves that range, and retention deletes it.

Owned by the composition root; the scrubber and tiering report damage.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from uuid import UUID

import structlog

from tierlog.base.clock import Clock
from tierlog.base.files import Buffer
from tierlog.base.network import Network
from tierlog.base.safeguards import safeguard
from tierlog.base.tasks import TaskGroup
from tierlog.broker.maintenance.range_reader import RangeReader, RangeUnavailable
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_events import DamageFound, ReplicaEvent
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.core.continuity import HeaderRules
from tierlog.broker.storage.range_repair import RangeRepair, range_repairs, rules_of
from tierlog.broker.storage.segment import CorruptLog, Damage
from tierlog.metadata.image import BrokerImage, ClusterImage
from tierlog.metadata.records import PartitionRecord

RETRY_S = 0.5
"""Delay before the second attempt: the image may lack the report, a flush may be in progress, or no replica
may serve the range. It doubles with each attempt up to RETRY_MAX_S, except while a truncation is being
prepared. A delay is at least as long as the attempt before it."""

RETRY_MAX_S = 8.0
"""Short enough that a replica that comes back is soon used."""

REPAIR_TRIES = 3
"""Attempts before a log may be truncated: by then uncommitted records are committed, and a restarted broker
is back.
"""

ReportLost = Callable[[Sequence[tuple[UUID, int]]], Awaitable[None]]
_log = structlog.get_logger("tierlog.repair")


class LogRepair:
    def __init__(
        self,
        broker_id: int,
        image: Callable[[], ClusterImage],
        replicas: ReplicaManager,
        clock: Clock,
        tasks: TaskGroup,
        report_lost: ReportLost | None,
        network: Network | None,
    ) -> None:
        """`report_lost` returns once the controller counts replicas of this broker as having lost their logs.
        It is None for a standalone broker, as is `network`.
        """
        self._broker_id = broker_id
        self._image = image
        self._replicas = replicas
        self._clock = clock
        self._tasks = tasks
        self._report_lost = report_lost
        self._reader = None if network is None else RangeReader(broker_id, network)
        self._range_lock = asyncio.Lock()
        """Held while a range is in memory, so that only one is."""
        self._repairing: dict[Replica, asyncio.Task[None]] = {}
        self._damaged: set[Replica] = set()  # some may be repaired or gone
        self.found_count = self.repaired_count = 0

    @property
    def damaged(self) -> list[Replica]:
        """Replicas with a range that is not served."""
        here = self._replicas.holds
        self._damaged = {one for one in self._damaged if one.log.damage_in_reach and here(one)}
        return sorted(self._damaged, key=lambda replica: replica.name)

    def on_replica_event(self, event: ReplicaEvent) -> None:
        if isinstance(event, DamageFound):
            self._record(event)

    def _record(self, event: DamageFound) -> None:
        """Stop serving the damaged records, and start a repair."""
        replica, segment, log = event.replica, event.segment, event.replica.log
        self._damaged.add(replica)
        for one in event.damage:
            if one in log.damage:
                continue  # already known
            self.found_count += 1
            log.add_damage(segment, one)
            _log.error(
                "log.damaged",
                partition=str(replica.name),
                file=str(segment.path()),
                position=one.position,
                first_offset=one.start_offset,
                end_offset=one.end_offset,
                noticed=event.cause,
            )
        if log.damage_in_reach and self._report_lost is not None and replica not in self._repairing:
            self._repairing[replica] = self._tasks.spawn(f"repair {replica.name}", self._repair(replica))

    async def stop(self) -> None:
        for task in self._repairing.values():
            task.cancel()
        await asyncio.gather(*self._repairing.values(), return_exceptions=True)

    async def _repair(self, replica: Replica) -> None:
        tries, now_s = 0, asyncio.get_running_loop().time
        try:
            while replica.log.damage_in_reach and self._is_here(replica):
                began_s = now_s()
                if await self._next_step(replica, tries):
                    tries = 0
                else:
                    wait_s = RETRY_S if replica.as_follower.is_fetching_paused else RETRY_S * 2**tries
                    took_s = now_s() - began_s  # a check for a truncation reads all that follows the damage
                    await asyncio.sleep(max(min(wait_s, RETRY_MAX_S), took_s))
                    tries = min(tries + 1, 2 * REPAIR_TRIES)
        finally:
            del self._repairing[replica]
            self._resume_fetching(replica)

    @safeguard("a damaged replica leaves the ISR before it is truncated")
    @safeguard("log repair keeps batches that are intact")
    async def _next_step(self, replica: Replica, tries: int) -> bool:
        """Do the next step. Returns False if no step is possible now."""
        if await self._repair_ranges(replica):
            return True
        return tries >= REPAIR_TRIES and await self.prepare_truncation(replica)

    # -- in place --

    async def _repair_ranges(self, replica: Replica) -> bool:
        """Repair ranges in place. Returns whether one was repaired."""
        any_repaired = False
        for repair in range_repairs(replica.log):
            if repair.is_current and await self._repair_range(replica, repair):
                any_repaired = True  # the other repairs of that segment are outdated now
        return any_repaired

    async def _repair_range(self, replica: Replica, repair: RangeRepair) -> bool:
        where = repair.damage
        for source in self._sources(replica):
            try:
                async with self._range_lock:
                    written = await self._write(replica, repair, source)
                if written:
                    await asyncio.get_running_loop().run_in_executor(replica.log_dir.threads, repair.sync)
            except RangeUnavailable as why:
                _log.info(
                    "log.damage.unserved",
                    partition=str(replica.name),
                    first_offset=where.start_offset,
                    end_offset=where.end_offset,
                    replica=source.broker_id,
                    why=str(why),
                )
                continue
            except OSError as failure:  # the directory handles it
                _log.error("log.repair_failed", partition=str(replica.name), error=str(failure))
                return False
            if not written or not self._is_here(replica) or not repair.finish():
                return False
            self._log_repaired(replica, where, source)
            replica.notify()
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

    async def read_elsewhere(
        self, replica: Replica, start: int, end: int, rules: HeaderRules, max_bytes: int
    ) -> AsyncIterator[Buffer]:
        """The batches in [start, end) from each other replica that serves them, at most `max_bytes` bytes."""
        if self._reader is None:
            return
        for source in self._sources(replica):
            try:
                async with self._range_lock:
                    content = await self._reader.read(source, replica, start, end, rules, max_bytes)
            except RangeUnavailable as why:
                _log.info(
                    "log.damage.unserved_remote",
                    partition=str(replica.name),
                    first_offset=start,
                    end_offset=end,
                    replica=source.broker_id,
                    why=str(why),
                )
                continue
            yield content

    def _log_repaired(self, replica: Replica, damage: Damage, source: BrokerImage) -> None:
        self.repaired_count += 1
        _log.warning(
            "log.repaired",
            partition=str(replica.name),
            first_offset=damage.start_offset,
            end_offset=damage.end_offset,
            replica=source.broker_id,
        )

    def _sources(self, replica: Replica) -> list[BrokerImage]:
        """The other replicas, in sync or not, since what they serve is committed; the leader first."""
        image = self._image()
        partition = image.partition(*replica.id)
        if partition is None:
            return []
        broker_ids = sorted(partition.replicas, key=lambda one: one != partition.leader)
        brokers = [image.brokers.get(one) for one in broker_ids if one != self._broker_id]
        return [broker for broker in brokers if broker is not None and not broker.fenced]

    def _is_here(self, replica: Replica) -> bool:
        return self._replicas.holds(replica) and replica.failed is None

    # -- the last resort --

    async def prepare_truncation(self, replica: Replica) -> bool:
        """Do the next step towards a truncation. Returns False if no step is possible now."""
        partition = self._image().partition(*replica.id)
        if partition is None or self._report_lost is None:
            return False
        was_paused = replica.as_follower.is_fetching_paused
        if not await self._is_served_elsewhere(replica, partition):
            self._resume_fetching(replica)  # this may be the only copy
            return False
        partition = self._image().partition(*replica.id)  # it may have changed
        if partition is None:
            return False
        if not was_paused:
            replica.as_follower.is_fetching_paused = True
            if replica.is_follower:
                self._replicas.restart_fetching(replica)
        if self._broker_id in (*partition.in_sync, *partition.eligible):
            await self._report_lost([replica.id])
            return False
        return was_paused and replica.is_follower and self.truncate(replica)

    @safeguard("a log is truncated only if another replica serves what it loses")
    async def _is_served_elsewhere(self, replica: Replica, partition: PartitionRecord) -> bool:
        """Whether another complete replica serves all committed records that a truncation removes."""
        damage, brokers = replica.log.damage_in_reach, self._image().brokers
        if self._reader is None or not damage:
            return False
        start, end = damage[0].start_offset, replica.high_watermark
        others = self.complete_replicas(partition)
        for one in sorted(others, key=lambda one: one != partition.leader):
            try:
                await self._reader.read(
                    brokers[one], replica, start, end, rules_of(replica.log), max_bytes=None
                )
            except RangeUnavailable:
                continue
            return self._is_here(replica) and replica.log.damage_in_reach[:1] == damage[:1]
        return False

    def complete_replicas(self, partition: PartitionRecord) -> list[int]:
        """The replicas that have everything committed and can serve it."""
        brokers = self._image().brokers
        marked = {self._broker_id, *partition.offline, *partition.emptied}
        return [
            one
            for one in (*partition.in_sync, *partition.eligible)
            if one not in marked and (broker := brokers.get(one)) is not None and broker.may_lead
        ]

    def truncate(self, replica: Replica) -> bool:
        log = replica.log
        damage = log.damage_in_reach
        if not damage:
            return False
        start, end = damage[0].start_offset, log.log_end_offset
        try:
            replica.as_follower.truncate_to(start, self._clock.now_ms())
        except BlockingIOError:
            return False  # a flush is under way
        except CorruptLog as fault:  # the remaining part is damaged too
            for segment in log.segments:
                replica.suspect(segment.base_offset, str(fault))
            return False
        except OSError as failure:  # the directory handles it
            _log.error("log.truncate_failed", partition=str(replica.name), error=str(failure))
            return False
        self.repaired_count += 1
        _log.warning(
            "log.truncated",
            partition=str(replica.name),
            from_offset=start,
            to_offset=end,
            leader=replica.leader,
        )
        return True

    def _resume_fetching(self, replica: Replica) -> None:
        if replica.as_follower.is_fetching_paused:
            replica.as_follower.is_fetching_paused = False
            if replica.is_follower and self._replicas.holds(replica):
                self._replicas.restart_fetching(replica)
