"""Jobs outside of the brokers which replace segments of history, and may die at any step (ADR 0042).

A job begins at the leader, joins two segments as an executor does, and asks the leader to commit. It does not
see what the broker does in the meantime: a merge, a compaction, retention, or a new leader.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any

from simulator.broker import SimBroker
from simulator.merger import neighbours
from tierlog.base.segments import SegmentExport
from tierlog.broker.remote.remote_log_manager import CommandRejected
from tierlog.broker.remote.replacements import ReplacementLease, Replacements
from tierlog.broker.remote.tier_views import TierRefused
from tierlog.broker.remote.tiering import Tiering
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.records import RemoteSegment
from tierlog.records.chunks import ChunkBuilder
from tierlog.tiering.copier import NotUploadable, SegmentBody, copy_segment
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.merged_segment import MergedSegment
from tierlog.tiering.object_store import ObjectStore, ObjectStoreError
from tierlog.tiering.remote_log import RemoteLog

PAUSE_S = 0.3
"""Mean of the virtual seconds between two jobs."""

LEASE_MS = 2_000
DIES = 0.15
"""Probability that a job dies before it writes its objects, and then again before the hand-over."""

FAILURES = (ObjectStoreError, CommandRejected, MetadataUnavailable, NotUploadable, TierRefused)


class TimedBody:
    """The body of a job's segment. Nothing is put later than half of the grace after the announcement: an
    abandoned copy is deleted after the grace, and an object that is put later would stay."""

    def __init__(self, body: SegmentBody, until_s: float) -> None:
        self.size, self.base_offset, self.end_offset = body.size, body.base_offset, body.end_offset
        self._body, self._until_s = body, until_s

    async def read_into(self, buffer: memoryview) -> None:
        await self._body.read_into(buffer)
        self._require_time()

    def finish(self) -> tuple[SegmentExport, ChunkBuilder]:
        self._require_time()
        return self._body.finish()

    def _require_time(self) -> None:
        if asyncio.get_running_loop().time() > self._until_s:
            raise NotUploadable("the job is too slow")


async def replace_segments(
    brokers: Mapping[int, SimBroker],
    store: ObjectStore,
    keys: Keys,
    grace_ms: int,
    rng: random.Random,
    done: Counter[str],
) -> None:
    """Start a job from time to time, until cancelled. It ends with the process of its leader."""
    while True:
        await asyncio.sleep(rng.expovariate(1 / PAUSE_S))
        broker = brokers[rng.choice(sorted(brokers))]
        led = [replica for replica in broker.replicas or () if replica.is_leader and replica.failed is None]
        tiered = [replica for replica in led if replica.config.remote_storage_enable]
        if broker.process is not None and broker.tiering is not None and broker.is_up and tiered:
            parts = broker, broker.tiering, rng.choice(tiered), store, keys
            broker.process.spawn(_run(_replace(*parts, grace_ms, random.Random(rng.random()), done), done))


async def gathered(*works: Coroutine[Any, Any, None]) -> None:
    """Run several until cancelled."""
    await asyncio.gather(*works)


async def _run(job: Coroutine[Any, Any, None], done: Counter[str]) -> None:
    try:
        await job
    except FAILURES:
        done["history jobs refused"] += 1


async def _replace(
    broker: SimBroker,
    tiering: Tiering,
    replica: Replica,
    store: ObjectStore,
    keys: Keys,
    grace_ms: int,
    rng: random.Random,
    done: Counter[str],
) -> None:
    where, metadata, replacements = replica.id, broker.metadata, tiering.replacements
    if metadata is None:
        return
    remote = metadata.image.remote_partition(*where)
    old = await neighbours(tiering.log_manager.editor.pages_to, where, remote, rng)
    if len(old) < 2:
        return
    ids, until_s = [entry.uuid for entry in old], asyncio.get_running_loop().time() + grace_ms / 2000
    lease = await replacements.begin(where, old[0].base_offset, ids, [old[-1].end_offset], LEASE_MS)
    if rng.random() < DIES:
        done["history jobs that died"] += 1
        return
    new = await _write(tiering.replacements.remote_log, lease, old, store, keys, until_s)
    await asyncio.sleep(rng.expovariate(1 / PAUSE_S))
    if rng.random() < DIES:
        done["history jobs that died"] += 1
        return
    await replacements.commit(where, ids, [new])
    done["history jobs"] += 1
    if rng.random() < DIES:
        await _repeat(replacements, lease, old, new)


async def _write(
    log: RemoteLog,
    lease: ReplacementLease,
    old: list[RemoteSegment],
    store: ObjectStore,
    keys: Keys,
    until_s: float,
) -> RemoteSegment:
    where = lease.attempt.partition
    body = MergedSegment(store, keys, log.indexes, log.quarantine, where, old)
    return await copy_segment(store, keys, TimedBody(body, until_s), lease.attempt)


async def _repeat(
    replacements: Replacements, lease: ReplacementLease, old: list[RemoteSegment], new: RemoteSegment
) -> None:
    """The response was lost."""
    await replacements.commit(lease.attempt.partition, [entry.uuid for entry in old], [new])
