"""Controller's decisions on changes within the manifest: spills, replaced segments, trimmed pages."""

import uuid
from typing import Any

import pytest
from msgspec.structs import replace

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.remote import MAX_STARTED, SPILL_TIMEOUT_MS
from tierlog.metadata.delete_queue import ALONE, WITH_SEGMENTS
from tierlog.metadata.evolve import evolve
from tierlog.metadata.image_codec import decode_image, encode_image
from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment
from tierlog.protocol.errors import ErrorCode as E

World = Any
Values = dict[str, Any]


@pytest.fixture
def tiered(world: World) -> World:
    """Four segments of ten offsets, with ids 1 to 4, in format version 2."""
    world.register(1, formats=(1, 2))
    world.register(2, formats=(1, 2))
    world.create("t", assignments=((0, (1,)), (1, (2,))), configs=(("remote.storage.enable", "true"),))
    for number in range(4):
        world.copy("t", 1 + number, number * 10, number * 10 + 9)
    return world


def page_of(nodes: tuple[ManifestNode, ...], number: int, **changes: Any) -> PageRef:
    first, pages = nodes[0], [node for node in nodes if isinstance(node, PageRef)]
    ref = PageRef(
        uuid=uuid.UUID(int=number),
        base_offset=first.base_offset,
        last_offset=nodes[-1].last_offset,
        entries=sum(page.entries for page in pages) if pages else len(nodes),
        log_bytes=sum(node.log_bytes for node in nodes),
        max_timestamp=max(node.max_timestamp for node in nodes),
        crc32c=1,
        level=first.level + 1 if isinstance(first, PageRef) else 0,
        children=len(pages),
    )
    return replace(ref, **changes)


def announce(world: World, page: PageRef) -> None:
    command = c.StartSpill(
        topic_id=world.image.topic_ids["t"],
        partition=0,
        leader_epoch=0,
        uuid=page.uuid,
        base_offset=page.base_offset,
        last_offset=page.last_offset,
    )
    assert world.do(command).error == E.NONE


def spill(world: World, page: PageRef, replaced: tuple[ManifestNode, ...], leader_epoch: int = 0) -> E:
    return world.do(
        c.SpillEntries(
            topic_id=world.image.topic_ids["t"],
            partition=0,
            leader_epoch=leader_epoch,
            page=page,
            replaced=tuple(node.uuid for node in replaced),
        )
    ).error


def spilled(world: World, number: int, count: int) -> PageRef:
    """Move the oldest entries into a new page."""
    moved = world.remote("t").entries[:count]
    page = page_of(moved, number)
    announce(world, page)
    assert spill(world, page, moved) == E.NONE
    return page


def announce_copy(world: World, segment: RemoteSegment) -> E:
    return world.start_copy(
        "t", segment.uuid.int, segment.base_offset, segment.last_offset, replaces=True
    ).error


def replace_command(world: World, **values: Any) -> c.ReplaceSegments:
    defaults = {"topic_id": world.image.topic_ids["t"], "partition": 0, "broker_id": 1, "leader_epoch": 0}
    return c.ReplaceSegments(**defaults | values)


def queued(world: World) -> dict[int, int]:
    """Ids in the delete queue, and their leader epochs."""
    return {one.int: line.leader_epoch for one, line in world.image.delete_queue.items()}


def test_page_that_is_not_full_is_continued(tiered: World) -> None:
    first = spilled(tiered, 50, 1)
    moved = (first, *tiered.remote("t").entries[:2])
    page = page_of(tuple(tiered.remote("t").entries[:2]), 51, base_offset=0, entries=3, log_bytes=3000)
    announce(tiered, page)
    assert spill(tiered, page, moved) == E.NONE
    assert tiered.remote("t").pages == (page,)
    assert [entry.uuid.int for entry in tiered.remote("t").entries] == [4]
    assert queued(tiered) == {50: ALONE}  # its segments are in the new page


def test_pages_are_spilled_to_a_page_of_the_next_level(tiered: World) -> None:
    pages = (spilled(tiered, 50, 1), spilled(tiered, 51, 2))
    top = page_of(pages, 52)
    announce(tiered, top)
    assert spill(tiered, top, pages) == E.NONE
    assert (tiered.remote("t").pages, queued(tiered)) == ((top,), {})
    assert spill(tiered, top, pages) == E.NONE  # a repetition
    assert tiered.remote("t").end_offset == 40


def test_pages_of_all_levels_stay_after_all_entries_have_diverged(tiered: World) -> None:
    pages = (spilled(tiered, 50, 1), spilled(tiered, 51, 1))
    top = page_of(pages, 52)
    announce(tiered, top)
    assert spill(tiered, top, pages) == E.NONE
    low = spilled(tiered, 53, 1)
    changed = replace(tiered.partition(), leader_epoch=1, partition_epoch=1)
    tiered.image = evolve(tiered.image, changed)
    topic_id = tiered.image.topic_ids["t"]
    command = c.RemoveDiverged(topic_id=topic_id, partition=0, broker_id=1, leader_epoch=1, from_offset=30)
    assert tiered.do(command).error == E.NONE
    remote = tiered.remote("t")
    assert (remote.nodes, remote.end_offset) == ((top, low), 30)
    assert queued(tiered) == {4: 0}
    assert tiered.start_copy("t", 5, 40, 49, leader_epoch=1).error == E.INVALID_REQUEST
    assert tiered.start_copy("t", 5, 30, 49, leader_epoch=1).error == E.NONE
    assert decode_image(encode_image(tiered.image)) == tiered.image


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"entries": 2}, E.INVALID_REQUEST),
        ({"log_bytes": 1}, E.INVALID_REQUEST),
        ({"base_offset": 10}, E.INVALID_REQUEST),
        ({"children": 1}, E.INVALID_REQUEST),
        ({"level": 2}, E.INVALID_REQUEST),
        ({"level": 0, "children": 0}, E.INVALID_REQUEST),
    ],
)
def test_page_that_does_not_match_its_nodes_is_refused(tiered: World, changes: Values, error: E) -> None:
    pages = (spilled(tiered, 50, 1), spilled(tiered, 51, 2))
    top = page_of(pages, 52, **changes)
    announce(tiered, top)
    assert spill(tiered, top, pages) == error
    assert tiered.remote("t").pages == pages


def test_spill_of_nodes_that_changed_meanwhile_is_refused(tiered: World) -> None:
    entries = tiered.remote("t").entries
    page = page_of(entries[:2], 52)
    announce(tiered, page)
    assert spill(tiered, page, (entries[0], entries[2])) == E.INVALID_REQUEST
    assert spill(tiered, page, entries[:2], leader_epoch=1) == E.UNKNOWN_LEADER_EPOCH
    pages = (spilled(tiered, 50, 1), spilled(tiered, 51, 1))
    newer = page_of(pages[1:], 53)
    announce(tiered, newer)
    assert spill(tiered, newer, pages[1:]) == E.INVALID_REQUEST  # a page of a lower level is before it


def test_entries_are_replaced(tiered: World, make_segment: Any) -> None:
    old, merged = tiered.remote("t").entries[1:3], make_segment(60, 10, 29)
    assert announce_copy(tiered, merged) == E.NONE
    command = replace_command(tiered, old=old, new=(merged,))
    for _ in range(2):
        assert tiered.do(command).error == E.NONE
    assert [entry.uuid.int for entry in tiered.remote("t").entries] == [1, 60, 4]
    assert tiered.remote("t").started == ()
    assert queued(tiered) == {2: 0, 3: 0}


def test_segments_below_pages_are_replaced(tiered: World, make_segment: Any) -> None:
    leaf = spilled(tiered, 50, 3)
    top = page_of((leaf,), 51)
    announce(tiered, top)
    assert spill(tiered, top, (leaf,)) == E.NONE
    old = tuple(make_segment(number, number * 10 - 10, number * 10 - 1) for number in (2, 3))
    merged = make_segment(60, 10, 29)
    merged = replace(merged, log_bytes=1500)
    assert announce_copy(tiered, merged) == E.NONE
    new_leaf = replace(leaf, uuid=uuid.UUID(int=61), entries=2, log_bytes=2500)
    new_top = replace(top, uuid=uuid.UUID(int=62), entries=2, log_bytes=2500)
    announce(tiered, new_leaf)
    announce(tiered, new_top)
    command = replace_command(
        tiered,
        old=old,
        new=(merged,),
        replaced_page=top.uuid,
        page=new_top,
        inner_pages=(new_leaf,),
        old_inner_pages=(leaf,),
    )
    refused = [
        {"inner_pages": ()},
        {"old_inner_pages": ()},
        {"old_inner_pages": (replace(leaf, level=1),)},
        {"page": replace(new_top, entries=3)},
        {"page": replace(new_top, log_bytes=2501)},
        {"page": replace(new_top, level=2)},
        {"page": replace(new_top, last_offset=39)},
        {"page": replace(new_top, uuid=uuid.UUID(int=99))},
        {"replaced_page": leaf.uuid},
        {"old": (*tiered.remote("t").entries,), "new": (replace(merged, base_offset=30, last_offset=39),)},
    ]
    for values in refused:
        assert tiered.do(replace(command, **values)).error == E.INVALID_REQUEST, values
    for _ in range(2):
        assert tiered.do(command).error == E.NONE
    assert tiered.remote("t").pages == (new_top,)
    assert queued(tiered) == {2: 0, 3: 0, 50: ALONE, 51: ALONE}


def test_replacement_must_cover_the_same_range_and_be_announced(tiered: World, make_segment: Any) -> None:
    old = tiered.remote("t").entries[1:3]
    whole, half, other = make_segment(60, 10, 29), make_segment(61, 10, 19), make_segment(62, 20, 29)
    for segment in (whole, half):
        assert announce_copy(tiered, segment) == (E.NONE)
    assert [copy.uuid.int for copy in tiered.remote("t").started] == [61]  # it overlaps the other
    refused: list[Values] = [
        {"old": old, "new": (whole,)},  # abandoned
        {"old": old, "new": (half,)},
        {"old": old, "new": (half, other)},  # not announced
        {"old": old[:1], "new": (replace(half, last_offset=18),)},
        {"old": (old[1], old[0]), "new": (half, other)},
        {"old": (), "new": (half,)},
        {"old": old[:1], "new": ()},
        {"old": (replace(old[0], log_bytes=1),), "new": (half,)},
        {"old": old[:1], "new": (half,), "inner_pages": (page_of(old, 70),)},
    ]
    for values in refused:
        assert tiered.do(replace_command(tiered, **values)).error == E.INVALID_REQUEST, values
    assert tiered.remote("t").entries[1:3] == old
    assert tiered.do(replace_command(tiered, old=old[:1], new=(half,))).error == E.NONE


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"broker_id": 2}, E.NOT_LEADER_OR_FOLLOWER),
        ({"leader_epoch": -1}, E.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 1}, E.UNKNOWN_LEADER_EPOCH),
        ({"partition": 7}, E.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_only_the_current_leader_replaces(tiered: World, make_segment: Any, values: Values, error: E) -> None:
    old, new = tiered.remote("t").entries[:1], make_segment(60, 0, 9)
    assert announce_copy(tiered, new) == E.NONE
    assert tiered.do(replace_command(tiered, old=old, new=(new,), **values)).error == error


def test_segment_of_another_epoch_is_refused(tiered: World, make_segment: Any) -> None:
    old, new = tiered.remote("t").entries[:1], make_segment(60, 0, 9, leader_epoch=3)
    assert announce_copy(tiered, new) == E.NONE
    assert tiered.do(replace_command(tiered, old=old, new=(new,))).error == E.FENCED_LEADER_EPOCH


def test_copies_of_both_kinds_do_not_replace_each_other(tiered: World, make_segment: Any) -> None:
    assert tiered.start_copy("t", 70, 40, 49).error == E.NONE
    assert announce_copy(tiered, make_segment(60, 0, 9)) == E.NONE
    assert tiered.start_copy("t", 71, 50, 59).error == E.NONE
    assert [copy.uuid.int for copy in tiered.remote("t").started] == [70, 60, 71]
    assert tiered.finish_copy("t", make_segment(60, 0, 9)).error == E.INVALID_REQUEST
    assert tiered.finish_copy("t", make_segment(70, 40, 49)).error == E.NONE
    for number in range(MAX_STARTED - 2):
        segment = make_segment(100 + number, 10 + number, 10 + number)
        assert announce_copy(tiered, segment) == E.NONE
    assert announce_copy(tiered, make_segment(200, 39, 39)) == E.INVALID_REQUEST


def test_only_remote_offsets_are_replaced(tiered: World, make_segment: Any) -> None:
    for base, last in ((35, 40), (-1, 4), (9, 3)):
        assert announce_copy(tiered, make_segment(60, base, last)) == E.INVALID_REQUEST


def trim(world: World, **values: Any) -> E:
    defaults = {"topic_id": world.image.topic_ids["t"], "partition": 0, "leader_epoch": 0}
    return world.do(c.TrimPages(**defaults | values)).error


def move(world: World, offset: int) -> None:
    command = c.MoveLogStart(
        topic_id=world.image.topic_ids["t"], partition=0, leader_epoch=0, log_start_offset=offset
    )
    assert world.do(command).error == E.NONE


def test_pages_below_the_log_start_leave_a_page(tiered: World) -> None:
    pages = (spilled(tiered, 50, 1), spilled(tiered, 51, 1), spilled(tiered, 52, 1))
    top = page_of(pages, 53)
    announce(tiered, top)
    assert spill(tiered, top, pages) == E.NONE
    rest = page_of(pages[1:], 54)
    announce(tiered, rest)
    values = {"replaced_page": top.uuid, "page": rest, "dropped": pages[:1]}
    move(tiered, 9)
    assert trim(tiered, **values) == E.INVALID_REQUEST  # one offset of it is left
    move(tiered, 15)
    assert trim(tiered, **values | {"dropped": pages[1:2]}) == E.INVALID_REQUEST
    assert trim(tiered, **values | {"dropped": ()}) == E.INVALID_REQUEST
    assert trim(tiered, **values | {"page": replace(rest, entries=3)}) == E.INVALID_REQUEST
    assert trim(tiered, **values | {"replaced_page": pages[0].uuid}) == E.INVALID_REQUEST
    assert trim(tiered, **values | {"leader_epoch": 1}) == E.UNKNOWN_LEADER_EPOCH
    for _ in range(2):
        assert trim(tiered, **values) == E.NONE
    assert tiered.remote("t").pages == (rest,)
    assert tiered.remote("t").first_offset == 10
    assert queued(tiered) == {50: WITH_SEGMENTS, 53: ALONE}


def test_new_page_whose_deletion_has_begun_is_refused(tiered: World) -> None:
    entries = tiered.remote("t").entries
    page = page_of(entries[:2], 52)
    announce(tiered, page)
    tiered.now_ms += SPILL_TIMEOUT_MS
    tiered.do(c.StartRemoteDeletes(grace_ms=0, uuids=tuple(tiered.image.delete_queue)))
    assert spill(tiered, page, entries[:2]) == E.INVALID_REQUEST


def test_nothing_of_format_2_is_committed_in_format_1(world: World, make_segment: Any) -> None:
    world.brokers(1)
    world.create("t", assignments=((0, (1,)),), configs=(("remote.storage.enable", "true"),))
    world.copy("t", 1, 0, 9)
    entries = world.remote("t").entries
    assert announce_copy(world, make_segment(60, 0, 9)) == E.UNSUPPORTED_VERSION
    page = page_of(entries, 50)
    announce(world, page)
    assert spill(world, page, entries) == E.UNSUPPORTED_VERSION
    command = replace_command(world, old=entries, new=(make_segment(60, 0, 9),))
    assert world.do(command).error == E.UNSUPPORTED_VERSION
    assert trim(world, replaced_page=page.uuid, page=page, dropped=()) == E.UNSUPPORTED_VERSION
    world.start_copy("t", 2, 10, 19)
    newer = replace(make_segment(2, 10, 19), control_records=1)
    assert world.finish_copy("t", newer).error == E.UNSUPPORTED_VERSION
    assert world.finish_copy("t", newer.in_format_1()).error == E.NONE
    assert encode_image(world.image)[1] < 9  # the snapshot's version


def test_new_cluster_begins_with_the_highest_format_version(world: World) -> None:
    world.register(1, formats=(1, 2))
    assert world.image.format_version == 2
    assert world.register(2).error == E.INVALID_REGISTRATION  # it supports only version 1
