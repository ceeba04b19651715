"""Controller's decisions on bulk loads."""

import uuid
from typing import Any

import pytest
from msgspec.structs import replace

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller import remote
from tierlog.metadata.controller.remote_loads import MAX_LOADED
from tierlog.metadata.records import RemoteSegment
from tierlog.protocol.errors import ErrorCode as E

World = Any
LOAD = uuid.UUID(int=0x10AD)


@pytest.fixture
def tiered(world: World) -> World:
    """A segment of offsets 0 to 9 with id 1, in format version 2."""
    world.register(1, formats=(1, 2))
    world.register(2, formats=(1, 2))
    world.create("t", assignments=((0, (1, 2)),), configs=(("remote.storage.enable", "true"),))
    world.fence(1, False)
    world.fence(2, False)
    world.copy("t", 1, 0, 9)
    return world


def announce(world: World, segment: RemoteSegment, **more: Any) -> E:
    number, base, last = segment.uuid.int, segment.base_offset, segment.last_offset
    return world.start_copy("t", number, base, last, loads=True, **more).error


def load_of(world: World, segments: tuple[RemoteSegment, ...], **values: Any) -> E:
    defaults = {
        "topic_id": world.image.topic_ids["t"],
        "partition": 0,
        "broker_id": 1,
        "leader_epoch": 0,
        "load_id": LOAD,
        "segments": segments,
    }
    return world.do(c.LoadSegments(**defaults | values)).error


def announced(world: World, make_segment: Any) -> tuple[RemoteSegment, ...]:
    segments = make_segment(21, 10, 14), make_segment(22, 15, 29)
    assert [announce(world, one) for one in segments] == [E.NONE, E.NONE]
    return segments


def queued(world: World) -> set[int]:
    return {one.int for one in world.image.delete_queue}


def test_load_adds_all_segments_and_starts_a_leader_epoch(tiered: World, make_segment: Any) -> None:
    segments, before = announced(tiered, make_segment), tiered.partition()
    assert load_of(tiered, segments) == E.NONE
    state, now = tiered.remote("t"), tiered.partition()
    assert state.entries[1:] == segments
    assert (state.end_offset, state.copied_end_offset, state.started) == (30, 30, ())
    assert (now.leader, now.leader_epoch) == (before.leader, before.leader_epoch + 1)
    assert now.partition_epoch == before.partition_epoch + 1
    [load] = state.loads
    assert (load.load_id, load.base_offset, load.end_offset, load.leader_epoch) == (LOAD, 10, 30, 0)


def test_repeated_load_changes_nothing(tiered: World, make_segment: Any) -> None:
    segments = announced(tiered, make_segment)
    load_of(tiered, segments)
    before = tiered.image
    assert load_of(tiered, segments) == E.NONE
    assert load_of(tiered, (make_segment(23, 30, 31),)) == E.NONE
    assert (tiered.image.remote, tiered.image.topics) == (before.remote, before.topics)


def test_attempts_of_a_load_may_overlap_and_unused_ones_are_deleted(tiered: World, make_segment: Any) -> None:
    segments = announced(tiered, make_segment)
    other = make_segment(31, 10, 29)
    assert announce(tiered, other) == E.NONE
    assert load_of(tiered, segments) == E.NONE
    assert queued(tiered) == {31}


def test_an_upload_does_not_end_a_load_and_the_next_leader_epoch_does(
    tiered: World, make_segment: Any
) -> None:
    announced(tiered, make_segment)
    assert tiered.start_copy("t", 40, 10, 12).error == E.NONE
    assert {copy.uuid.int for copy in tiered.remote("t").started} == {21, 22, 40}
    tiered.fence(1)
    epoch = tiered.partition().leader_epoch
    assert tiered.start_copy("t", 41, 10, 12, broker_id=2, leader_epoch=epoch).error == E.NONE
    assert queued(tiered) == {21, 22, 40}


def test_old_leader_cannot_load(tiered: World, make_segment: Any) -> None:
    segments = announced(tiered, make_segment)
    tiered.fence(1)
    assert load_of(tiered, segments) == E.NOT_LEADER_OR_FOLLOWER
    assert load_of(tiered, segments, broker_id=2) == E.FENCED_LEADER_EPOCH
    assert load_of(tiered, segments, broker_id=2, leader_epoch=1) == E.FENCED_LEADER_EPOCH


def test_load_begins_where_the_remote_log_ends(tiered: World, make_segment: Any) -> None:
    late = make_segment(21, 11, 14)
    assert announce(tiered, late) == E.NONE
    assert load_of(tiered, (late,)) == E.INVALID_REQUEST
    assert announce(tiered, make_segment(22, 5, 14)) == E.INVALID_REQUEST


def test_load_into_an_empty_partition_begins_at_its_log_start(tiered: World, make_segment: Any) -> None:
    tiered.create("u", assignments=((0, (1,)),), configs=(("remote.storage.enable", "true"),))
    segment = make_segment(21, 0, 4)
    assert tiered.start_copy("u", 21, 0, 4, loads=True).error == E.NONE
    assert load_of(tiered, (segment,), topic_id=tiered.image.topic_ids["u"]) == E.NONE
    late = make_segment(22, 7, 9)
    tiered.create("v", assignments=((0, (1,)),), configs=(("remote.storage.enable", "true"),))
    assert tiered.start_copy("v", 22, 7, 9, loads=True).error == E.NONE
    assert load_of(tiered, (late,), topic_id=tiered.image.topic_ids["v"]) == E.INVALID_REQUEST


def test_segments_must_be_announced_with_their_offsets_and_successive(
    tiered: World, make_segment: Any
) -> None:
    first, second = announced(tiered, make_segment)
    assert load_of(tiered, (first, replace(second, last_offset=28))) == E.INVALID_REQUEST
    assert load_of(tiered, (first, make_segment(50, 15, 29))) == E.INVALID_REQUEST
    assert load_of(tiered, (second,)) == E.INVALID_REQUEST
    assert load_of(tiered, (second, first)) == E.INVALID_REQUEST
    assert load_of(tiered, ()) == E.INVALID_REQUEST
    assert load_of(tiered, tuple(make_segment(n, n, n) for n in range(MAX_LOADED + 1))) == E.INVALID_REQUEST


def test_copy_for_a_load_is_for_no_other_command(tiered: World, make_segment: Any) -> None:
    segment, _ = announced(tiered, make_segment)
    assert tiered.finish_copy("t", segment).error == E.INVALID_REQUEST
    uploaded = make_segment(40, 10, 14)
    assert tiered.start_copy("t", 40, 10, 14).error == E.NONE
    assert load_of(tiered, (uploaded,)) == E.INVALID_REQUEST


def test_abandoned_segment_is_not_loaded(tiered: World, make_segment: Any) -> None:
    segments = announced(tiered, make_segment)
    command = c.AbandonCopy(
        topic_id=tiered.image.topic_ids["t"], partition=0, leader_epoch=0, uuid=segments[1].uuid
    )
    assert tiered.do(command).error == E.NONE
    assert load_of(tiered, segments) == E.INVALID_REQUEST


def test_started_copies_of_loads_are_bounded(
    tiered: World, make_segment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MAX_LOADING", 2)
    announced(tiered, make_segment)
    assert announce(tiered, make_segment(23, 10, 11)) == E.INVALID_REQUEST
    assert tiered.start_copy("t", 40, 10, 12).error == E.NONE


def test_loads_need_format_version_2_and_a_tiered_topic(world: World, make_segment: Any) -> None:
    world.register(1, formats=(1, 1))
    world.create("t", assignments=((0, (1,)),), configs=(("remote.storage.enable", "true"),))
    assert world.start_copy("t", 21, 0, 4, loads=True).error == E.UNSUPPORTED_VERSION
    assert load_of(world, (make_segment(21, 0, 4),)) == E.UNSUPPORTED_VERSION
    world.create("u", assignments=((0, (1,)),))
    assert world.start_copy("u", 22, 0, 4, loads=True).error == E.INVALID_REQUEST


def test_diverged_load_is_forgotten_and_a_later_one_with_its_id_is_loaded(
    tiered: World, make_segment: Any
) -> None:
    load_of(tiered, announced(tiered, make_segment))
    tiered.fence(1)
    epoch = tiered.partition().leader_epoch
    command = c.RemoveDiverged(
        topic_id=tiered.image.topic_ids["t"], partition=0, broker_id=2, leader_epoch=epoch, from_offset=10
    )
    assert tiered.do(command).error == E.NONE
    assert tiered.remote("t").loads == ()
