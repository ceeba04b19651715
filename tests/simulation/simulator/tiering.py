"""Tiered topics of a run: settings, the bucket with its faults, and the checks at the end."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from simulator import bulk_loads, gapped, low_disks, remote_damage, snapshots, tier_switch
from simulator.broker import SimBroker
from simulator.bulk_loads import BulkLoads
from simulator.compacted import TOPIC as COMPACTED
from simulator.compacted import CompactedHistory, draw_history, scan_in_the_end
from simulator.history_jobs import gathered, replace_segments
from simulator.loop import SimLoop
from simulator.merger import merge_segments
from simulator.object_store import Bucket, SimStore, store_outages
from simulator.remote_damage import RemoteDamage
from simulator.retention import SHARE, RetentionWitness, draw_limits
from simulator.snapshots import SnapshotReader
from simulator.tier_switch import TierSwitch
from simulator.tier_witness import TierWitness
from simulator.witness import Violation
from simulator.workload import FETCH, TOPIC, Client, History, earliest, values_of
from tierlog.base.types import TopicIdPartition
from tierlog.broker.maintenance.disk_pressure import DROP, DiskPressure
from tierlog.broker.remote import remote_storage_cleaner
from tierlog.broker.remote.loads import Loads
from tierlog.broker.remote.tier_state_machine import EARLIEST_PENDING_UPLOAD, TierStateMachine
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.metadata.controller import remote
from tierlog.metadata.controller.commands import NewTopic
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tierlog.tiering import held_snapshots, page_tree, quarantine
from tierlog.tiering import snapshots as product_snapshots
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.page_tree import TreeLimits

TIERED = 0.55
"""Share of the cluster runs in which the topics are tiered."""

COMPLETION_TIMEOUT_S = 120.0
"""Virtual seconds within which all due uploads must complete. A retry comes after thirty at most, and
producers write small segments faster than a leader uploads them. A leader uploads seven segments a second,
and up to 450 may be left when the producers stop."""

POLL_S = 0.2
SCAN_S = 120.0
"""Virtual seconds within which a consumer reads a compacted topic in a healthy cluster."""

MERGE_S = 5.0  # for which segments are merged after the faults
SEGMENT_BYTES = (500, 1000, 2000)
LOCAL_BYTES = (0, 0, 1000)
GRACE_MS = (1500, 3_600_000)
"""Grace periods: a short one, so that objects are deleted in a run, or the default, which exceeds any run."""

SPILL_MS = (10, 10, 1000, 600_000)
SHORTEST_GRACE_MS = 10
"""Time limits of a page during the faults, and the grace period that goes with the shortest of them.
Together they last about as long as a page takes, so that its deletion and its commit race."""

MAX_LAG_MS = (None, None, 200, 1000, 5000)
"""remote.log.copy.max.lag.ms; None: not set."""

FREE_BYTES_MIN = (0, 2000, low_disks.FREE_BYTES_MIN, low_disks.FREE_BYTES_MIN)
"""log.dir.free.bytes.min. A disk that is nearly full has less than 4,000 bytes left."""

DROPS, SKIPS = 0.5, 0.3
"""Share of the tiered runs whose topics drop uploaded segments on low disks, and of those in which empty
replicas start after what is remote."""

SMALL_TREE = TreeLimits(entries=3, references=2, page_nodes=3)
"""Few entries in the quorum and in a page, so that a run has pages of several levels. Two entries are spilled
at a time, so that pages are written again."""


def is_tiered(seed: int) -> bool:
    """Whether the topics of a cluster run are tiered."""
    return random.Random(f"tiering {seed}").random() < TIERED


def _small_tree(budget_bytes: int, partitions: int, format_version: int) -> TreeLimits:
    return SMALL_TREE if format_version > 1 else replace(SMALL_TREE, is_tree=False)


class Tiering:
    """Tiering of one run. Uses generators of its own."""

    def __init__(
        self,
        seed: int,
        cluster_id: str,
        loop: SimLoop,
        brokers: Mapping[int, SimBroker],
        done: Counter[str],
        check_durable: Callable[[str, int, int, str], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        rng = random.Random(f"tiering {seed}")
        self._seed = seed
        self.is_on = rng.random() < TIERED
        self._rng, self._brokers, self._failed = rng, brokers, failed
        self._keys, self._done = Keys(cluster_id), done
        self.until_completion: list[asyncio.Task[None]] = []
        """Merges, and readers of snapshots."""
        self._segment_bytes = rng.choice(SEGMENT_BYTES), rng.choice(SEGMENT_BYTES)
        self._local_bytes, self._grace_ms = rng.choice(LOCAL_BYTES), rng.choice(GRACE_MS)
        self._spill_ms = random.Random(f"pages {seed}").choice(SPILL_MS)
        if self._grace_ms == min(GRACE_MS) and self._spill_ms == min(SPILL_MS):
            self._grace_ms = SHORTEST_GRACE_MS
        drawn = random.Random(f"copy lag {seed}")
        self._max_lag_ms, self._free_bytes_min = drawn.choice(MAX_LAG_MS), drawn.choice(FREE_BYTES_MIN)
        self._drops, self._skips = drawn.random() < DROPS, drawn.random() < SKIPS
        self._has_low_disks = self._drops and self._free_bytes_min == low_disks.FREE_BYTES_MIN
        if self._has_low_disks:
            self._local_bytes = low_disks.LOCAL_BYTES
        self._done = done
        self.compacted = draw_history(random.Random(f"compacted {seed}")) if self.is_on else None
        self._gaps = random.Random(f"gapped {seed}")
        self.gapped = gapped.draw_history(self._gaps) if self.is_on else None
        switches = random.Random(f"tier switch {seed}")
        is_switched = self.is_on and switches.random() < tier_switch.SHARE
        self._switch = TierSwitch(brokers, switches, done) if is_switched else None
        self._closing: asyncio.Task[None] | None = None
        limited = random.Random(f"retention {seed}")
        self._limits = {TOPIC: draw_limits(limited)} if limited.random() < SHARE and self.is_on else {}
        self.witness = TierWitness(
            brokers,
            self._keys,
            done,
            check_durable,
            loop.time,
            self._grace_ms,
            RetentionWitness(self._limits, done),
        )
        self.witness.gapped = frozenset((gapped.TOPIC,))
        self.bucket = Bucket(loop, random.Random(rng.random()), self.witness, failed)
        self.witness.bucket = self.witness.snapshots.bucket = self.bucket
        holds = random.Random(f"snapshots {seed}")
        self._reader = (
            SnapshotReader(self.bucket, self._keys, holds, done, lambda: self.witness.image)
            if self.is_on and holds.random() < snapshots.SHARE
            else None
        )
        self._damages = random.Random(f"remote damage {seed}")
        damaged = self.is_on and self._damages.random() < remote_damage.SHARE
        self._damage = RemoteDamage(self.bucket, self._keys, done) if damaged else None
        self._passing = random.Random(f"passing damage {seed}")
        self._damages_pass = self.is_on and self._passing.random() < remote_damage.PASSING_SHARE

    # --- settings of the run

    @property
    def configs(self) -> Sequence[tuple[str, str]]:
        """Topic configs of tiered topics."""
        if not self.is_on:
            return ()
        chosen = [("remote.storage.enable", "true"), ("local.retention.bytes", str(self._local_bytes))]
        if self._max_lag_ms is not None:
            chosen.append(("remote.log.copy.max.lag.ms", str(self._max_lag_ms)))
        if self._drops:
            chosen.append(("remote.log.disk.pressure.policy", DROP))
        return tuple(chosen)

    def more_topics(self, configs: Sequence[tuple[str, str]]) -> Sequence[NewTopic]:
        """The topic that is compacted in the bucket, and the one that is tiered later, if the run has them.
        `configs`: of all topics."""
        topics = []
        for history in self.histories:
            own = {**dict(configs), **dict(self.configs), **gapped.CONFIGS}
            if history.topic == COMPACTED:
                own["segment.bytes"] = str(self._segment_bytes[0])
            else:
                own["remote.storage.enable"] = "false"
            own["delete.retention.ms"] = str(history.delete_retention_ms)
            configured = tuple(own.items())
            topics.append(
                NewTopic(name=history.topic, partitions=1, replication_factor=3, configs=configured)
            )
        return topics

    @property
    def histories(self) -> list[CompactedHistory]:
        """Histories of the compacted topics."""
        return [history for history in (self.compacted, self.gapped) if history is not None]

    @property
    def moves_log_start(self) -> bool:
        """Whether the log start of the main topic moves within the run."""
        return self.deletes or self._switch is not None

    @property
    def deletes(self) -> bool:
        """Whether retention deletes records within the run."""
        return bool(self._limits)

    def keep_all_records(self) -> None:
        """No retention that deletes within the run."""
        self._limits.clear()

    @property
    def retention(self) -> Mapping[str, str]:
        """Retention configs of the main topic."""
        return self._limits[TOPIC].configs if self.deletes else {}

    def settings(self, node: int) -> Mapping[str, str]:
        """Settings of a broker. Brokers roll at different offsets, so a copy may end within another's
        segment."""
        if not self.is_on:
            return {}
        return {
            "log.segment.bytes": str(self._segment_bytes[node % 2]),
            "remote.log.manager.task.interval.ms": "1000",
            "remote.log.merge.min.segments": "4",
            "remote.log.delete.grace.ms": str(self._grace_ms),
            "log.dir.free.bytes.min": str(self._free_bytes_min),
            **({"log.cleaner.backoff.ms": str(gapped.CLEANER_BACKOFF_MS)} if self.gapped else {}),
            "follower.fetch.last.tiered.offset.enable": str(self._skips).lower(),
        }

    def store(self, broker: str) -> SimStore | None:
        return SimStore(self.bucket, broker) if self.is_on else None

    def store_outages(self) -> Coroutine[Any, Any, None]:
        names = [broker.name for broker in self._brokers.values()]
        return store_outages(self.bucket, names, random.Random(self._rng.random()))

    def merges(self, history: History, partitions: int) -> Coroutine[Any, Any, None]:
        """Merges by leaders, and by jobs outside of them, until cancelled. In some runs also bulk loads into
        the main topic."""
        rng = random.Random(f"merges {self._rng.random()}")
        jobs, store = random.Random(f"history jobs {rng.random()}"), SimStore(self.bucket, "job")
        works = [
            merge_segments(self._brokers, self._keys, rng, self._done),
            replace_segments(self._brokers, store, self._keys, self._grace_ms, jobs, self._done),
        ]
        loads = random.Random(f"bulk loads {self._seed}")
        if loads.random() < bulk_loads.SHARE and self._switch is None:
            parts = self._brokers, SimStore(self.bucket, "load"), self._keys, self._grace_ms
            works.append(BulkLoads(*parts, history, loads, self._done).play(partitions))
        return gathered(*works)

    async def snapshots(self) -> None:
        """Readers that hold snapshots, if the run has them."""
        if self._reader is not None:
            await self._reader.play()

    def operators(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Operators that change the settings of topics, and damage of objects, until the faults end."""
        if self._switch is not None:
            yield self._switch.play()
        if self.gapped is not None:
            yield gapped.tier_later(self._brokers, self._gaps, self._done)
        if self._has_low_disks:
            yield self._lower_disks("faults")
        if self._damages_pass:
            yield remote_damage.damage_in_passing(
                self.bucket, self._keys, self.witness, self._passing, self._done
            )

    def _lower_disks(self, phase: str) -> Coroutine[Any, Any, None]:
        return low_disks.lower(self._brokers, random.Random(f"low disks {phase} {self._seed}"))

    async def end_faults(self, start_ended: Callable[[], None]) -> None:
        """Tier what is to be tiered in the end. `start_ended` starts nodes that have ended: the changes need
        a quorum."""
        ending = asyncio.ensure_future(self._tier_in_the_end())
        while not (await asyncio.wait((ending,), timeout=POLL_S))[0]:
            start_ended()
        ending.result()

    async def _tier_in_the_end(self) -> None:
        if self.gapped is not None:
            await gapped.tier(self._brokers)
        if self._switch is not None:
            await self._switch.end()
            self._closing = asyncio.ensure_future(
                self._switch.close_gaps(lambda: self.witness.has_gap(TOPIC))
            )

    @contextmanager
    def patched_limits(self) -> Iterator[None]:
        """Product with small pages, short rechecks and counted drops, for the time of the run."""
        with ExitStack() as stack:
            if self.is_on:
                stack.enter_context(patch.object(page_tree, "limits_for", _small_tree))
                stack.enter_context(patch.object(remote, "SPILL_TIMEOUT_MS", self._spill_ms))
                stack.enter_context(
                    patch.object(quarantine, "RECHECK_FIRST_MS", remote_damage.RECHECK_FIRST_MS)
                )
                stack.enter_context(
                    patch.object(product_snapshots, "SHORTEST_LEASE_MS", snapshots.SHORTEST_LEASE_MS)
                )
                for module in (held_snapshots, remote_storage_cleaner):
                    stack.enter_context(patch.object(module, "LOOK_INTERVAL_MS", snapshots.LOOK_INTERVAL_MS))
                stack.enter_context(patch.object(Loads, "_submit", bulk_loads.slow_submit(self._seed)))
                stack.enter_context(patch.object(DiskPressure, "drop_before", self._counted_drop()))
                stack.enter_context(patch.object(TierStateMachine, "ask_leader", self._counted_start()))
            yield

    def _counted_drop(self) -> Callable[[DiskPressure, LogDirectory, Replica, int], None]:
        drop = DiskPressure.drop_before

        def counted(
            pressure: DiskPressure, directory: LogDirectory, replica: Replica, end_offset: int
        ) -> None:
            before = pressure.dropped_segments[directory]
            drop(pressure, directory, replica, end_offset)
            self._done["segments dropped on low disks"] += pressure.dropped_segments[directory] - before

        return counted

    def _counted_start(self) -> Callable[..., Coroutine[Any, Any, int]]:
        ask = TierStateMachine.ask_leader

        async def counted(machine: TierStateMachine, replica: Replica, position: Any, wanted: int) -> int:
            self._done["starts after what is remote"] += wanted == EARLIEST_PENDING_UPLOAD
            return await ask(machine, replica, position, wanted)

        return counted

    @property
    def faults(self) -> Mapping[str, int]:
        return {f"store: {kind}": count for kind, count in self.bucket.faults.items()}

    # --- what must hold

    def on_published(self, image: ClusterImage) -> None:
        if self.is_on:
            self.witness.on_published(image)

    def log_start(self, partition: int) -> int:
        """The committed log start offset of the main topic. If nothing was remote when tiering was switched
        off, retention is local, and the offset is the leader's."""
        image = self.witness.image
        known = None if image is None else image.topic(TOPIC)
        if known is None or image is None or self.witness.is_tiered(TOPIC):
            return self.witness.log_start(TOPIC, partition)
        if TopicIdPartition(known.topic_id, partition) in image.remote:
            return self.witness.log_start(TOPIC, partition)
        found = (one.replicas.get(TOPIC, partition) for one in self._brokers.values() if one.replicas)
        return max((one.log_start_offset for one in found if one is not None and one.is_leader), default=0)

    def check(self) -> list[str]:
        return self.witness.check() if self.is_on else []

    def complete_logs(self, replica: Replica) -> Iterator[bytes]:
        """The log of a replica across both tiers."""
        if self.is_on:
            return self.witness.complete_logs(replica)
        return iter([b"".join(content for _, content in replica.log.batches(0))])

    async def await_completion(
        self, raise_violation: Callable[[], None], timeout_s: float = COMPLETION_TIMEOUT_S
    ) -> None:
        """Wait until all rolled segments are remote and all due deletions are done. No client writes any
        more."""
        if not self.is_on:
            return
        remote.SPILL_TIMEOUT_MS = max(SPILL_MS)  # else every page may time out
        if self.until_completion:
            if self._has_low_disks:  # most segments are remote by now
                self.until_completion.append(asyncio.ensure_future(self._lower_disks("end")))
            await asyncio.sleep(MERGE_S)
            for task in self.until_completion:
                task.cancel()
        if self._reader is not None:
            await self._reader.end_all()
        deadline = asyncio.get_running_loop().time() + timeout_s
        while why := self.witness.pending_work():
            raise_violation()
            if asyncio.get_running_loop().time() > deadline:
                raise Violation(f"tiering does not end: {why}")
            await asyncio.sleep(POLL_S)

    async def read_back_all(self, client: Client, ends: Sequence[int]) -> None:
        """Consume each partition up to its end; before that, if the run damages objects, as far as they
        allow. Then read the compacted topics once more. No other client runs, and all tiering is done."""
        if self._damage is not None:
            self._damage.inflict(self.witness, self._kept_from(), self._damages)
            async with _time_limit(remote_damage.READ_S, "a consumer does not get past damaged objects"):
                for partition, end in enumerate(ends):
                    await read_back(client, partition, end, self._damage)
            self._damage.restore()
        async with _time_limit(remote_damage.RESTORED_S, "a consumer does not get all records"):
            for partition, end in enumerate(ends):
                await read_back(client, partition, end)
        for history in self.histories:
            async with _time_limit(SCAN_S, f"a consumer does not get to the end of {history.topic}"):
                await scan_in_the_end(client, history, self._done)
        if self._closing is not None:
            self._closing.cancel()

    def _kept_from(self) -> dict[int, int]:
        """Partition of the main topic -> the first offset that a broker has locally."""
        found: dict[int, int] = {}
        for broker in self._brokers.values():
            for replica in broker.replicas or ():
                if replica.name.topic == TOPIC:
                    number, start = replica.name.partition, replica.local_log_start_offset
                    found[number] = min(found.get(number, start), start)
        return found


@asynccontextmanager
async def _time_limit(seconds: float, violation: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Violation(f"{violation} within {seconds:g} s") from None


async def read_back(client: Client, partition: int, end: int, damage: RemoteDamage | None = None) -> None:
    """Consume all records of a partition from both tiers, except those of damaged objects."""
    offset = 0
    while offset < end:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 16)
        request = FetchRequest(
            max_wait_ms=100, min_bytes=1, topics=[FetchTopic(topic=client.topic, partitions=[wanted])]
        )
        answer = await client.call_leader(partition, FETCH, 12, request)
        if answer is None:
            continue
        result = answer.responses[0].partitions[0]  # type: ignore[attr-defined]
        if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start = await earliest(client, partition)
            if start is not None and start <= offset:
                raise Violation(f"partition {partition}: offset {offset} is out of range, {end} is the end")
            offset = offset if start is None else start
            continue
        if result.error_code != ErrorCode.NONE:
            behind = None if damage is None else damage.end_behind(partition, offset, result.error_code)
            if behind is None:
                await client.lost(partition)
            else:
                offset = behind
            continue
        shown = [record for record in values_of(bytes(result.records or b"")) if record[0] >= offset]
        if [number for number, _ in shown] != list(range(offset, offset + len(shown))):
            raise Violation(f"partition {partition}: records are missing after {offset}: {shown}")
        client.history.note(partition, shown, "seen")
        offset += len(shown)
