"""Memory and times of manifests: a partition with a million segments, and 10,000 partitions.

`python tests/bench/manifest_memory.py [--segments N] [--partitions N]` prints one line of JSON. The segments
go through the planner's spills into real pages. Those of the one partition are looked up through the remote
log's page cache, with a store in memory. The quorum keeps as much of 10,000 partitions as the
budget allows.
"""

import argparse
import asyncio
import gc
import json
import random
import resource
import time
import uuid
from collections.abc import Iterator, Sequence

from immutables import Map
from msgspec.structs import replace

from tierlog.base.clock import SystemClock
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition, TopicPartition
from tierlog.metadata.image import ClusterImage, RemotePartition
from tierlog.metadata.image_codec import decode_image, encode_image
from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import (
    ManifestPage,
    ManifestRoot,
    decode_page,
    encode_page,
    encode_root,
    page_reference,
)
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.page_tree import TreeLimits, image_budget, index_of, limits_for, spill_of
from tierlog.tiering.quarantine import Quarantine
from tierlog.tiering.segment_index import SegmentIndexes

MIB = 1 << 20
BUDGET_BYTES = 256 * MIB
WHERE = TopicIdPartition(uuid.UUID(int=7), 0)
KEYS = Keys("bench")
LOOKUPS = 20_000


def segment(rng: random.Random, number: int) -> RemoteSegment:
    epoch = number // 500
    return RemoteSegment(
        uuid=uuid.UUID(int=rng.getrandbits(128)),
        base_offset=number * 1_000_000,
        last_offset=number * 1_000_000 + 999_999,
        leader_epochs=((epoch, epoch * 500_000_000),),
        log_bytes=(1 << 30) - rng.randrange(1 << 20),
        index_bytes=rng.randrange(1 << 22),
        records=1_000_000,
        first_timestamp=1_700_000_000_000 + number * 60_000,
        max_timestamp=1_700_000_000_000 + number * 60_000 + 59_999,
        has_transactions=False,
        has_aborts=False,
        log_crc32c=rng.getrandbits(32),
        index_crc32c=rng.getrandbits(32),
        leader_epoch=epoch,
        control_records=0,
        min_timestamp=1_700_000_000_000 + number * 60_000,
    )


class Tree:
    """A partition's manifest, written as the leader writes it."""

    def __init__(self, limits: TreeLimits) -> None:
        self.limits = limits
        self.rng = random.Random(1)
        self.pages: dict[uuid.UUID, bytes] = {}
        self.remote = RemotePartition()

    def append(self, number: int) -> None:
        entries = (*self.remote.entries, segment(self.rng, number))
        self.remote = replace(self.remote, entries=entries)
        while (spill := spill_of(self.remote, self.limits)) is not None:
            before, nodes = spill.before, spill.nodes
            old = () if before is None else decode_page(self.pages.pop(before.uuid), before).nodes
            new = self._write((*old, *nodes))
            run = (*(() if before is None else (before,)), *nodes)
            at = self.remote.nodes.index(run[0])
            left = (*self.remote.nodes[:at], new, *self.remote.nodes[at + len(run) :])
            self.remote = replace(
                self.remote,
                pages=tuple(node for node in left if isinstance(node, PageRef)),
                entries=tuple(node for node in left if isinstance(node, RemoteSegment)),
            )

    def _write(self, nodes: Sequence[ManifestNode]) -> PageRef:
        page = ManifestPage(
            topic_id=WHERE.topic_id,
            partition=0,
            entries=tuple(node for node in nodes if isinstance(node, RemoteSegment)),
            pages=tuple(node for node in nodes if isinstance(node, PageRef)),
        )
        body = encode_page(page)
        ref = page_reference(uuid.UUID(int=self.rng.getrandbits(128)), page, body)
        self.pages[ref.uuid] = body
        return ref


def one_partition(segments: int) -> dict[str, object]:
    tree = Tree(limits_for(image_budget(BUDGET_BYTES), 1, 2))
    for number in range(segments):
        tree.append(number)
    remote = tree.remote
    root = ManifestRoot(
        topic_id=WHERE.topic_id,
        partition=0,
        version=1,
        metadata_index=1,
        leader_epoch=0,
        log_start_offset=0,
        pages=remote.pages,
        entries=remote.entries,
    )
    began = time.perf_counter()
    for _ in range(20):
        body = encode_root(root)
    encode_ms = (time.perf_counter() - began) * 1000 / 20
    found = {
        "segments": segments,
        "references": len(remote.pages),
        "entries": len(remote.entries),
        "levels": remote.pages[0].level + 1 if remote.pages else 0,
        "root_bytes": len(body),
        "root_encode_ms": round(encode_ms, 2),
    }
    return found | asyncio.run(look_up(tree, segments))


async def look_up(tree: Tree, segments: int) -> dict[str, object]:
    store = MemoryStore()
    indexes = SegmentIndexes(
        store, KEYS, TaskGroup(print), _quarantine(), BUDGET_BYTES - image_budget(BUDGET_BYTES)
    )
    for ref in _references(tree):
        await store.put(KEYS.page(WHERE, ref), tree.pages[ref.uuid])
    rng, times = random.Random(2), []
    for _ in range(LOOKUPS):
        offset = rng.randrange(segments * 1_000_000)
        began = time.perf_counter()
        nodes: Sequence[ManifestNode] = tree.remote.nodes
        while isinstance(node := nodes[index_of(nodes, offset) or 0], PageRef):
            nodes = await indexes.page(WHERE, node)
        times.append(time.perf_counter() - began)
        assert node.base_offset <= offset <= node.last_offset
    times.sort()
    return {
        "lookup_p50_us": round(times[len(times) // 2] * 1e6),
        "lookup_p99_us": round(times[len(times) * 99 // 100] * 1e6),
        "page_cache_mib": round(indexes.page_bytes / MIB, 1),
    }


def _references(tree: Tree) -> Iterator[PageRef]:
    left = list(tree.remote.pages)
    while left:
        ref = left.pop()
        yield ref
        if ref.level:
            left += decode_page(tree.pages[ref.uuid], ref).pages


def _quarantine() -> Quarantine:
    return Quarantine(SystemClock(), lambda where: TopicPartition(str(where.topic_id), where.partition))


def many_partitions(partitions: int, segments: int) -> dict[str, object]:
    """The image of partitions with the same number of segments each."""
    limits = limits_for(image_budget(BUDGET_BYTES), partitions, 2)
    tree = Tree(limits)
    for number in range(segments):
        tree.append(number)
    data = _snapshot(tree, partitions)
    gc.collect()
    before = _resident_bytes()
    began = time.perf_counter()
    image = decode_image(data)
    decode_s = time.perf_counter() - began
    used = _resident_bytes() - before
    nodes = sum(len(remote.pages) + len(remote.entries) for remote in image.remote.values())
    began = time.perf_counter()
    size = len(encode_image(image))
    return {
        "partitions": partitions,
        "segments_each": segments,
        "nodes": nodes,
        "image_mib": round(used / MIB, 1),
        "bytes_a_node": round(used / nodes),
        "snapshot_mib": round(size / MIB, 1),
        "snapshot_encode_s": round(time.perf_counter() - began, 2),
        "start_decode_s": round(decode_s, 2),
    }


def _snapshot(tree: Tree, partitions: int) -> bytes:
    remote = {TopicIdPartition(uuid.UUID(int=n // 100), n % 100): tree.remote for n in range(partitions)}
    return encode_image(ClusterImage(cluster_id="bench", format_version=2, remote=Map(remote)))


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=10_000)
    chosen = parser.parse_args()
    many = many_partitions(chosen.partitions, 400)
    print(json.dumps(many | {"one_partition": one_partition(chosen.segments)}))


if __name__ == "__main__":
    main()
