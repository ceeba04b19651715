"""Bulk loads into the main topic, by jobs whose driver and tasks may die or repeat themselves at any step.

Values of a load are those of a producer of its own, so that the run's checks find each of them once and in
order. A job stops the producers of its partition most of the time, as an operator should. Otherwise a record
that is written in between makes the load fail, and no acknowledged record may be lost.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from io import BytesIO
from typing import Any, TypeVar
from uuid import UUID

from simulator.broker import SimBroker
from simulator.workload import START_MS, TOPIC, History
from tierlog.base.types import TopicIdPartition, random_uuid
from tierlog.broker.remote.loads import LoadLease, Loads
from tierlog.broker.remote.remote_log_manager import CommandRejected
from tierlog.broker.remote.replacements import TierBusy
from tierlog.broker.remote.tier_views import TierRefused
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.controller.commands import LoadSegments, StartCopy
from tierlog.metadata.image import Load
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.records import RemoteSegment
from tierlog.records.batch import assign, read_header
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark.history.segment_writer import SegmentEnd, SegmentWriter
from tierlog.tiering.copier import Attempt
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.object_store import ObjectStore, ObjectStoreError

T = TypeVar("T")

SHARE = 0.5
"""Share of the tiered runs with bulk loads."""

PAUSE_S = 0.6
"""Mean of the virtual seconds between two loads."""

LOADS_MAX = 14
"""The quorum keeps the ids of 16 loads of a partition."""

ATTEMPTS, RETRY_S = 12, 0.25
TIMEOUT_S = 4.0
LEASE_MS = 2_000
STOPS_PRODUCERS = 0.8
COMMIT_S = 0.1
"""Mean of the virtual seconds that a request to commit a load is under way."""

STARTS_PRODUCERS_EARLY, EARLY_MAX_S = 0.4, 0.2
"""Probability that the producers start again during the commit, so that some of them write just before or
after the partition is closed."""

DIES, LOSES_RESPONSE, SPECULATES = 0.1, 0.3, 0.2
FIRST_NUMBER = 100_000
"""Number of the first load among the producers."""

FAILURES = (ObjectStoreError, CommandRejected, MetadataUnavailable, TierRefused, TimeoutError, OSError)


def slow_submit(seed: int) -> Callable[..., Coroutine[Any, Any, None]]:
    """In place of `Loads._submit`: a request that commits a load takes long to reach the quorum. Producers
    may send records in the meantime."""
    submit, rng = Loads._submit, random.Random(f"slow commits of loads {seed}")

    async def slow(loads: Loads, command: StartCopy | LoadSegments) -> None:
        if isinstance(command, LoadSegments):
            await asyncio.sleep(rng.expovariate(1 / COMMIT_S))
        await submit(loads, command)

    return slow


class _TooSlow(TierRefused):
    """Nothing is put later than half of the grace after its announcement."""


class BulkLoads:
    def __init__(
        self,
        brokers: Mapping[int, SimBroker],
        store: ObjectStore,
        keys: Keys,
        grace_ms: int,
        history: History,
        rng: random.Random,
        done: Counter[str],
    ) -> None:
        self._brokers, self._store, self._keys = brokers, store, keys
        self._put_within_s = grace_ms / 2000
        self._history, self._rng, self._done = history, rng, done

    async def play(self, partitions: int) -> None:
        """Load from time to time, until cancelled."""
        for number in range(LOADS_MAX):
            await asyncio.sleep(self._rng.expovariate(1 / PAUSE_S))
            partition = self._rng.randrange(partitions)
            values = [b"%d-%d" % (FIRST_NUMBER + number, at) for at in range(self._rng.choice((1, 3, 8)))]
            await self._load(partition, random_uuid(self._rng), values)

    async def _load(self, partition: int, load_id: UUID, values: list[bytes]) -> None:
        """One load, as a job that is started again until it succeeds."""
        for _ in range(ATTEMPTS):
            paused = self._rng.random() < STOPS_PRODUCERS
            if paused:
                self._history.paused.add(partition)
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    if await self._attempt(partition, load_id, values):
                        return
            except FAILURES:
                self._done["bulk loads refused"] += 1
            finally:
                self._history.paused.discard(partition)
            await asyncio.sleep(self._rng.expovariate(1 / RETRY_S))

    async def _attempt(self, partition: int, load_id: UUID, values: list[bytes]) -> bool:
        """Returns whether the load is done."""
        broker, replica = self._leader(partition)
        loads = None if broker.tiering is None else broker.tiering.loads
        if loads is None:
            return False
        where = replica.id
        found = await self._begun(broker, loads, where, load_id)
        if isinstance(found, Load):
            self._done["bulk loads repeated"] += 1
            return self._note(partition, found, values)
        if self._rng.random() < DIES:
            self._done["bulk loads that died"] += 1
            return False
        segments, offset = list[RemoteSegment](), found.base_offset
        parts = self._rng.randint(1, min(3, len(values)))
        for number in range(parts):
            part = values[len(values) * number // parts : len(values) * (number + 1) // parts]
            segment = await self._write(broker, loads, found, offset, part)
            if self._rng.random() < SPECULATES:
                segment = await self._write(broker, loads, found, offset, part)
            segments.append(segment)
            offset = segment.end_offset
        if self._rng.random() < STARTS_PRODUCERS_EARLY:
            early_s = self._rng.uniform(0, EARLY_MAX_S)
            asyncio.get_running_loop().call_later(early_s, self._history.paused.discard, partition)
        load = await self._committed(broker, loads, where, load_id, segments)
        if self._rng.random() < LOSES_RESPONSE:
            return False
        self._done["bulk loads"] += 1
        return self._note(partition, load, values)

    async def _begun(
        self, broker: SimBroker, loads: Loads, where: TopicIdPartition, load_id: UUID
    ) -> Load | LoadLease:
        """Begin once everything before is in the bucket."""
        while True:
            try:
                return (await self._at(broker, _called(loads, where, load_id)))[1]
            except (TierRefused, OSError):
                await asyncio.sleep(0.05)  # until the timeout of the attempt

    async def _committed(
        self,
        broker: SimBroker,
        loads: Loads,
        where: TopicIdPartition,
        load_id: UUID,
        segments: list[RemoteSegment],
    ) -> Load:
        """Commit once all in-sync replicas are at the end of the log."""
        while True:
            try:
                return await self._at(broker, loads.commit(where, load_id, segments))
            except (TierBusy, MetadataUnavailable):
                await asyncio.sleep(0.05)  # until the timeout of the attempt

    async def _write(
        self, broker: SimBroker, loads: Loads, lease: LoadLease, base_offset: int, values: list[bytes]
    ) -> RemoteSegment:
        end_offset = base_offset + len(values)
        where = lease.partition
        attempt = await self._at(broker, loads.announce(where, lease.load_id, base_offset, end_offset - 1))
        until_s = asyncio.get_running_loop().time() + self._put_within_s
        file = BytesIO()
        entry, bundle = _segment(file, attempt, lease, base_offset, values)
        await asyncio.sleep(self._rng.expovariate(1 / 0.02))
        for key, content, checksum in (
            (self._keys.log(where, entry), file.getvalue(), entry.log_crc32c),
            (self._keys.index(where, entry), bundle, entry.index_crc32c),
        ):
            if asyncio.get_running_loop().time() > until_s:
                raise _TooSlow("the job is too slow")
            await self._store.put(key, content, crc32c=checksum)
        return entry

    def _note(self, partition: int, load: Load, values: list[bytes]) -> bool:
        records = list(enumerate(values, load.base_offset))
        self._history.note(partition, records, "acknowledged")
        return True

    def _leader(self, partition: int) -> tuple[SimBroker, Replica]:
        """A broker that believes to lead the partition."""
        numbers = sorted(self._brokers)
        self._rng.shuffle(numbers)
        for broker in (self._brokers[number] for number in numbers):
            replica = None if broker.replicas is None else broker.replicas.get(TOPIC, partition)
            is_alive = broker.process is not None and broker.process.alive and not broker.process.paused
            if replica is not None and replica.is_leader and is_alive and broker.is_up:
                return broker, replica
        raise TierRefused("there is no leader")

    async def _at(self, broker: SimBroker, request: Coroutine[Any, Any, T]) -> T:
        """Run a request in the broker's process, with which it ends; the job then waits for its timeout."""
        if broker.process is None:
            request.close()
            raise TierRefused("the broker has ended")
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        broker.process.spawn(_resolve(request, result))
        return await result


async def _resolve(request: Coroutine[Any, Any, T], result: "asyncio.Future[T]") -> None:
    try:
        found = await request
    except FAILURES as failure:
        if not result.done():
            result.set_exception(failure)
        return
    if not result.done():
        result.set_result(found)


async def _called(loads: Loads, where: TopicIdPartition, load_id: UUID) -> tuple[Replica, Load | LoadLease]:
    return loads.begin(where, load_id, LEASE_MS)


def _segment(
    file: BytesIO, attempt: Attempt, lease: LoadLease, base_offset: int, values: list[bytes]
) -> tuple[RemoteSegment, bytes]:
    """A segment as an executor writes it."""
    now_ms = START_MS + int(asyncio.get_running_loop().time() * 1000)
    writer = SegmentWriter(file, base_offset, 200)
    for at, value in enumerate(values, base_offset):
        batch = encode_batch([NewRecord(now_ms, None, value, ())])
        assign(memoryview(batch), 0, at, lease.leader_epoch)
        writer.add(batch, read_header(batch))
    end = SegmentEnd(
        uuid=attempt.uuid,
        leader_epoch=lease.leader_epoch,
        end_offset=base_offset + len(values),
        leader_epochs=lease.leader_epochs,
        producer_snapshot=lease.producer_snapshot,
    )
    finished = writer.finish(end)
    return finished.entry, finished.bundle
