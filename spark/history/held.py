"""Held snapshots for Spark: the roots of a snapshot instead of the newest ones, and its lease.

A data source chooses its snapshot once, so that all queries of a DataFrame read the same one. The lease is
renewed when a query is planned, and by tasks as they start, each worker once in a share of it. So it lasts as
long as the job runs, and ends by itself if the job dies.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tierlog.base.types import TopicIdPartition
from tierlog.spark.history.bucket import Bucket
from tierlog.spark.options import InvalidOption
from tierlog.tiering.format.keys import InvalidKey, Keys
from tierlog.tiering.format.manifest import ManifestRoot, TopicDocument
from tierlog.tiering.format.snapshots import SHARES, Lease
from tierlog.tiering.object_store import Condition, ObjectInfo
from tierlog.tiering.snapshots import SnapshotError, Snapshots

T = TypeVar("T")

_next_renewal_s: dict[str, float] = {}  # by snapshot id; monotonic


class BucketStore:
    """A blocking bucket as a SnapshotStore; each call runs in a thread."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def put(self, key: str, body: bytes, *, crc32c: int, condition: Condition) -> ObjectInfo:
        etag = await asyncio.to_thread(self._bucket.write, key, body, condition)
        return ObjectInfo(key, len(body), etag, crc32c)

    async def get(self, key: str) -> bytes:
        return await asyncio.to_thread(self._bucket.read, key)

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return await asyncio.to_thread(self._bucket.read_with_etag, key)

    async def delete(self, keys: Sequence[str]) -> None:
        await asyncio.to_thread(self._bucket.delete, list(keys))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for key in await asyncio.to_thread(self._bucket.keys, prefix):
            yield ObjectInfo(key, 0, "")


class HeldSnapshot:
    """A snapshot, for one plan. Raises InvalidOption if it has ended."""

    def __init__(self, bucket: Bucket, keys: Keys, which: str) -> None:
        self._snapshots = Snapshots(BucketStore(bucket), keys)
        self._lease: Lease = ask(self._renewed(which))
        self._held = {
            TopicIdPartition(topic.topic_id, one.partition)
            for topic in self._lease.topics
            for one in topic.held
        }

    async def _renewed(self, which: str) -> Lease:
        return await self._snapshots.renew((await self._snapshots.find(which)).id)

    def documents(self) -> list[TopicDocument]:
        """The topics as they were."""
        return [
            TopicDocument(topic_id=one.topic_id, name=one.name, partitions=one.partitions, configs={})
            for one in self._lease.topics
        ]

    def root(self, where: TopicIdPartition) -> ManifestRoot | None:
        """The root of a partition; None if nothing of it was in the bucket."""
        return ask(self._snapshots.root(self._lease, where)) if where in self._held else None


def take(
    bucket: Bucket, keys: Keys, topics: Sequence[TopicDocument], lease_ms: int, name: str | None = None
) -> str:
    """Take a snapshot. Returns its id. Raises InvalidOption."""
    snapshot_id = uuid.uuid4()  # noqa: TID251 (no simulated run comes here)
    created_ms = time.time_ns() // 1_000_000
    snapshots = Snapshots(BucketStore(bucket), keys)
    return str(ask(snapshots.create(snapshot_id, topics, lease_ms, created_ms, name)).id)


def find(bucket: Bucket, keys: Keys, which: str, topics: Iterable[str]) -> str:
    """The id of a snapshot: by id, name, time or metadata index. Raises InvalidOption."""
    return str(ask(Snapshots(BucketStore(bucket), keys).find(which, set(topics))).id)


def needs_renewal(snapshot_id: str) -> bool:
    """Whether this process has not renewed the lease within a share of it."""
    return _next_renewal_s.get(snapshot_id, 0.0) <= time.monotonic()


def renew(bucket: Bucket, keys: Keys, snapshot_id: str) -> None:
    """Raises SnapshotEnded."""
    now_s = time.monotonic()
    lease = run(Snapshots(BucketStore(bucket), keys).renew(uuid.UUID(snapshot_id)))
    _next_renewal_s[snapshot_id] = now_s + lease.lease_ms / SHARES / 1000


def ask(work: Coroutine[Any, Any, T]) -> T:
    """As `run`. Raises InvalidOption for an error that the user can correct."""
    try:
        return run(work)
    except (SnapshotError, InvalidKey) as error:
        raise InvalidOption(f"`snapshot`: {error}") from None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a thread: a notebook has an event loop in its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
