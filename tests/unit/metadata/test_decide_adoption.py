"""Adoption of the bucket's manifest after the quorum was recovered: what is committed, what is deleted."""

import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from immutables import Map
from msgspec.structs import replace
from remote_segments import remote_segment

from tierlog.base.files import OsFiles
from tierlog.base.types import TopicIdPartition
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.image_codec import decode_image, encode_image
from tierlog.metadata.quorum.recovery import Recovery, with_unread_manifests
from tierlog.metadata.quorum.storage import MetadataStorage
from tierlog.metadata.raft.messages import Entry, HardState
from tierlog.metadata.records import PageRef, RemoteSegment
from tierlog.protocol.errors import ErrorCode as E

World = Any


def page(number: int, base: int, end: int, **changes: Any) -> PageRef:
    values = {"entries": 2, "log_bytes": 2000, "max_timestamp": end - 1, "crc32c": 1} | changes
    return PageRef(uuid=uuid.UUID(int=number), base_offset=base, last_offset=end - 1, **values)


@pytest.fixture
def recovered(world: World) -> World:
    """The manifest has the segments 1 (0-9), 11 (10-19) and 21 (20-29); the copies 31 (30-39) and, to replace
    segment 1, 99 have begun. A page was announced."""
    world.brokers(1, 2)
    world.create("t", assignments=((0, (1,)), (1, (2,))), configs=(("remote.storage.enable", "true"),))
    world.image = replace(world.image, format_version=2)
    for base in (0, 10, 20):
        world.copy("t", base + 1, base, base + 9)
    assert world.start_copy("t", 31, 30, 39).error == E.NONE
    topic_id = world.image.topic_ids["t"]
    replacing = c.StartCopy(
        topic_id=topic_id,
        partition=0,
        broker_id=1,
        leader_epoch=0,
        uuid=uuid.UUID(int=99),
        base_offset=0,
        last_offset=9,
        replaces=True,
    )
    announced = c.StartSpill(
        topic_id=topic_id,
        partition=0,
        leader_epoch=0,
        uuid=uuid.UUID(int=50),
        base_offset=0,
        last_offset=19,
    )
    assert world.do(replacing).error == world.do(announced).error == E.NONE
    world.image = with_unread_manifests(world.image, world.image)
    return world


def adopt(world: World, *nodes: PageRef | RemoteSegment, start: int = 0, **changes: int) -> E:
    values = {"broker_id": 1, "leader_epoch": 0} | changes
    command = c.AdoptManifest(
        topic_id=world.image.topic_ids["t"],
        partition=0,
        log_start_offset=start,
        pages=tuple(node for node in nodes if isinstance(node, PageRef)),
        entries=tuple(node for node in nodes if isinstance(node, RemoteSegment)),
        **values,
    )
    return world.do(command).error


def queued(world: World) -> set[int]:
    return {one.int for one in world.image.delete_queue}


def test_recovery_marks_tiered_partitions_and_keeps_announced_pages(recovered: World) -> None:
    topic_id, index = recovered.image.topic_ids["t"], recovered.image.index
    unread = {TopicIdPartition(topic_id, number): index for number in (0, 1)}
    assert recovered.image.unread_manifests == Map(unread)
    assert queued(recovered) == set()
    assert decode_image(encode_image(recovered.image)) == recovered.image
    again = with_unread_manifests(recovered.image, replace(recovered.image, index=index + 5))
    assert again.unread_manifests == recovered.image.unread_manifests


def test_newer_manifest_replaces_the_recovered_one(recovered: World) -> None:
    copied, merged = remote_segment(30, 39), remote_segment(10, 29, uuid=uuid.UUID(int=77))
    assert adopt(recovered, merged, copied, leader_epoch=1) == E.UNKNOWN_LEADER_EPOCH
    assert adopt(recovered, merged, copied, broker_id=2) == E.NOT_LEADER_OR_FOLLOWER
    assert adopt(recovered, merged, remote_segment(50, 59)) == E.INVALID_REQUEST  # a gap
    assert adopt(recovered, merged, copied, start=12) == E.NONE
    remote = recovered.remote("t")
    assert (remote.nodes, remote.started, remote.log_start_offset) == ((merged, copied), (), 12)
    assert remote.copied_end_offset == 40
    # 1 and 99 end below the log start, and the merged segment replaces 11 and 21
    assert queued(recovered) == {1, 99, 11, 21}
    topic_id = recovered.image.topic_ids["t"]
    assert list(recovered.image.unread_manifests) == [TopicIdPartition(topic_id, 1)]
    before = recovered.image.remote
    assert adopt(recovered) == E.NONE  # a repetition changes nothing
    assert recovered.image.remote == before


def test_nothing_is_deleted_that_a_page_or_the_end_may_name(recovered: World) -> None:
    assert adopt(recovered, page(60, 0, 20), remote_segment(20, 29)) == E.NONE
    assert queued(recovered) == set()  # 1, 11, 99 may be in the page; 31 may have been finished
    assert recovered.remote("t").started == ()


def test_adopted_objects_leave_the_delete_queue(recovered: World) -> None:
    """They were dropped in entries of the log that the lost majority did not commit."""
    old = recovered.remote("t").entries
    topic_id = recovered.image.topic_ids["t"]
    move = c.MoveLogStart(topic_id=topic_id, partition=0, leader_epoch=0, log_start_offset=5)
    assert recovered.do(move).error == E.NONE
    diverged = c.RemoveDiverged(topic_id=topic_id, partition=0, broker_id=1, leader_epoch=1, from_offset=20)
    recovered.image = replace(
        recovered.image,
        topics=recovered.image.topics.set(
            topic_id,
            replace(
                recovered.image.topics[topic_id],
                partitions=tuple(
                    replace(one, leader_epoch=1) for one in recovered.image.topics[topic_id].partitions
                ),
            ),
        ),
    )
    assert recovered.do(diverged).error == E.NONE
    assert queued(recovered) == {21}
    assert adopt(recovered, *old, start=5, leader_epoch=1) == E.NONE
    assert queued(recovered) == {99}  # the entries show that it never replaced segment 1
    assert recovered.remote("t").entries == old


def recovered_from(world: World, directory: Path, commit: int) -> ClusterImage:
    """The image after a recovery from a voter's log, of which it knows that entries up to `commit` are
    committed."""
    storage = MetadataStorage(
        OsFiles(), directory, cluster_id="c", node_id=1, new_directory_id=uuid.UUID(int=7)
    )
    entries = tuple(Entry(1, index, payload) for index, payload in enumerate(world.log, 1))
    with closing(storage):
        storage.open()
        storage.save(None, entries, HardState(1, 1, commit))
    with closing(Recovery(OsFiles(), directory, world.rng)) as recovery:
        recovery.apply()
    again = MetadataStorage(
        OsFiles(), directory, cluster_id="c", node_id=1, new_directory_id=uuid.UUID(int=7)
    )
    with closing(again):
        return decode_image(again.open().snapshot.data)


def test_what_only_uncommitted_entries_replaced_in_a_page_is_not_deleted(
    world: World, tmp_path: Path
) -> None:
    """A voter that was alone replaced a segment, and the lost majority went on without that: the manifest in
    the bucket lists the old page, which names the old segment."""
    world.brokers(1, 2)
    world.create("t", assignments=((0, (1,)),), configs=(("remote.storage.enable", "true"),))
    for base in (0, 10, 20):
        world.copy("t", base + 1, base, base + 9)
    values = {"topic_id": world.image.topic_ids["t"], "partition": 0, "leader_epoch": 0}
    old, old_page, new_page = remote_segment(10, 19), page(60, 0, 20), page(61, 0, 20)
    new = remote_segment(10, 19, uuid=uuid.UUID(int=98))
    for one in (old_page, new_page):
        announced = c.StartSpill(uuid=one.uuid, base_offset=0, last_offset=19, **values)
        assert world.do(announced).error == E.NONE
    assert world.do(c.SpillEntries(page=old_page, **values)).error == E.NONE
    world.image = replace(world.image, format_version=2)
    copy = c.StartCopy(broker_id=1, uuid=new.uuid, base_offset=10, last_offset=19, replaces=True, **values)
    assert world.do(copy).error == E.NONE
    commit = world.image.index
    replacement = c.ReplaceSegments(
        broker_id=1, old=(old,), new=(new,), replaced_page=old_page.uuid, page=new_page, **values
    )
    assert world.do(replacement).error == E.NONE
    assert world.do(c.MoveLogStart(log_start_offset=5, **values)).error == E.NONE
    assert queued(world) == {old.uuid.int, 60}

    world.image = recovered_from(world, tmp_path, commit)
    epoch = world.partition().leader_epoch
    assert adopt(world, old_page, remote_segment(20, 29), start=5, leader_epoch=epoch) == E.NONE
    assert queued(world) == set()


def test_what_uncommitted_entries_dropped_below_the_log_start_is_deleted(
    world: World, tmp_path: Path
) -> None:
    world.brokers(1, 2)
    world.create("t", assignments=((0, (1,)),), configs=(("remote.storage.enable", "true"),))
    for base in (0, 10):
        world.copy("t", base + 1, base, base + 9)
    commit, topic_id = world.image.index, world.image.topic_ids["t"]
    move = c.MoveLogStart(topic_id=topic_id, partition=0, leader_epoch=0, log_start_offset=10)
    assert world.do(move).error == E.NONE
    world.image = recovered_from(world, tmp_path, commit)
    assert queued(world) == {1}


def test_objects_of_an_unread_manifest_are_not_deleted(recovered: World) -> None:
    topic_id = recovered.image.topic_ids["t"]
    move = c.MoveLogStart(topic_id=topic_id, partition=0, leader_epoch=0, log_start_offset=10)
    assert recovered.do(move).error == E.NONE
    assert queued(recovered) == {1}
    start = c.StartRemoteDeletes(grace_ms=0, uuids=tuple(recovered.image.delete_queue))
    recovered.do(start)
    assert recovered.image.deleting == frozenset()
    assert adopt(recovered, *recovered.remote("t").entries, start=10) == E.NONE
    recovered.do(start)
    assert {one.int for one in recovered.image.deleting} >= {1}
    assert adopt_after(recovered, remote_segment(0, 9)) == E.INVALID_REQUEST  # its deletion has begun


def adopt_after(world: World, *nodes: RemoteSegment) -> E:
    """As after another recovery."""
    world.image = with_unread_manifests(world.image, world.image)
    return adopt(world, *nodes, start=10)


def test_deleted_topic_has_no_unread_manifests(recovered: World) -> None:
    recovered.do(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
    assert recovered.image.unread_manifests == Map()
