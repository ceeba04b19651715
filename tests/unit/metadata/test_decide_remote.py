"""Controller's decisions on remote data: copies, the manifest, the log start offset and the delete queue."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from tierlog.base.types import TopicIdPartition
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.remote import MAX_DELETES, MAX_ENTRIES, MAX_STARTED, SPILL_TIMEOUT_MS
from tierlog.metadata.delete_queue import DeletedTopic
from tierlog.metadata.evolve import evolve
from tierlog.metadata.records import PageRef, RemoteSegment
from tierlog.protocol.errors import ErrorCode as E

World = Any
MakeSegment = Any


@pytest.fixture
def tiered(world: World) -> World:
    world.brokers(1, 2)
    world.create("t", assignments=((0, (1,)), (1, (2,))), configs=(("remote.storage.enable", "true"),))
    return world


def queued(world: World) -> set[int]:
    """Ids in the delete queue, as numbers."""
    return {uuid.int for uuid in world.image.delete_queue}


def move(world: World, offset: int, leader_epoch: int = 0) -> Any:
    """Raise the log start offset, as retention and DeleteRecords do."""
    topic_id = world.image.topic_ids["t"]
    return world.do(
        c.MoveLogStart(topic_id=topic_id, partition=0, leader_epoch=leader_epoch, log_start_offset=offset)
    )


def abandon(world: World, number: int, leader_epoch: int = 0) -> E:
    topic_id = world.image.topic_ids["t"]
    command = c.AbandonCopy(
        topic_id=topic_id, partition=0, leader_epoch=leader_epoch, uuid=uuid.UUID(int=number)
    )
    return world.do(command).error


def spill(world: World, count: int, **overrides: Any) -> E:
    """Replace the oldest entries with a page. `overrides`: fields of the page's reference."""
    oldest = world.remote("t").entries[:count]
    values = {
        "uuid": uuid.UUID(int=900 + count),
        "base_offset": oldest[0].base_offset,
        "last_offset": oldest[-1].last_offset,
        "entries": count,
        "log_bytes": sum(entry.log_bytes for entry in oldest),
        "max_timestamp": max(entry.max_timestamp for entry in oldest),
        "crc32c": 1,
    } | overrides
    start_spill(world, values["uuid"].int)
    return commit_spill(world, PageRef(**values))


def start_spill(world: World, number: int, last_offset: int = 9) -> E:
    command = c.StartSpill(
        topic_id=world.image.topic_ids["t"],
        partition=0,
        leader_epoch=0,
        uuid=uuid.UUID(int=number),
        base_offset=0,
        last_offset=last_offset,
    )
    return world.do(command).error


def commit_spill(world: World, page: PageRef) -> E:
    topic_id = world.image.topic_ids["t"]
    return world.do(c.SpillEntries(topic_id=topic_id, partition=0, leader_epoch=0, page=page)).error


def test_copy_is_announced_and_then_finished(tiered: World, make_segment: MakeSegment) -> None:
    assert tiered.start_copy("t", 1, 0, 9).error == E.NONE
    started = tiered.remote("t").started[0]
    assert (started.uuid.int, started.base_offset, started.last_offset, started.at_ms) == (1, 0, 9, 1000)
    assert tiered.finish_copy("t", make_segment(1, 0, 9)).error == E.NONE
    assert tiered.remote("t").entries == (make_segment(1, 0, 9),)
    assert tiered.remote("t").started == ()
    assert tiered.remote("t").end_offset == 10


def test_repeated_commands_are_acknowledged_and_change_nothing(
    tiered: World, make_segment: MakeSegment
) -> None:
    for _ in range(2):
        assert tiered.start_copy("t", 1, 0, 9).error == E.NONE
    for _ in range(2):
        assert tiered.finish_copy("t", make_segment(1, 0, 9)).error == E.NONE
    assert len(tiered.remote("t").entries) == 1
    assert queued(tiered) == set()


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"broker_id": 2}, E.NOT_LEADER_OR_FOLLOWER),
        ({"leader_epoch": -1}, E.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 1}, E.UNKNOWN_LEADER_EPOCH),
        ({"partition": 1}, E.NOT_LEADER_OR_FOLLOWER),
        ({"partition": 2}, E.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_only_the_leader_of_the_current_epoch_copies(tiered: World, values: dict[str, int], error: E) -> None:
    assert tiered.start_copy("t", 1, 0, 9, **values).error == error
    assert not tiered.image.remote


def test_copy_of_an_unknown_topic_is_refused(tiered: World) -> None:
    command = c.StartCopy(
        topic_id=uuid.UUID(int=77),
        partition=0,
        broker_id=1,
        leader_epoch=0,
        uuid=uuid.UUID(int=1),
        base_offset=0,
        last_offset=1,
    )
    assert tiered.do(command).error == E.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(("base", "last"), [(11, 19), (9, 19), (5, 4), (-1, 3), (0, 9)])
def test_copy_continues_at_the_end_of_the_remote_log(tiered: World, base: int, last: int) -> None:
    tiered.copy("t", 1, 0, 9)
    assert tiered.start_copy("t", 2, base, last).error == E.INVALID_REQUEST
    assert tiered.start_copy("t", 2, 10, 19).error == E.NONE


def test_successive_copies_run_concurrently_and_finish_in_order(
    tiered: World, make_segment: MakeSegment
) -> None:
    tiered.start_copy("t", 1, 0, 9)
    tiered.start_copy("t", 2, 10, 19)
    assert tiered.start_copy("t", 3, 21, 29).error == E.INVALID_REQUEST
    tiered.copy("t", 9, 0, 9)  # a copy from 0 again abandons all unfinished copies
    assert queued(tiered) == {1, 2}
    assert tiered.finish_copy("t", make_segment(2, 10, 19)).error == E.INVALID_REQUEST


def test_finishing_out_of_order_is_refused(tiered: World, make_segment: MakeSegment) -> None:
    tiered.copy("t", 1, 0, 9)
    tiered.start_copy("t", 2, 10, 19)
    tiered.start_copy("t", 3, 20, 29)
    assert tiered.finish_copy("t", make_segment(3, 20, 29)).error == E.INVALID_REQUEST
    assert tiered.finish_copy("t", make_segment(2, 10, 19)).error == E.NONE
    assert tiered.finish_copy("t", make_segment(3, 20, 29)).error == E.NONE


def test_copy_that_differs_from_its_announcement_is_refused(tiered: World, make_segment: MakeSegment) -> None:
    tiered.start_copy("t", 1, 0, 9)
    assert tiered.finish_copy("t", make_segment(1, 0, 8)).error == E.INVALID_REQUEST
    assert tiered.finish_copy("t", make_segment(5, 0, 9)).error == E.INVALID_REQUEST


def test_copy_of_a_deposed_leader_never_enters_the_manifest(tiered: World, make_segment: MakeSegment) -> None:
    tiered.start_copy("t", 1, 0, 9)
    tiered.register(1, incarnation=50)  # the broker restarts, which starts a new leader epoch
    assert tiered.finish_copy("t", make_segment(1, 0, 9)).error == E.FENCED_LEADER_EPOCH
    assert tiered.start_copy("t", 2, 0, 9, leader_epoch=1).error == E.NONE
    assert queued(tiered) == {1}
    assert tiered.finish_copy("t", make_segment(1, 0, 9, leader_epoch=1)).error == E.INVALID_REQUEST
    assert tiered.finish_copy("t", make_segment(2, 0, 9, leader_epoch=1)).error == E.NONE


def test_uuid_is_used_for_one_attempt_only(tiered: World) -> None:
    tiered.copy("t", 1, 0, 9)
    assert tiered.start_copy("t", 1, 10, 19).error == E.INVALID_REQUEST
    tiered.start_copy("t", 2, 10, 19)
    abandon(tiered, 2)
    assert tiered.start_copy("t", 2, 10, 19).error == E.INVALID_REQUEST


def test_abandoning_queues_the_objects_once(tiered: World) -> None:
    tiered.start_copy("t", 1, 0, 9)
    assert abandon(tiered, 1, leader_epoch=-1) == E.FENCED_LEADER_EPOCH
    assert abandon(tiered, 1) == E.NONE
    deletion = tiered.image.delete_queue[uuid.UUID(int=1)]
    assert (deletion.base_offset, deletion.last_offset) == (0, 9)
    assert (deletion.leader_epoch, deletion.queued_ms) == (0, 1000)
    assert abandon(tiered, 1) == E.NONE
    assert queued(tiered) == {1}


def test_finished_copy_cannot_be_abandoned(tiered: World) -> None:
    tiered.copy("t", 1, 0, 9)
    assert abandon(tiered, 1) == E.INVALID_REQUEST
    assert queued(tiered) == set()


def test_log_start_removes_complete_entries_and_never_decreases(tiered: World) -> None:
    for number, base in enumerate((0, 10, 20), 1):
        tiered.copy("t", number, base, base + 9)
    tiered.now_ms = 5000
    assert move(tiered, 19).log_start_offset == 19
    assert [entry.uuid.int for entry in tiered.remote("t").entries] == [2, 3]
    assert queued(tiered) == {1}
    assert tiered.image.delete_queue[uuid.UUID(int=1)].queued_ms == 5000
    lower = move(tiered, 5)
    assert (lower.error, lower.log_start_offset) == (E.NONE, 19)
    assert tiered.remote("t").log_start_offset == 19
    assert move(tiered, 30).log_start_offset == 30
    assert queued(tiered) == {1, 2, 3}
    assert move(tiered, 40, leader_epoch=-1).error == E.FENCED_LEADER_EPOCH


def test_next_copy_cannot_overlap_deleted_segments(tiered: World) -> None:
    tiered.copy("t", 1, 0, 9)
    move(tiered, 25)
    assert tiered.remote("t").end_offset is None
    assert tiered.start_copy("t", 2, 0, 30).error == E.INVALID_REQUEST
    assert tiered.start_copy("t", 2, 26, 40).error == E.INVALID_REQUEST  # offset 25 would be missing
    assert tiered.start_copy("t", 2, 10, 20).error == E.OFFSET_OUT_OF_RANGE
    assert tiered.start_copy("t", 2, 20, 30).error == E.NONE


def test_copy_below_the_log_start_does_not_finish(tiered: World, make_segment: MakeSegment) -> None:
    tiered.start_copy("t", 1, 0, 9)
    move(tiered, 10)
    assert tiered.finish_copy("t", make_segment(1, 0, 9)).error == E.OFFSET_OUT_OF_RANGE


def drop(world: World, offset: int, leader_epoch: int = 0) -> Any:
    """Delete the remote log, as a leader does once tiering is off. The log then starts at `offset`."""
    topic_id = world.image.topic_ids["t"]
    return world.do(
        c.DropRemoteLog(topic_id=topic_id, partition=0, leader_epoch=leader_epoch, log_start_offset=offset)
    )


def switch(world: World, enabled: str) -> None:
    """Set remote.storage.enable of the topic."""
    changes = tuple(
        c.ConfigChange(key=key, operation=c.ConfigOperation.SET, value=value)
        for key, value in {"remote.storage.enable": enabled, "remote.log.delete.on.disable": "true"}.items()
    )
    resource = c.ConfigResource(scope=c.ConfigScope.TOPIC, name="t", changes=changes)
    assert world.do(c.AlterConfigs(resources=(resource,))).resources[0].error == E.NONE


def test_remote_log_is_deleted_only_after_tiering_is_switched_off(tiered: World) -> None:
    tiered.copy("t", 1, 0, 9)
    tiered.copy("t", 2, 10, 19)
    assert spill(tiered, 1) == E.NONE
    tiered.start_copy("t", 3, 20, 29)
    refused = drop(tiered, 15)
    assert (refused.error, queued(tiered)) == (E.INVALID_REQUEST, set()), "tiering is still on"
    switch(tiered, "false")
    assert drop(tiered, 15, leader_epoch=-1).error == E.FENCED_LEADER_EPOCH
    for _ in range(2):
        dropped = drop(tiered, 15)
        assert (dropped.error, dropped.log_start_offset) == (E.NONE, 15)
        assert queued(tiered) == {901, 2, 3}
    remote = tiered.remote("t")
    assert (remote.log_start_offset, remote.first_offset, remote.started) == (15, None, ())


def test_log_start_never_decreases_after_tiering_is_switched_off(tiered: World) -> None:
    tiered.copy("t", 1, 0, 9)
    move(tiered, 7)
    switch(tiered, "false")
    assert drop(tiered, 3).log_start_offset == 7
    assert tiered.remote("t").log_start_offset == 7
    assert drop(tiered, 12).log_start_offset == 12, "the next leader has a higher log start offset"


def test_copies_start_at_the_log_start_after_tiering_is_switched_on_again(
    tiered: World, make_segment: MakeSegment
) -> None:
    tiered.copy("t", 1, 0, 9)
    tiered.start_copy("t", 2, 10, 19)
    switch(tiered, "false")
    drop(tiered, 5)
    assert tiered.start_copy("t", 3, 5, 9).error == E.INVALID_REQUEST, "tiering is off"
    assert tiered.finish_copy("t", make_segment(2, 10, 19)).error == E.INVALID_REQUEST
    switch(tiered, "true")
    assert tiered.start_copy("t", 3, 10, 19).error == E.INVALID_REQUEST, "offsets 5 to 9 would be missing"
    assert tiered.start_copy("t", 3, 5, 12).error == E.NONE
    assert tiered.finish_copy("t", make_segment(3, 5, 12)).error == E.NONE
    assert (tiered.remote("t").first_offset, tiered.remote("t").end_offset) == (5, 13)
    assert queued(tiered) == {1, 2}


def test_deleted_topic_is_one_entry_of_the_delete_queue(tiered: World) -> None:
    tiered.copy("t", 1, 0, 9)
    tiered.copy("t", 2, 10, 19)
    spill(tiered, 1)
    tiered.start_copy("t", 3, 20, 29)
    tiered.start_copy("t", 4, 0, 9, broker_id=2, partition=1)
    topic_id = delete_topic(tiered)
    assert tiered.image.delete_queue[topic_id] == DeletedTopic(uuid=topic_id, partitions=2, queued_ms=1000)
    assert queued(tiered) == {topic_id.int}
    assert not tiered.image.remote
    tiered.now_ms += 2000
    assert start_deletes(tiered, 2001) == set()
    assert start_deletes(tiered, 2000) == {topic_id.int}
    tiered.do(c.ConfirmRemoteDeleted(uuids=(topic_id,)))
    assert not tiered.image.delete_queue and not tiered.image.deleting


def test_deleted_topic_that_was_never_tiered_is_not_queued(tiered: World) -> None:
    delete_topic(tiered)
    assert queued(tiered) == set()


def test_deleting_a_topic_reads_no_manifest_entry(tiered: World) -> None:
    """A topic of 500 partitions may have 192,000 entries; each node deletes it on its event loop."""
    tiered.copy("t", 1, 0, 9)
    key = TopicIdPartition(tiered.image.topic_ids["t"], 0)
    remote = replace(tiered.remote("t"), entries=Unread(tiered.remote("t").entries))
    tiered.image = replace(tiered.image, remote=tiered.image.remote.set(key, remote))
    delete_topic(tiered)
    assert len(tiered.image.delete_queue) == 1


class Unread(tuple[RemoteSegment, ...]):
    """Manifest entries that fail the test when they are read."""

    def __iter__(self) -> Iterator[RemoteSegment]:
        raise AssertionError("a manifest entry was read")

    __getitem__ = __iter__  # type: ignore[assignment]


def delete_topic(world: World) -> uuid.UUID:
    topic_id: uuid.UUID = world.image.topic_ids["t"]
    world.do(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
    return topic_id


def test_deleted_objects_leave_the_queue(tiered: World) -> None:
    tiered.start_copy("t", 1, 0, 9)
    abandon(tiered, 1)
    confirm = c.ConfirmRemoteDeleted(uuids=(uuid.UUID(int=1), uuid.UUID(int=2)))
    for _ in range(2):
        assert tiered.do(confirm).error == E.NONE
    assert queued(tiered) == set()


def test_spill_replaces_exactly_the_oldest_entries(tiered: World) -> None:
    for number, base in enumerate((0, 10, 20), 1):
        tiered.copy("t", number, base, base + 9)
    for wrong_field in (
        {"base_offset": 1},
        {"last_offset": 18},
        {"log_bytes": 1},
        {"entries": 3},
        {"max_timestamp": 0},
    ):
        assert spill(tiered, 2, **wrong_field) == E.INVALID_REQUEST
    assert spill(tiered, 1, entries=0) == E.INVALID_REQUEST
    assert spill(tiered, 2) == E.NONE
    remote = tiered.remote("t")
    assert ([page.entries for page in remote.pages], len(remote.entries)) == ([2], 1)
    assert (remote.first_offset, remote.end_offset) == (0, 30)
    move(tiered, 20)
    assert tiered.remote("t").pages == ()
    assert queued(tiered) >= {902}
    assert not tiered.image.delete_queue[uuid.UUID(int=902)].is_unfinished_page


def test_page_is_in_the_delete_queue_until_it_is_committed(tiered: World) -> None:
    """A page that is never committed must not remain as an orphan; a committed page must not be deleted."""
    tiered.copy("t", 1, 0, 9)
    entry = tiered.remote("t").entries[0]
    page = PageRef(
        uuid=uuid.UUID(int=50),
        base_offset=0,
        last_offset=9,
        entries=1,
        log_bytes=entry.log_bytes,
        max_timestamp=entry.max_timestamp,
        crc32c=1,
    )
    assert commit_spill(tiered, page) == E.INVALID_REQUEST  # not announced with StartSpill
    assert start_spill(tiered, 50) == E.NONE
    deletion = tiered.image.delete_queue[page.uuid]
    assert deletion.is_unfinished_page
    assert deletion.queued_ms == tiered.now_ms + SPILL_TIMEOUT_MS
    assert start_spill(tiered, 50, last_offset=8) == E.INVALID_REQUEST  # an id is used for one attempt only
    assert commit_spill(tiered, page) == E.NONE
    assert queued(tiered) == set()


def test_repeated_announcement_of_a_page_is_acknowledged_and_changes_nothing(tiered: World) -> None:
    """A merge would be thrown away if the response to its announcement was lost."""
    tiered.copy("t", 1, 0, 9)
    assert start_spill(tiered, 901) == E.NONE
    before = tiered.image.delete_queue
    tiered.now_ms += 1000
    assert start_spill(tiered, 901) == E.NONE
    assert tiered.image.delete_queue == before
    tiered.now_ms += SPILL_TIMEOUT_MS
    assert start_deletes(tiered, 0) == {901}
    assert start_spill(tiered, 901) == E.INVALID_REQUEST


def start_deletes(world: World, grace_ms: int) -> set[int]:
    """Mark the deletions that are due. Returns the ids of all marked deletions, as numbers."""
    waiting = tuple(one for one in world.image.delete_queue if one not in world.image.deleting)
    assert world.do(c.StartRemoteDeletes(grace_ms=grace_ms, uuids=waiting)).error == E.NONE
    return {marked.int for marked in world.image.deleting}


def test_deletions_are_marked_once_the_grace_has_passed(tiered: World) -> None:
    for number, base in enumerate((0, 10), 1):
        tiered.copy("t", number, base, base + 9)
        move(tiered, base + 10)
        tiered.now_ms += 1000
    assert start_deletes(tiered, 2001) == set()
    assert start_deletes(tiered, 2000) == {1}
    assert start_deletes(tiered, 0) == {1, 2}
    assert queued(tiered) == {1, 2}
    tiered.do(c.ConfirmRemoteDeleted(uuids=(uuid.UUID(int=1),)))
    assert (queued(tiered), tiered.image.deleting) == ({2}, {uuid.UUID(int=2)})


def test_quorum_time_advances_without_due_deletions(tiered: World) -> None:
    tiered.copy("t", 1, 0, 9)
    move(tiered, 10)
    tiered.now_ms += 500
    assert tiered.image.time_ms < tiered.now_ms
    start_deletes(tiered, 1000)
    assert tiered.image.time_ms == tiered.now_ms


def test_number_of_deletions_marked_by_one_command_is_limited(tiered: World) -> None:
    for number in range(1, MAX_DELETES + 2):
        tiered.copy("t", 2000 + number, number, number)
        move(tiered, number + 1)
    assert len(start_deletes(tiered, 0)) == MAX_DELETES
    assert len(start_deletes(tiered, 0)) == MAX_DELETES + 1


def test_page_whose_deletion_has_begun_is_never_committed(tiered: World) -> None:
    tiered.copy("t", 1, 0, 9)
    assert start_spill(tiered, 901) == E.NONE
    tiered.now_ms += SPILL_TIMEOUT_MS + 1000
    assert start_deletes(tiered, 1000) == {901}
    assert commit_spill(tiered, page_of(tiered, 901)) == E.INVALID_REQUEST
    assert tiered.remote("t").pages == ()


def test_page_that_is_committed_late_is_not_deleted(tiered: World) -> None:
    tiered.copy("t", 1, 0, 9)
    assert start_spill(tiered, 901) == E.NONE
    tiered.now_ms += 100 * SPILL_TIMEOUT_MS
    assert commit_spill(tiered, page_of(tiered, 901)) == E.NONE
    assert start_deletes(tiered, 0) == set()


def test_page_in_the_manifest_cannot_be_announced_again(tiered: World) -> None:
    """Otherwise a repeated StartSpill would put a page that is in use into the delete queue."""
    tiered.copy("t", 1, 0, 9)
    start_spill(tiered, 901)
    assert commit_spill(tiered, page_of(tiered, 901)) == E.NONE
    assert start_spill(tiered, 901) == E.INVALID_REQUEST
    assert queued(tiered) == set()


def page_of(world: World, number: int) -> PageRef:
    """Reference to a page with only the oldest entry."""
    oldest = world.remote("t").entries[0]
    return PageRef(
        uuid=uuid.UUID(int=number),
        base_offset=oldest.base_offset,
        last_offset=oldest.last_offset,
        entries=1,
        log_bytes=oldest.log_bytes,
        max_timestamp=oldest.max_timestamp,
        crc32c=1,
    )


def test_repeated_spill_is_acknowledged(tiered: World) -> None:
    tiered.copy("t", 1, 0, 9)
    topic_id = tiered.image.topic_ids["t"]
    spill(tiered, 1)
    page = tiered.remote("t").pages[0]
    repeated = c.SpillEntries(topic_id=topic_id, partition=0, leader_epoch=0, page=page)
    assert tiered.do(repeated).error == E.NONE
    assert len(tiered.remote("t").pages) == 1


def test_number_of_concurrent_copies_is_limited(tiered: World) -> None:
    for number in range(MAX_STARTED):
        assert tiered.start_copy("t", 1 + number, number * 10, number * 10 + 9).error == E.NONE
    assert tiered.start_copy("t", 99, MAX_STARTED * 10, MAX_STARTED * 10 + 9).error == E.INVALID_REQUEST


def test_number_of_entries_is_limited_until_they_are_spilled(tiered: World) -> None:
    for number in range(MAX_ENTRIES):
        tiered.copy("t", 2000 + number, number, number)
    assert "spill" in tiered.start_copy("t", 1, MAX_ENTRIES, MAX_ENTRIES).message
    spill(tiered, 100)
    assert tiered.start_copy("t", 1, MAX_ENTRIES, MAX_ENTRIES).error == E.NONE


def test_current_leader_removes_the_entries_that_diverge(tiered: World, make_segment: MakeSegment) -> None:
    for number, base in ((1, 0), (2, 10), (3, 20)):
        tiered.copy("t", number, base, base + 9)
    lead(tiered, 1)
    assert remove_diverged(tiered, 10, leader_epoch=0) == E.FENCED_LEADER_EPOCH
    assert remove_diverged(tiered, 10, broker_id=2) == E.NOT_LEADER_OR_FOLLOWER
    assert remove_diverged(tiered, 15) == E.INVALID_REQUEST  # no entry begins there
    assert remove_diverged(tiered, 10) == E.NONE
    assert [entry.uuid.int for entry in tiered.remote("t").entries] == [1]
    assert queued(tiered) == {2, 3}
    before = tiered.image
    assert remove_diverged(tiered, 10) == E.NONE  # a repetition
    assert tiered.image.remote == before.remote
    assert tiered.start_copy("t", 4, 20, 29, leader_epoch=1).error == E.INVALID_REQUEST
    assert tiered.start_copy("t", 4, 10, 19, leader_epoch=1).error == E.NONE
    tiered.finish_copy("t", make_segment(4, 10, 19, leader_epoch=1))
    assert remove_diverged(tiered, 10) == E.INVALID_REQUEST  # its own copy
    assert remove_diverged(tiered, 0) == E.INVALID_REQUEST


def test_copies_continue_at_the_divergence_if_nothing_remote_is_left(tiered: World) -> None:
    tiered.copy("t", 1, 10, 19)
    lead(tiered, 1)
    assert remove_diverged(tiered, 10) == E.NONE
    assert tiered.remote("t").entries == ()
    assert tiered.start_copy("t", 2, 20, 29, leader_epoch=1).error == E.INVALID_REQUEST
    assert tiered.start_copy("t", 2, 10, 29, leader_epoch=1).error == E.NONE


def lead(world: World, leader_epoch: int) -> None:
    """Broker 1 leads partition 0 again, in this epoch."""
    changed = replace(world.partition(), leader_epoch=leader_epoch, partition_epoch=leader_epoch)
    world.image = evolve(world.image, changed)


def remove_diverged(world: World, from_offset: int, **changes: int) -> E:
    values = {"broker_id": 1, "leader_epoch": world.partition().leader_epoch} | changes
    topic_id = world.image.topic_ids["t"]
    command = c.RemoveDiverged(topic_id=topic_id, partition=0, from_offset=from_offset, **values)
    return world.do(command).error
