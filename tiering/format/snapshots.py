"""Snapshots: committed offsets of several partitions, whose objects stay while the snapshot's lease lasts.

A snapshot is a lease, copies of manifest roots, and perhaps a name, all in the bucket. The lease says which
offsets the storage cleaner must keep, and is written by conditional puts alone. It is a length of time, not a
date: cleaners add up for how long they have seen the same renewal, each on its own monotonic clock, and note
that in the lease (docs/adr/0041-a-snapshot-is-held-by-a-lease-in-the-bucket.md). Pure.
"""

import uuid
from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from tierlog.tiering.format.manifest import ManifestRoot, seal, unseal

SHARES = 8
"""A cleaner notes the time that it has watched after this share of a lease, and a reader renews a lease after
the same share. A new cleaner, which does not know what was not noted, extends a lease by no more."""

SHORTEST_LEASE_MS = 10_000
LONGEST_LEASE_MS = 30 * 24 * 3_600_000
MAX_SNAPSHOTS = 1_000
MAX_PARTITIONS = 10_000
"""Bounds of all snapshots, and of one: the cleaner reads all leases before it deletes."""

ALL_OFFSETS = 2**63 - 1  # end of the offsets of a snapshot whose roots are not copied yet


class HeldPartition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Offsets [start, end) of one partition that the snapshot holds."""

    partition: int
    start_offset: int
    end_offset: int


class HeldTopic(msgspec.Struct, frozen=True, kw_only=True):
    """`partitions`: how many the topic had. `held`: those of which something is held."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    held: tuple[HeldPartition, ...]


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The lease of a snapshot. `is_ready`: its roots are copied. `is_ended`: its objects may be deleted, and
    the lease does not change any more. `renewals` grows with each renewal, so that no two contents are equal.
    `watched_ms`: for how long cleaners have seen this renewal at least. `metadata_index`: the newest of its
    roots. `created_ms`: wall clock of the creator, for people."""

    id: uuid.UUID
    name: str | None
    topics: tuple[HeldTopic, ...]
    lease_ms: int
    renewals: int = 0
    watched_ms: int = 0
    metadata_index: int = 0
    created_ms: int = 0
    is_ready: bool = False
    is_ended: bool = False

    def renewed(self) -> "Lease":
        return replace(self, renewals=self.renewals + 1, watched_ms=0)

    def watched(self, watched_ms: int) -> "Lease":
        """The lease after cleaners have seen this renewal for `watched_ms`."""
        return replace(self, watched_ms=watched_ms, is_ended=watched_ms >= self.lease_ms)

    def ended(self) -> "Lease":
        return replace(self, is_ended=True)


class SnapshotName(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot that has a name now. It stays after the snapshot, until another one takes the name."""

    name: str
    id: uuid.UUID


def encode_lease(lease: Lease) -> bytes:
    return seal("tierlog.snapshot.lease", lease)


def decode_lease(data: bytes) -> Lease:
    """Raises ManifestError."""
    return unseal(data, "tierlog.snapshot.lease", Lease)


def encode_name(name: SnapshotName) -> bytes:
    return seal("tierlog.snapshot.name", name)


def decode_name(data: bytes) -> SnapshotName:
    """Raises ManifestError."""
    return unseal(data, "tierlog.snapshot.name", SnapshotName)


def proves_removal(
    root: ManifestRoot, current: Collection[uuid.UUID], base_offset: int, last_offset: int
) -> bool:
    """Whether a root was written after the manifest dropped an object with offsets [base, last], and so were
    all roots after it.

    `current`: ids of the manifest's nodes, as of any time after the drop. Nodes never return to a manifest,
    and at any time they are disjoint. A node that is in the root and in the later manifest was there in
    between, so the object, which has offsets of it, was not. The log start only grows, so a root whose log
    starts above the object is from after its drop too. Other roots prove nothing: the object may be in the
    next one.
    """
    if root.log_start_offset > last_offset:
        return True
    over = [
        node for node in root.nodes if node.base_offset <= last_offset and node.last_offset >= base_offset
    ]
    return bool(over) and all(node.uuid in current for node in over)
