"""Manifest recovery: which of two manifests counts after the quorum was recovered."""

import uuid

from immutables import Map
from msgspec.structs import replace
from remote_segments import remote_segment

from tierlog.base.types import TopicIdPartition
from tierlog.broker.remote.manifest_recovery import choose_manifest, newer_manifest
from tierlog.metadata.delete_queue import DeleteQueue, QueuedDelete
from tierlog.metadata.image import ClusterImage, RemotePartition
from tierlog.metadata.records import PageRef, RemoteSegment
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import ManifestRoot
from tierlog.tiering.manager import TierManager
from tierlog.tiering.memory_store import MemoryStore

FIRST, SECOND, THIRD = remote_segment(0, 9), remote_segment(10, 19), remote_segment(20, 29)
RECOVERED = RemotePartition(entries=(FIRST, SECOND))


def root(*entries: RemoteSegment, index: int = 101, start: int = 0) -> ManifestRoot:
    return ManifestRoot(
        topic_id=uuid.UUID(int=1),
        partition=0,
        version=1,
        metadata_index=index,
        leader_epoch=0,
        log_start_offset=start,
        pages=(),
        entries=entries,
    )


def test_newer_manifest_of_the_bucket_counts() -> None:
    found = newer_manifest(RECOVERED, root(FIRST, SECOND, THIRD), 100)
    assert found.entries == (FIRST, SECOND, THIRD)
    merged = remote_segment(0, 19, uuid=uuid.UUID(int=7))
    assert newer_manifest(RECOVERED, root(merged), 100).entries == (merged,)
    found = newer_manifest(RECOVERED, root(FIRST, SECOND, THIRD, start=10), 100)
    assert (found.log_start_offset, found.entries) == (10, (SECOND, THIRD))
    assert newer_manifest(RECOVERED, root(start=25), 100) == RemotePartition(log_start_offset=25)


def test_recovered_manifest_counts_if_it_contains_that_of_the_bucket() -> None:
    assert newer_manifest(RECOVERED, None, 100) is RECOVERED
    assert newer_manifest(RECOVERED, root(FIRST, SECOND, THIRD, index=100), 100) is RECOVERED
    assert newer_manifest(RECOVERED, root(FIRST), 100) is RECOVERED  # the last entries of the log are newer


WHERE = TopicIdPartition(uuid.UUID(int=1), 0)
KEYS = Keys("cluster-1")


def image_of(
    remote: RemotePartition, known_index: int = 100, deleting: frozenset[uuid.UUID] = frozenset()
) -> ClusterImage:
    return ClusterImage(
        cluster_id="cluster-1",
        index=1_000_000,
        remote=Map({WHERE: remote}),
        unread_manifests=Map({WHERE: known_index}),
        deleting=deleting,
    )


async def put_segment(store: MemoryStore, segment: RemoteSegment) -> None:
    for key in (KEYS.log(WHERE, segment), KEYS.index(WHERE, segment)):
        await store.put(key, b"content")


async def test_manifest_of_the_bucket_counts_if_the_recovered_one_lists_a_missing_object() -> None:
    """The last entry of the log replaced two segments, was not committed, and the new one is deleted."""
    store = MemoryStore()
    manager = TierManager(store, KEYS)
    merged, older = remote_segment(0, 19, uuid=uuid.UUID(int=7)), root(FIRST, SECOND, index=90)
    image = image_of(RemotePartition(entries=(merged, THIRD, remote_segment(30, 39))))
    await put_segment(store, THIRD)  # finished after the root was written
    found = await choose_manifest(manager, image, WHERE, older)
    assert found.entries == (FIRST, SECOND, THIRD)

    await put_segment(store, remote_segment(30, 39))
    await put_segment(store, merged)
    assert await choose_manifest(manager, image, WHERE, older) is image.remote[WHERE]
    await store.delete([KEYS.index(WHERE, merged)])
    found = await choose_manifest(manager, image, WHERE, older)
    assert found.entries == (FIRST, SECOND, THIRD, remote_segment(30, 39))


async def test_recovered_manifest_counts_if_what_the_bucket_lists_is_being_deleted() -> None:
    manager, merged = TierManager(MemoryStore(), KEYS), remote_segment(0, 19, uuid=uuid.UUID(int=7))
    image = image_of(RemotePartition(entries=(merged,)), deleting=frozenset([FIRST.uuid]))
    assert await choose_manifest(manager, image, WHERE, root(FIRST, SECOND, index=90)) is image.remote[WHERE]


async def test_recovered_manifest_counts_if_a_page_of_the_bucket_may_name_what_is_queued() -> None:
    """Segments of the page were replaced after the root was written: the page must not be listed again."""
    before, after = page_reference(5, 0, 19), page_reference(6, 0, 19)
    older = replace(root(index=90), pages=(before,))
    image = image_of(RemotePartition(pages=(after,)))
    manager = TierManager(MemoryStore(), KEYS)
    assert (await choose_manifest(manager, image, WHERE, older)).pages == (before,)

    queued = QueuedDelete(
        uuid=FIRST.uuid,
        is_page=False,
        topic_id=WHERE.topic_id,
        partition=WHERE.partition,
        base_offset=0,
        last_offset=9,
        leader_epoch=0,
        queued_ms=1,
    )
    image = replace(image, delete_queue=DeleteQueue([queued]))
    assert await choose_manifest(manager, image, WHERE, older) is image.remote[WHERE]


def page_reference(number: int, base: int, last: int) -> PageRef:
    return PageRef(
        uuid=uuid.UUID(int=number),
        base_offset=base,
        last_offset=last,
        entries=2,
        log_bytes=2000,
        max_timestamp=last,
        crc32c=1,
    )


async def test_segments_that_the_lost_majority_dropped_are_not_listed_again() -> None:
    """It switched tiering off after the recovered entries: the root lists nothing, and ends before them."""
    image = image_of(RECOVERED)
    found = await choose_manifest(TierManager(MemoryStore(), KEYS), image, WHERE, root(start=15))
    assert found == RemotePartition(log_start_offset=15)
