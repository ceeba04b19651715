"""Merges of tiered segments: leaders replace neighbouring segments by one with the same records."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from simulator.broker import SimBroker
from tierlog.base.types import TopicIdPartition
from tierlog.broker.remote.manifest_editor import PagesTo
from tierlog.broker.remote.remote_log_manager import CommandRejected
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.records import ManifestNode, RemoteSegment
from tierlog.tiering.copier import NotUploadable
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.object_store import ObjectStoreError

PAUSE_S = 0.1
"""Mean of the virtual seconds between two merges."""


async def merge_segments(
    brokers: Mapping[int, SimBroker], keys: Keys, rng: random.Random, done: Counter[str]
) -> None:
    """Merge two random segments from time to time, until cancelled."""
    while True:
        await asyncio.sleep(rng.expovariate(1 / PAUSE_S))
        broker = brokers[rng.choice(sorted(brokers))]
        led = [replica for replica in broker.replicas or () if replica.is_leader and replica.failed is None]
        tiered = [replica for replica in led if replica.config.remote_storage_enable]
        if broker.process is not None and broker.tiering is not None and broker.is_up and tiered:
            broker.process.spawn(_merge(broker, rng.choice(tiered), keys, random.Random(rng.random()), done))


async def _merge(
    broker: SimBroker, replica: Replica, keys: Keys, rng: random.Random, done: Counter[str]
) -> None:
    where, metadata, tiering = replica.id, broker.metadata, broker.tiering
    if metadata is None or tiering is None:
        return
    remote = metadata.image.remote_partition(*where)
    try:
        old = await neighbours(tiering.log_manager.editor.pages_to, where, remote, rng)
        if len(old) > 1:
            await tiering.merger.merge(replica, old)
            done["segments merged"] += len(old)
    except (ObjectStoreError, CommandRejected, MetadataUnavailable, NotUploadable):
        return  # the planner abandons the copy, or has


async def neighbours(
    pages_to: PagesTo, where: TopicIdPartition, remote: RemotePartition, rng: random.Random
) -> list[RemoteSegment]:
    """Two segments of one page or of the quorum."""
    first, end = remote.first_offset, remote.end_offset
    if first is None or end is None:
        return []
    offset = rng.randrange(first, end)
    loaded = await pages_to(where, remote.nodes, offset)
    nodes: Sequence[ManifestNode] = list(loaded.values())[-1] if loaded else remote.entries
    entries = [node for node in nodes if isinstance(node, RemoteSegment)]
    at = next((at for at, entry in enumerate(entries) if entry.end_offset > offset), 0)
    return entries[at : at + 2]
