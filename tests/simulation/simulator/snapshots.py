"""Readers that hold snapshots, as Spark does, and the invariants of what they hold.

A reader takes a snapshot of a tiered topic, renews it for a while, and then dies: its lease ends by itself.
"""

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from simulator.contents import decoded_root
from simulator.object_store import Bucket, SimStore
from simulator.witness import Violation
from tierlog.base.types import TopicIdPartition
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import TopicDocument
from tierlog.tiering.format.snapshots import SHARES, Lease, decode_lease
from tierlog.tiering.held_snapshots import IsHeld, held_by
from tierlog.tiering.object_store import ObjectStoreError
from tierlog.tiering.snapshots import SnapshotError, SnapshotNotFound, Snapshots

SHARE = 0.5
"""Share of the tiered runs with readers that hold snapshots."""

PAUSE_S = 0.5
"""Mean of the virtual seconds between two snapshots."""

LEASES_MS = (300, 2_000, 3_600_000)
RENEWALS_MAX = 12
SHORTEST_LEASE_MS = 100
LOOK_INTERVAL_MS = 500
"""Bounds of the product in a run."""

RETRY_S = 0.5

Below = Callable[[TopicIdPartition, Iterable[ManifestNode]], tuple[list[PageRef], list[RemoteSegment]]]


class SnapshotReader:
    """`image`: the newest of any node."""

    def __init__(
        self,
        bucket: Bucket,
        keys: Keys,
        rng: random.Random,
        done: Counter[str],
        image: Callable[[], ClusterImage | None],
    ) -> None:
        self._snapshots = Snapshots(SimStore(bucket, "snapshot reader"), keys)
        self._rng, self._done, self._image = rng, done, image
        self._taken: list[uuid.UUID] = []

    async def play(self) -> None:
        """Runs until cancelled."""
        rng, readers = self._rng, []
        try:
            while True:
                await asyncio.sleep(rng.expovariate(1 / PAUSE_S))
                if topics := self._topics():
                    hold = self._hold(rng.choice(topics), random.Random(rng.random()))
                    readers.append(asyncio.ensure_future(hold))
        finally:
            for reader in readers:
                reader.cancel()

    async def end_all(self) -> None:
        """End all snapshots that may be there, so that all due deletions must be done in the end."""
        for snapshot_id in self._taken:
            while True:
                try:
                    await self._snapshots.end(str(snapshot_id))
                    break
                except SnapshotNotFound:
                    break
                except (ObjectStoreError, SnapshotError):
                    await asyncio.sleep(RETRY_S)

    def _topics(self) -> list[TopicDocument]:
        image = self._image()
        tiered = {where.topic_id for where in image.remote} if image is not None else ()
        return [
            TopicDocument(
                topic_id=topic.topic_id, name=topic.name, partitions=len(topic.partitions), configs={}
            )
            for topic in (image.topics.values() if image is not None else ())
            if topic.topic_id in tiered
        ]

    async def _hold(self, topic: TopicDocument, rng: random.Random) -> None:
        snapshot_id = uuid.UUID(int=rng.getrandbits(128))
        self._taken.append(snapshot_id)
        try:
            lease = await self._snapshots.create(snapshot_id, [topic], rng.choice(LEASES_MS), 0)
            for _ in range(rng.randrange(RENEWALS_MAX)):
                await asyncio.sleep(rng.uniform(0, 2 * lease.lease_ms / SHARES / 1000))
                await self._snapshots.renew(snapshot_id)
                self._done["snapshots renewed"] += 1
        except (ObjectStoreError, SnapshotError):
            self._done["snapshots failed"] += 1


class SnapshotWitness:
    """No object of a live lease is removed, and no lease ends early. `time`: virtual seconds. `below`: all
    pages and segments below nodes of a manifest."""

    bucket: Bucket

    def __init__(self, keys: Keys, done: Counter[str], time: Callable[[], float], below: Below) -> None:
        self._keys, self._done, self._time, self._below = keys, done, time, below
        self._live: dict[uuid.UUID, Lease] = {}
        self._renewed_s: dict[uuid.UUID, float] = {}
        self._needed: dict[str, uuid.UUID] = {}  # keys of objects -> a live lease that needs them

    def put_done(self, key: str, content: bytes) -> None:
        if not key.startswith(self._keys.snapshot_leases()):
            return
        lease = decode_lease(content)
        known = self._live.get(lease.id)
        if lease.is_ended:
            self._end(lease)
            return
        if known is None or known.renewals != lease.renewals:
            self._renewed_s[lease.id] = self._time()
        self._live[lease.id] = lease
        if lease.is_ready and not (known is not None and known.is_ready):
            self._done["snapshots taken"] += 1
            self._take(lease)

    def deleted(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key in self._needed:
                raise Violation(f"{key} is deleted, and snapshot {self._needed[key]} holds it")
            lease_id = next((one for one in self._live if self._keys.snapshot_lease(one) == key), None)
            if lease_id is not None:
                raise Violation(f"the lease {lease_id} is deleted before its end")

    def is_held(self) -> IsHeld:
        return held_by(self._live.values())

    def _end(self, lease: Lease) -> None:
        age_ms = 1000 * (self._time() - self._renewed_s.get(lease.id, 0.0))
        if lease.watched_ms >= lease.lease_ms:
            self._done["leases that ended"] += 1
            if age_ms + 1 < lease.lease_ms:  # clocks count whole milliseconds
                raise Violation(f"a lease of {lease.lease_ms} ms ends {age_ms:.0f} ms after its last renewal")
        self._live.pop(lease.id, None)
        self._needed = {key: one for key, one in self._needed.items() if one != lease.id}
        for other in self._live.values():
            if other.is_ready:
                self._need(other)

    def _take(self, lease: Lease) -> None:
        self._need(lease)
        for key, owner in self._needed.items():
            if owner == lease.id and self.bucket.content(key) is None:
                raise Violation(f"snapshot {lease.id} needs {key}, which is not there")

    def _need(self, lease: Lease) -> None:
        for topic in lease.topics:
            for held in topic.held:
                where = TopicIdPartition(topic.topic_id, held.partition)
                content = self.bucket.content(self._keys.snapshot_root(lease.id, where))
                root = None if content is None else decoded_root(content)
                if root is None:
                    raise Violation(f"snapshot {lease.id} has no root of {where}")
                pages, entries = self._below(where, root.nodes)
                self._needed |= {self._keys.page(where, page): lease.id for page in pages}
                for entry in entries:
                    if entry.end_offset > root.log_start_offset:
                        self._needed[self._keys.log(where, entry)] = lease.id
                        self._needed[self._keys.index(where, entry)] = lease.id
