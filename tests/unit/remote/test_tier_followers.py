"""Followers of a tiered topic with a real quorum and store: local retention, failover."""

import asyncio
import itertools
import threading
from pathlib import Path

import pytest
from connection_harness import until
from faulty_store import FaultyStore
from structlog.testing import capture_logs
from tier_node import START_MS, flip_a_bit
from tier_node import content as slice_content
from tier_pair import Pair, catch_up, content, send, whole

from tierlog.broker.replication.core.follower import Append, Fetched
from tierlog.broker.storage.log_suffix import FREE_BYTES_KEPT
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import iter_batches

# -- dropping what is remote


async def test_follower_deletes_remote_segments_locally_and_uploads_nothing(
    pair: Pair, store: FaultyStore
) -> None:
    pair.produce(60)
    catch_up(pair.follower, pair.leader)
    await pair.other.log_manager.apply_followers_retention()
    assert pair.follower.local_log_start_offset == 0, "nothing is remote yet"
    await pair.tier()
    calls = len(store.calls)
    await pair.other.log_manager.apply_followers_retention()
    assert len(store.calls) == calls
    ends = [segment.end_offset for segment in pair.follower.segments]
    assert 0 < pair.follower.local_log_start_offset <= pair.remote.end_offset
    assert all(end > pair.remote.end_offset for end in ends[1:]), "what is remote whole is gone"
    assert pair.follower.log_start_offset == 0
    pair.follower.check()


async def test_follower_keeps_segments_above_its_high_watermark(pair: Pair) -> None:
    """Its log may be truncated there; and if elected, it would start above its high watermark."""
    pair.produce(60)
    requested = pair.follower.as_follower.fetch_position()
    assert requested is not None
    found = content(pair.leader.read_for_follower(0, 1 << 20))
    assert (
        pair.follower.as_follower.take_fetched(requested, Fetched(ErrorCode.NONE, 12, 0), found, START_MS)
        == Append()
    )
    await pair.tier()
    await pair.other.log_manager.apply_followers_retention()
    assert pair.follower.local_log_start_offset <= pair.follower.high_watermark == 12
    catch_up(pair.follower, pair.leader)
    await pair.other.log_manager.apply_followers_retention()
    assert pair.follower.local_log_start_offset > 12


async def test_follower_applies_local_retention(pair: Pair) -> None:
    pair.produce(60)
    catch_up(pair.follower, pair.leader)
    await pair.tier()
    await pair.configure("local.retention.ms", "-1")
    await pair.other.log_manager.apply_followers_retention()
    assert pair.follower.local_log_start_offset == 0


async def test_follower_quietly_retries_while_a_flush_writes_the_leader_epochs(pair: Pair) -> None:
    pair.produce(60)
    catch_up(pair.follower, pair.leader)
    await pair.tier()
    files, writes, may_end = pair.other.files, threading.Event(), threading.Event()
    open_file = files.open

    def held(path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if exclusive:
            writes.set()
            may_end.wait()
        return open_file(path, create=create, exclusive=exclusive)

    files.open = held  # type: ignore[method-assign]
    flush = asyncio.ensure_future(asyncio.to_thread(pair.follower.log.flush))
    try:
        await asyncio.to_thread(writes.wait)
        with capture_logs() as lines:
            await pair.other.log_manager.apply_followers_retention()
    finally:
        may_end.set()
        await flush
    assert (lines, pair.follower.local_log_start_offset) == ([], 0)
    await pair.other.log_manager.apply_followers_retention()
    assert pair.follower.local_log_start_offset > 0


# -- what a low disk may delete


async def tiered_but_kept(pair: Pair) -> int:
    """All rolled segments are remote, and still on the follower's disk. Returns their end."""
    await pair.configure("local.retention.ms", "-1")
    pair.produce(60)
    catch_up(pair.follower, pair.leader)
    await pair.finish_tiering()
    end = pair.remote.end_offset
    assert pair.other.log_manager.droppable_end(pair.follower) == end > 0
    return end


async def test_low_disk_deletes_nothing_of_a_replica_without_a_leader(pair: Pair) -> None:
    """After an unclean election its records may be nowhere else."""
    await tiered_but_kept(pair)
    await pair.fence(1)
    assert not pair.follower.is_follower
    assert pair.other.log_manager.droppable_end(pair.follower) == 0


async def test_low_disk_deletes_only_after_a_fetch_in_the_current_epoch(pair: Pair) -> None:
    end = await tiered_but_kept(pair)
    await pair.elect(2)
    await pair.elect(1)
    assert pair.follower.is_follower
    assert pair.other.log_manager.droppable_end(pair.follower) == 0
    catch_up(pair.follower, pair.leader)
    assert pair.other.log_manager.droppable_end(pair.follower) == end


async def test_nothing_is_deleted_of_an_elected_replica_that_cannot_lead_yet(pair: Pair) -> None:
    """Its log may have to replace entries of the manifest, and must reach back to them."""
    await tiered_but_kept(pair)
    pair.other.follow = lambda: None  # type: ignore[method-assign]
    await pair.elect(2)
    pair.follower.update_config(pair.leader.config)
    assert pair.follower.as_follower.agrees_with_leader, "its previous role"
    assert pair.other.log_manager.droppable_end(pair.follower) == 0
    await pair.configure("local.retention.ms", "0")
    pair.follower.update_config(pair.leader.config)
    await pair.other.log_manager.apply_followers_retention()
    assert pair.follower.local_log_start_offset == 0


async def test_low_disk_deletes_nothing_of_a_log_that_differs_from_the_manifest(pair: Pair) -> None:
    await tiered_but_kept(pair)
    pair.follower.log.epochs.restart([(7, 0)])
    assert pair.other.log_manager.droppable_end(pair.follower) == 0


# -- taking over


async def test_new_leader_continues_uploads_from_within_its_own_segment(pair: Pair) -> None:
    """Its segments roll at other offsets, so the remote log ends within one of them."""
    pair.produce(13)
    catch_up(pair.follower, pair.leader)
    pair.leader.log.roll(START_MS)
    await pair.finish_tiering()
    boundary = pair.remote.end_offset
    assert boundary == 65
    pair.produce(60)
    catch_up(pair.follower, pair.leader)
    log = bytes(whole(pair.follower))
    await pair.elect(2)
    assert boundary not in [segment.base_offset for segment in pair.follower.segments]
    await pair.finish_tiering()
    remote = pair.remote
    ends = [(entry.base_offset, entry.end_offset) for entry in remote.entries]
    assert ends[0][0] == 0 and all(a[1] == b[0] for a, b in itertools.pairwise(ends))
    assert remote.end_offset == pair.follower.log.active_base_offset > boundary
    assert pair.follower.local_log_start_offset == remote.end_offset, "and drops it"
    assert not list(pair.other.directory.rglob("*.tmp"))
    reader = pair.node.fresh_remote_log()
    data, offset = b"", 0
    while offset < remote.end_offset:
        where = pair.node.where(pair.leader)
        found = await reader.read(where, offset, 3000, min_one=True)
        data += slice_content(found)
        offset = found.end_offset
    assert data == log[: len(data)] and list(iter_batches(data))[-1][1].next_offset == remote.end_offset
    for target in (boundary - 1, boundary, boundary + 7):
        at = await reader.offset_for_timestamp(where, START_MS + target)
        assert at[:2] == (target, START_MS + target)


async def within_a_segment(pair: Pair, *, uploads: bool = True) -> None:
    """The remote log ends within a segment of broker 2, which has caught up."""
    pair.produce(13)
    catch_up(pair.follower, pair.leader)
    pair.leader.log.roll(START_MS)
    await pair.finish_tiering()
    if not uploads:
        await pair.configure("remote.log.copy.disable", "true")
    pair.produce(60)
    catch_up(pair.follower, pair.leader)


async def test_suffix_is_not_copied_on_a_nearly_full_disk(pair: Pair) -> None:
    await within_a_segment(pair)
    pair.other.files.usable = FREE_BYTES_KEPT
    await pair.elect(2)
    await until(lambda: pair.other.log_manager.status_of(pair.follower).last_error is not None)
    assert "not enough space to copy" in ((await pair.other.log_manager.status("t"))[0].last_error or "")
    assert not list(pair.other.directory.rglob("*.tmp"))
    assert send(pair.follower, pair.sequence).error == ErrorCode.NONE
    pair.other.files.usable = None
    await pair.finish_tiering()
    assert pair.remote.end_offset == pair.follower.log.active_base_offset
    copies = [by_thread for what, by_thread in pair.other.files.done if what == "unlink copy"]
    assert copies and all(copies), "and the loop did not wait for its end"


@pytest.mark.parametrize(("batch", "end"), [(14, 65), (12, None)])
async def test_suffix_of_a_partly_remote_segment_must_be_intact(
    pair: Pair, batch: int, end: int | None
) -> None:
    await within_a_segment(pair, uploads=False)
    log = bytes(whole(pair.follower))
    flip_a_bit(pair.follower, batch * 5)
    await pair.elect(2)
    await pair.configure("remote.log.copy.disable", "false")
    await pair.finish_tiering()
    assert pair.node.causes == ["upload"]
    assert pair.remote.end_offset == (end or pair.follower.log.active_base_offset)
    assert log.startswith(await pair.remote_bytes())


async def test_next_leader_uploads_segments_that_were_damaged_on_the_previous_one(pair: Pair) -> None:
    await pair.configure("remote.log.copy.disable", "true")
    pair.produce(60)
    catch_up(pair.follower, pair.leader)
    log, at = bytes(whole(pair.leader)), pair.leader.segments[1].base_offset
    flip_a_bit(pair.leader, at)
    await pair.configure("remote.log.copy.disable", "false")
    await pair.finish_tiering()
    assert (pair.node.causes, pair.remote.end_offset) == (["upload"], at)
    await pair.elect(2)
    await pair.finish_tiering()
    assert pair.remote.end_offset == pair.follower.log.active_base_offset > at
    assert log.startswith(await pair.remote_bytes())


async def test_upload_of_a_former_leader_is_not_committed(pair: Pair, store: FaultyStore) -> None:
    pair.produce(20)
    catch_up(pair.follower, pair.leader)
    store.arm("hold", 1, "put")
    pair.leader.log.roll(START_MS)
    pair.node.log_manager.wake_all()
    await store.fired.wait()
    (started,) = pair.remote.started
    await pair.elect(2)
    store.gate.set()
    await pair.finish_tiering()
    assert started.uuid not in [entry.uuid for entry in pair.remote.entries]
    assert started.uuid in pair.node.metadata.image.delete_queue
    assert pair.remote.end_offset == pair.follower.log.active_base_offset > 0
    assert {entry.leader_epoch for entry in pair.remote.entries} == {pair.follower.leader_epoch}
