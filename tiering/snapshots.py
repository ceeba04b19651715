"""Snapshots in the bucket: creates, finds, renews and ends them.

A snapshot is safe by the order of its steps, without any clock. Its lease is put before the manifest roots
that it copies are read, and until they are copied it holds all offsets. The storage cleaner deletes an object
only after it has seen a root that is newer than the object's removal from the manifest, and has read the
leases after that. So if a copied root names the object, the cleaner sees the lease. Called by Spark, the
admin API and the storage cleaner; Spark passes a store of its own (`SnapshotStore`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Protocol, TypeVar
from uuid import UUID

import crc32c
from msgspec.structs import replace

from tierlog.base.tasks import gather_at_most
from tierlog.base.types import TopicIdPartition
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import ManifestError, ManifestRoot, TopicDocument, decode_root
from tierlog.tiering.format.snapshots import (
    ALL_OFFSETS,
    LONGEST_LEASE_MS,
    MAX_PARTITIONS,
    MAX_SNAPSHOTS,
    SHORTEST_LEASE_MS,
    HeldPartition,
    HeldTopic,
    Lease,
    SnapshotName,
    decode_lease,
    decode_name,
    encode_lease,
    encode_name,
)
from tierlog.tiering.object_store import (
    Absent,
    Condition,
    CorruptObject,
    ObjectInfo,
    ObjectNotFound,
    ObjectStoreError,
    PreconditionFailed,
)

T = TypeVar("T")

AT_ONCE = 16  # objects that are read or copied at a time
WRITE_TRIES = 8
"""Attempts of a conditional put: the cleaner and each worker of a job write the same lease."""
DELETES_AT_ONCE = 500
DECODED_AT_ONCE = 64 << 10  # bytes


class SnapshotError(ValueError):
    """A snapshot that cannot be created or found; the message says what to do."""


class SnapshotEnded(SnapshotError):
    """The snapshot's lease has ended: its objects may be gone."""


class SnapshotNotFound(SnapshotError):
    """No snapshot has ever had the name."""


class SnapshotStore(Protocol):
    """The calls of an ObjectStore that snapshots need."""

    async def put(self, key: str, body: bytes, *, crc32c: int, condition: Condition) -> ObjectInfo: ...
    async def get(self, key: str) -> bytes: ...
    async def get_with_etag(self, key: str) -> tuple[bytes, str]: ...
    async def delete(self, keys: Sequence[str]) -> None: ...
    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]: ...


class Snapshots:
    """The snapshots of one cluster."""

    def __init__(self, store: SnapshotStore, keys: Keys) -> None:
        self._store = store
        self._keys = keys

    async def create(
        self,
        snapshot_id: UUID,
        topics: Sequence[TopicDocument],
        lease_ms: int,
        created_ms: int,
        name: str | None = None,
    ) -> Lease:
        """Hold what the manifests of these topics list now. Raises SnapshotError, InvalidKey or
        ObjectStoreError. A failed creation ends its lease, or else that ends by its time."""
        self._check(topics, lease_ms)
        if name is not None:
            await self._check_name(name)
        if len(await self._lease_keys()) >= MAX_SNAPSHOTS:
            raise SnapshotError(f"the cluster has {MAX_SNAPSHOTS} snapshots: end some, or wait for their end")
        lease = Lease(
            id=snapshot_id,
            name=name,
            topics=tuple(_all_of(topic) for topic in topics),
            lease_ms=lease_ms,
            created_ms=created_ms,
        )
        await self._put_once(self._keys.snapshot_lease(snapshot_id), encode_lease(lease))
        try:
            return await self._complete(lease, topics)
        except Exception:
            with suppress(SnapshotError, ObjectStoreError):
                await self.end(str(snapshot_id))
            raise

    async def find(self, which: str, topics: Collection[str] = ()) -> Lease:
        """A live snapshot: its id or name; or the newest one of these topics that was taken at a time at the
        latest (`2026-11-28T12:00:00Z`, UTC), or as of this metadata index at the latest (`@1234`). Raises
        SnapshotError, InvalidKey or ObjectStoreError."""
        if (as_of := parse_as_of(which)) is not None:
            return await self._newest(which, as_of, topics)
        lease = await self._live(await self._id_of(which))
        if lease is None:
            raise SnapshotEnded(
                f"snapshot {which!r} has ended: its lease was not renewed, or it was ended; take another"
            )
        if not lease.is_ready:
            raise SnapshotError(f"snapshot {which!r} is not complete: its creation is in progress or failed")
        return lease

    async def leases(self) -> list[tuple[Lease, str]]:
        """All leases, those that have just ended too, with their ETags. Raises CorruptObject for one that
        cannot be read. Other objects are none, such as the markers of folders that some tools put."""
        found = await gather_at_most(AT_ONCE, [self._read(key) for key in await self._lease_keys()])
        return [lease for lease in found if lease is not None]

    async def root(self, lease: Lease, where: TopicIdPartition) -> ManifestRoot:
        """The copied root of a partition. Raises SnapshotEnded if it is gone."""
        key = self._keys.snapshot_root(lease.id, where)
        try:
            return _decoded(key, await self._store.get(key))
        except ObjectNotFound:
            raise SnapshotEnded(
                f"snapshot {lease.name or lease.id} has ended: its manifests are gone"
            ) from None

    async def renew(self, snapshot_id: UUID) -> Lease:
        """Begin the lease again, unless another reader just has. Raises SnapshotEnded."""
        renewals: int | None = None
        for _ in range(WRITE_TRIES):
            lease, etag = await self._read_live(snapshot_id)
            if renewals is not None and lease.renewals > renewals:
                return lease
            renewals = lease.renewals
            if await self.write(lease.renewed(), etag):
                return lease.renewed()
        raise SnapshotError(f"snapshot {snapshot_id}: concurrent writes, after {WRITE_TRIES} attempts")

    async def end(self, which: str) -> UUID:
        """End a snapshot, by its id or name, and delete what it consists of. Its objects are deleted as if it
        had never held them. Raises SnapshotError if there is no such snapshot."""
        snapshot_id = await self._id_of(which)
        if as_uuid(which) is not None and not await self._exists(snapshot_id):
            raise SnapshotNotFound(f"there is no snapshot {which}: `tierlog tier snapshots list` shows all")
        with suppress(SnapshotEnded, CorruptObject):  # a damaged lease is deleted without any condition
            await self._change(snapshot_id, Lease.ended)
        await self.remove(snapshot_id)
        return snapshot_id

    async def write(self, lease: Lease, etag: str) -> bool:
        """Replace a lease that has this ETag. Returns False if it has changed."""
        try:
            await self._put(self._keys.snapshot_lease(lease.id), encode_lease(lease), etag)
        except (PreconditionFailed, ObjectNotFound):
            return False
        return True

    async def remove(self, snapshot_id: UUID) -> None:
        """Delete the roots of an ended snapshot, then its lease. No other snapshot ever has its id."""
        roots = [info.key async for info in self._store.list(self._keys.snapshot_roots(snapshot_id))]
        for first in range(0, len(roots), DELETES_AT_ONCE):
            await self._store.delete(roots[first : first + DELETES_AT_ONCE])
        await self._store.delete([self._keys.snapshot_lease(snapshot_id)])

    async def remove_leftovers(self) -> None:
        """Delete the roots of ids without a lease: their creators were killed, or continued after the end. A
        lease is put before its roots, and no id is used twice, so roots that were listed before the leases
        belong to one of them, or to no snapshot."""
        owners = {
            self._keys.root_owner(info.key)
            async for info in self._store.list(self._keys.all_snapshot_roots())
        }
        leased = {self._keys.lease_id(key) for key in await self._lease_keys()}
        for snapshot_id in owners - leased:
            if snapshot_id is not None:
                await self.remove(snapshot_id)

    async def _lease_keys(self) -> list[str]:
        found = [info.key async for info in self._store.list(self._keys.snapshot_leases())]
        return [key for key in found if self._keys.lease_id(key) is not None]

    async def _exists(self, snapshot_id: UUID) -> bool:
        try:
            await self._store.get(self._keys.snapshot_lease(snapshot_id))
        except ObjectNotFound:
            return bool([info async for info in self._store.list(self._keys.snapshot_roots(snapshot_id))])
        return True

    def _check(self, topics: Sequence[TopicDocument], lease_ms: int) -> None:
        if not SHORTEST_LEASE_MS <= lease_ms <= LONGEST_LEASE_MS:
            raise SnapshotError(
                f"the lease of a snapshot is {SHORTEST_LEASE_MS} to {LONGEST_LEASE_MS} ms, not {lease_ms}"
            )
        partitions = sum(topic.partitions for topic in topics)
        if partitions > MAX_PARTITIONS:
            raise SnapshotError(f"a snapshot has at most {MAX_PARTITIONS} partitions, not {partitions}")

    async def _complete(self, lease: Lease, topics: Sequence[TopicDocument]) -> Lease:
        """Copy the roots, hold their offsets alone, and take the name."""
        held, indexes = [], [0]
        for topic in topics:
            try:
                await self._store.get(self._keys.topic(topic.topic_id))
            except ObjectNotFound:  # its manifests may be gone
                message = f"topic {topic.name!r} is not in the bucket: it is not tiered, or was deleted"
                raise SnapshotError(message) from None
            places = [TopicIdPartition(topic.topic_id, number) for number in range(topic.partitions)]
            roots = await gather_at_most(AT_ONCE, [self._copy_root(lease.id, where) for where in places])
            held.append(_held_of(topic, roots))
            indexes += [root.metadata_index for root in roots if root is not None]

        def ready(found: Lease) -> Lease:
            return replace(found, topics=tuple(held), metadata_index=max(indexes), is_ready=True)

        lease = await self._change(lease.id, ready)
        if lease.name is not None:
            await self._take_name(lease.name, lease.id)
        return lease

    async def _copy_root(self, snapshot_id: UUID, where: TopicIdPartition) -> ManifestRoot | None:
        """None if nothing of the partition is in the bucket."""
        key = self._keys.root(where)
        try:
            data = await self._store.get(key)
        except ObjectNotFound:
            return None
        root = await _decode(partial(_decoded, key), data)
        await self._put_once(self._keys.snapshot_root(snapshot_id, where), data)
        return root

    async def _check_name(self, name: str) -> str | None:
        """Raises SnapshotError if a live snapshot has the name. Returns the ETag of its last use, if any."""
        if as_uuid(name) is not None or name == "now":
            raise SnapshotError(f"invalid snapshot name {name!r}: it would be taken for something else")
        try:
            data, etag = await self._store.get_with_etag(self._keys.snapshot_name(name))
        except ObjectNotFound:
            return None
        try:
            known = decode_name(data)
        except ManifestError:
            return etag  # it is written again
        if await self._live(known.id) is not None:
            raise SnapshotError(f"snapshot {name!r} exists: end it first, or choose another name")
        return etag

    async def _newest(self, which: str, as_of: "AsOf", topics: Collection[str]) -> Lease:
        candidates = [
            lease
            for lease, _ in await self.leases()
            if lease.is_ready and not lease.is_ended and as_of.includes(lease)
            if {topic.name for topic in lease.topics}.issuperset(topics)
        ]
        if not candidates:
            raise SnapshotError(
                f"no snapshot of these topics as of {which} is held: `tierlog tier snapshots list` shows all"
            )
        return max(candidates, key=lambda lease: (lease.created_ms, lease.metadata_index, lease.id))

    async def _take_name(self, name: str, snapshot_id: UUID) -> None:
        """The first creator to put the name has it. Raises SnapshotError for others."""
        etag, key = await self._check_name(name), self._keys.snapshot_name(name)
        body = encode_name(SnapshotName(name=name, id=snapshot_id))
        try:
            await self._put(key, body, Absent() if etag is None else etag)
        except (PreconditionFailed, ObjectNotFound):
            if await self._store.get(key) != body:  # else it was an earlier attempt of this put
                raise SnapshotError(f"snapshot {name!r} was created by another process just now") from None

    async def _id_of(self, which: str) -> UUID:
        found = as_uuid(which)
        if found is not None:
            return found
        key = self._keys.snapshot_name(which)
        try:
            return decode_name(await self._store.get(key)).id
        except ObjectNotFound:
            raise SnapshotNotFound(
                f"there is no snapshot {which!r}: `tierlog tier snapshots create` takes one"
            ) from None
        except ManifestError as error:
            raise CorruptObject(f"{key}: {error}") from error

    async def _live(self, snapshot_id: UUID) -> Lease | None:
        found = await self._read(self._keys.snapshot_lease(snapshot_id))
        return None if found is None or found[0].is_ended else found[0]

    async def _change(self, snapshot_id: UUID, change: Callable[[Lease], Lease]) -> Lease:
        """Write a change of a live lease. Raises SnapshotEnded."""
        for _ in range(WRITE_TRIES):
            lease, etag = await self._read_live(snapshot_id)
            if await self.write(changed := change(lease), etag):
                return changed
        raise SnapshotError(f"snapshot {snapshot_id}: concurrent writes, after {WRITE_TRIES} attempts")

    async def _read_live(self, snapshot_id: UUID) -> tuple[Lease, str]:
        """Raises SnapshotEnded."""
        found = await self._read(self._keys.snapshot_lease(snapshot_id))
        if found is None or found[0].is_ended:
            raise SnapshotEnded(f"snapshot {snapshot_id} has ended: its lease was not renewed in time")
        return found

    async def _read(self, key: str) -> tuple[Lease, str] | None:
        try:
            data, etag = await self._store.get_with_etag(key)
            lease = await _decode(decode_lease, data)
        except ObjectNotFound:
            return None
        except ManifestError as error:
            raise CorruptObject(f"{key}: {error}{self._advice(key)}") from error
        if lease.id != self._keys.lease_id(key):
            raise CorruptObject(f"{key}: it is the lease of {lease.id}{self._advice(key)}")
        return lease, etag

    def _advice(self, key: str) -> str:
        return (
            f"; nothing is deleted until `tierlog tier snapshots end {self._keys.lease_id(key)}` removes it"
        )

    async def _put_once(self, key: str, body: bytes) -> None:
        """Put an object that does not exist; one of an earlier attempt of this put may."""
        try:
            await self._put(key, body, Absent())
        except PreconditionFailed:
            if await self._store.get(key) != body:
                raise

    async def _put(self, key: str, body: bytes, condition: Condition) -> None:
        await self._store.put(key, body, crc32c=crc32c.crc32c(body), condition=condition)


@dataclass(frozen=True, slots=True)
class AsOf:
    """The latest creation, or the latest metadata index, of a wanted snapshot."""

    created_ms: int | None = None
    metadata_index: int | None = None

    def includes(self, lease: Lease) -> bool:
        return (self.created_ms is None or lease.created_ms <= self.created_ms) and (
            self.metadata_index is None or lease.metadata_index <= self.metadata_index
        )


def parse_as_of(text: str) -> AsOf | None:
    """`@` and a metadata index, or a date and time in ISO 8601, of UTC if it names no zone; None for any
    other text, which may be a name."""
    if text.startswith("@") and text[1:].isdecimal():
        return AsOf(metadata_index=int(text[1:]))
    if ":" not in text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return AsOf(round(1000 * (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()))


def as_uuid(text: str) -> UUID | None:
    try:
        found = UUID(text)
    except ValueError:
        return None
    return found if str(found) == text else None


def _all_of(topic: TopicDocument) -> HeldTopic:
    """All offsets of a topic, until its roots are copied."""
    held = tuple(HeldPartition(number, 0, ALL_OFFSETS) for number in range(topic.partitions))
    return HeldTopic(name=topic.name, topic_id=topic.topic_id, partitions=topic.partitions, held=held)


def _held_of(topic: TopicDocument, roots: Iterable[ManifestRoot | None]) -> HeldTopic:
    held = tuple(
        HeldPartition(root.partition, root.nodes[0].base_offset, root.nodes[-1].end_offset)
        for root in roots
        if root is not None and root.nodes
    )
    return HeldTopic(name=topic.name, topic_id=topic.topic_id, partitions=topic.partitions, held=held)


async def _decode(decode: Callable[[bytes], T], data: bytes) -> T:
    """In a thread if it takes more than a millisecond."""
    return decode(data) if len(data) <= DECODED_AT_ONCE else await asyncio.to_thread(decode, data)


def _decoded(key: str, data: bytes) -> ManifestRoot:
    try:
        return decode_root(data)
    except ManifestError as error:
        raise CorruptObject(f"{key}: {error}") from error
