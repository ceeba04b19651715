"""Merges of tiered segments: leaders replace neighbouring segments by one with the same records."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import crc32c

from simulator.broker import SimBroker
from tierlog.base.types import TopicIdPartition
from tierlog.broker.remote.manifest_editor import PagesTo
from tierlog.broker.remote.remote_log_manager import CommandRejected
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.records import Node, RemoteSegment
from tierlog.records.batch import iter_batches
from tierlog.records.chunks import ChunkBuilder
from tierlog.tiering.copier import Attempt
from tierlog.tiering.format.bundle import ChunkTable, IndexBundle, decode_bundle, encode_bundle
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.object_store import ObjectStore, ObjectStoreError

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
    where, metadata, tiering, store = replica.id, broker.metadata, broker.tiering, broker.objects
    if metadata is None or tiering is None or store is None:
        return
    editor, remote = tiering.log_manager.editor, metadata.image.remote_partition(*where)

    def resolve() -> RemotePartition:
        return metadata.image.remote_partition(*where)

    async def upload(attempt: Attempt, base: int, last: int) -> RemoteSegment:
        return await put_merged(store, keys, attempt, old)

    try:
        old = await _neighbours(editor.pages_to, where, remote, rng)
        if len(old) > 1:
            ends = (old[-1].end_offset,)
            await editor.replace(where, replica.leader_epoch, resolve, old, ends, upload)
            done["segments merged"] += len(old)
    except (ObjectStoreError, CommandRejected, MetadataUnavailable):
        return  # the planner abandons the copy


async def _neighbours(
    pages_to: PagesTo, where: TopicIdPartition, remote: RemotePartition, rng: random.Random
) -> list[RemoteSegment]:
    """Two segments of one page or of the quorum."""
    first, end = remote.first_offset, remote.end_offset
    if first is None or end is None:
        return []
    offset = rng.randrange(first, end)
    loaded = await pages_to(where, remote.nodes, offset)
    nodes: Sequence[Node] = list(loaded.values())[-1] if loaded else remote.entries
    entries = [node for node in nodes if isinstance(node, RemoteSegment)]
    at = next((at for at, entry in enumerate(entries) if entry.end_offset > offset), 0)
    return entries[at : at + 2]


async def put_merged(
    store: ObjectStore, keys: Keys, attempt: Attempt, old: Sequence[RemoteSegment]
) -> RemoteSegment:
    """Put a segment with the records of these, and return its entry."""
    where = attempt.partition
    data = b"".join([await store.get(keys.log(where, entry)) for entry in old])
    bundles = [decode_bundle(await store.get(keys.index(where, entry))) for entry in old]
    chunks = ChunkBuilder()
    for at, header in iter_batches(data):
        chunks.add(header, memoryview(data)[at : at + header.size])
    bundle: IndexBundle = replace(
        bundles[-1],
        offset_index=b"",
        time_index=b"",
        txn_index=b"".join(dict.fromkeys(bundle.txn_index for bundle in bundles)),
        chunk_table=ChunkTable(attempt.uuid, len(data), chunks.checksum, chunks.chunks),
    )
    index = encode_bundle(bundle)
    entry = RemoteSegment(
        uuid=attempt.uuid,
        base_offset=old[0].base_offset,
        last_offset=old[-1].last_offset,
        leader_epochs=tuple(dict.fromkeys(line for entry in old for line in entry.leader_epochs)),
        log_bytes=len(data),
        index_bytes=len(index),
        records=chunks.records,
        first_timestamp=old[0].first_timestamp,
        max_timestamp=max(entry.max_timestamp for entry in old),
        has_transactions=any(entry.has_transactions for entry in old),
        has_aborts=any(entry.has_aborts for entry in old),
        log_crc32c=chunks.checksum,
        index_crc32c=crc32c.crc32c(index),
        leader_epoch=attempt.leader_epoch,
        control_records=chunks.control_records,
        min_timestamp=chunks.min_timestamp,
        tags=(("merged", str(len(old))),),
    )
    await store.put(keys.index(where, entry), index, crc32c=entry.index_crc32c)
    await store.put(keys.log(where, entry), data, crc32c=entry.log_crc32c)
    for key, body in ((keys.index(where, entry), index), (keys.log(where, entry), data)):
        if await store.get(key) != body:
            raise ObjectStoreError(f"{key}: the stored object differs")
    return entry
