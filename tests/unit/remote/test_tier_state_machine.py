"""Tier state machine with a real quorum and store: a follower starts where its leader's local log begins."""

import uuid
from pathlib import Path
from typing import Any

import msgspec
from faulty_store import FaultyStore
from opened_replica import opened_replica
from structlog.testing import capture_logs
from tier_node import START_MS
from tier_pair import PRODUCER, Caller, Pair, catch_up, fetch, send

from tierlog.base.files import OsFiles
from tierlog.broker.replication.core.follower import StartFromTier
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.records import RemoteSegment
from tierlog.protocol.errors import ErrorCode


async def test_empty_replica_starts_with_remote_leader_epochs_and_producer_state(pair: Pair) -> None:
    pair.produce(10)
    catch_up(pair.follower, pair.leader)
    await pair.elect(2)
    await pair.elect(1)
    pair.produce(50)
    catch_up(pair.follower, pair.leader)
    await pair.tier()
    pair.follower.close(clean=False)
    pair.other.directory.rename(pair.other.directory.with_name("lost"))
    pair.follower = pair.other.open(pair.leader)

    assert await pair.begin()
    follower, leader = pair.follower, pair.leader
    assert (follower.log_start_offset, follower.log_end_offset) == (0, leader.local_log_start_offset)
    assert follower.high_watermark == follower.local_log_start_offset == pair.remote.end_offset
    catch_up(follower, leader)
    assert follower.log.epochs.entries == leader.log.epochs.entries
    assert len(follower.log.epochs.entries) == 2
    newest = msgspec.structs.replace(pair.remote, entries=pair.remote.entries[-1:])
    known = await pair.node.fresh_remote_log(newest).history(leader.id, newest.end_offset - 1)
    assert known.leader_epochs[-2:] == ((0, 0), (2, 50)), "the newest bundle alone tells of all epochs"
    await pair.elect(2)
    assert follower.end_offset_for_epoch(0) == (0, 50)
    again = send(follower, pair.sequence - 5)
    assert (again.error, again.base_offset) == (ErrorCode.NONE, leader.log_end_offset - 5)
    assert send(follower, pair.sequence).error == ErrorCode.NONE


async def test_retry_of_a_remote_batch_is_a_duplicate_for_a_replica_started_from_the_tier(pair: Pair) -> None:
    last = pair.produce(60)
    pair.leader.log.roll(START_MS)
    await pair.finish_tiering()
    assert pair.leader.local_log_start_offset == pair.leader.log_end_offset
    assert await pair.begin()
    catch_up(pair.follower, pair.leader)
    await pair.elect(2)
    again = send(pair.follower, pair.sequence - 5)
    assert (again.error, again.base_offset) == (ErrorCode.NONE, last.base_offset)
    assert pair.follower.log_end_offset == pair.leader.log_end_offset


async def test_state_restored_from_the_tier_survives_a_kill(pair: Pair) -> None:
    pair.produce(60)
    await pair.tier()
    assert await pair.begin()
    catch_up(pair.follower, pair.leader)
    ends = pair.follower.local_log_start_offset, pair.follower.log_end_offset
    epochs = pair.follower.log.epochs.entries
    pair.follower.close(clean=False)
    again = pair.other.open(pair.leader)
    assert (again.local_log_start_offset, again.log_end_offset) == ends
    assert again.log_start_offset == 0 and again.high_watermark >= ends[0]
    assert again.log.epochs.entries == epochs == pair.leader.log.epochs.entries
    await pair.elect(2)
    assert send(again, pair.sequence - 5).base_offset == pair.leader.log_end_offset - 5


async def test_start_from_the_tier_does_not_block_the_loop(pair: Pair) -> None:
    pair.produce(60)
    catch_up(pair.follower, pair.leader)
    pair.follower.flush()
    pair.follower.close(clean=False)
    await pair.tier()
    pair.other.directory.rename(pair.other.directory.with_name("lost"))
    pair.follower, done = pair.other.open(pair.leader), pair.other.files.done
    done.clear()
    assert await pair.begin()
    assert [what for what, by_thread in done if not by_thread] == ["create log"]
    assert done[-1] == ("create log", False), "after all that it has to know is durable"
    assert len(done) > 3
    done.clear()
    pair.follower.as_follower.start_at(pair.follower.log_end_offset + 7, START_MS)
    assert done == [("create log", False)]


async def test_truncation_to_the_start_offset_keeps_the_restored_state(pair: Pair) -> None:
    pair.produce(60)
    await pair.tier()
    assert await pair.begin()
    start, epochs = pair.follower.local_log_start_offset, pair.follower.log.epochs.entries
    fetch(pair.follower, pair.leader)
    assert pair.follower.log_end_offset > start
    pair.follower.as_follower.truncate_to(start, START_MS)
    pair.follower.check()
    assert (pair.follower.local_log_start_offset, pair.follower.log_end_offset) == (start, start)
    assert pair.follower.log.epochs.entries == epochs != ()
    assert pair.follower.log.producers.get(PRODUCER).batches[-1].last_offset == start - 1


async def test_second_start_at_the_same_offset_keeps_the_state(pair: Pair) -> None:
    pair.produce(60)
    await pair.tier()
    assert await pair.begin()
    fetch(pair.follower, pair.leader)
    follower, start = pair.follower, pair.follower.local_log_start_offset
    before = follower.log.epochs.entries
    snapshot = follower.log.directory / f"{start:020d}.snapshot"
    follower.as_follower.start_at(start, START_MS, epochs=before, producer_snapshot=snapshot.read_bytes())
    assert follower.log_end_offset == start and follower.log.epochs.entries == before
    assert follower.log.producers.get(PRODUCER).batches[-1].last_offset == start - 1


class LeaderWithEarlierLocalStart(Caller):
    """Its local log starts within a segment, and is dropped before the follower fetches it."""

    def __init__(self, leader: Replica, within: RemoteSegment) -> None:
        super().__init__(leader)
        self.within = within

    async def call(self, *args: Any) -> Any:
        response = await super().call(*args)
        response.topics[0].partitions[0].offset = self.within.base_offset + 5
        return response


async def test_follower_starts_at_the_end_of_the_segment_with_the_leaders_local_log_start(pair: Pair) -> None:
    pair.produce(60)
    pair.leader.log.roll(START_MS)
    await pair.finish_tiering()
    second = pair.remote.entries[1]
    starts = pair.start(LeaderWithEarlierLocalStart(pair.leader, second))
    assert await starts.start(pair.follower, fetch(pair.follower, pair.leader))
    assert pair.follower.log_end_offset == second.end_offset


async def test_follower_whose_start_the_leader_has_dropped_starts_at_the_end_of_the_remote_log(
    pair: Pair,
) -> None:
    """Otherwise a leader that drops segments soon after their upload is always ahead of it."""
    pair.produce(60)
    pair.leader.log.roll(START_MS)
    await pair.finish_tiering()
    starts = pair.start(LeaderWithEarlierLocalStart(pair.leader, pair.remote.entries[1]))
    assert await starts.start(pair.follower, fetch(pair.follower, pair.leader))
    starts = pair.start(LeaderWithEarlierLocalStart(pair.leader, pair.remote.entries[3]))
    assert await starts.start(pair.follower, fetch(pair.follower, pair.leader))
    assert pair.follower.log_end_offset == pair.remote.end_offset


async def test_replica_is_unchanged_while_the_store_is_unavailable(pair: Pair, store: FaultyStore) -> None:
    pair.produce(20)
    catch_up(pair.follower, pair.leader)
    had = pair.follower.log_end_offset
    pair.produce(60)
    await pair.tier()
    store.down = True
    assert not await pair.begin()
    assert (pair.follower.local_log_start_offset, pair.follower.log_end_offset) == (0, had)
    store.down = False
    assert await pair.begin()
    catch_up(pair.follower, pair.leader)


async def test_topic_created_again_is_logged_when_its_replica_cannot_start(
    pair: Pair, store: FaultyStore, tmp_path: Path
) -> None:
    """Although the earlier topic was deleted while its replica could not start."""
    pair.produce(60)
    await pair.tier()
    store.down = True
    again = opened_replica(
        pair.follower.name,
        uuid.UUID(int=8),
        2,
        tmp_path / "again",
        pair.follower.config,
        OsFiles(),
        START_MS,
        clean=True,
        rng=pair.node.rng,
    )
    again.become_follower(1, 0, 0)
    machine = pair.start(Caller(pair.leader))
    with capture_logs() as logged:
        for replica in (pair.follower, pair.follower, again, again):
            assert not await machine.start(replica, StartFromTier(0))
    assert [line["partition"] for line in logged] == ["t-0", "t-0"]
    again.close(clean=True)


async def test_replica_elected_during_the_start_keeps_its_log(pair: Pair) -> None:
    pair.produce(60)
    catch_up(pair.follower, pair.leader)
    await pair.tier()
    had = pair.follower.log_end_offset

    class Deposed(Caller):
        async def call(self, *args: Any) -> Any:
            answer = await super().call(*args)
            answer.topics[0].partitions[0].offset = had + 1
            await pair.elect(2)
            return answer

    assert not await pair.start(Deposed(pair.leader)).start(pair.follower, StartFromTier(0))
    assert pair.follower.is_leader and pair.follower.log_end_offset == had


# -- starting after all that is remote (KIP-1023)


async def test_empty_replica_skips_what_is_remote_although_the_leader_has_it(pair: Pair) -> None:
    await pair.configure("local.retention.ms", "-1")
    pair.produce(60)
    await pair.finish_tiering()
    end = pair.remote.end_offset
    assert pair.leader.local_log_start_offset == 0 < end
    caller = Caller(pair.leader, pending_upload=end)
    assert await pair.start(caller, skip_tiered=True).start(pair.follower, StartFromTier(0))
    follower = pair.follower
    assert (follower.log_start_offset, follower.local_log_start_offset) == (0, end)
    catch_up(follower, pair.leader)
    assert follower.log.epochs.entries == pair.leader.log.epochs.entries
    assert follower.log.producers.encode() == pair.leader.log.producers.encode()
    follower.check()


async def test_replica_with_records_starts_at_the_local_log_start(pair: Pair) -> None:
    """Otherwise it would drop records which it has, and which the leader has, too."""
    pair.produce(1)
    catch_up(pair.follower, pair.leader)
    pair.produce(60)
    await pair.tier()
    assert pair.leader.local_log_start_offset > pair.follower.log_end_offset
    step = fetch(pair.follower, pair.leader)
    assert isinstance(step, StartFromTier)
    assert await pair.start(Caller(pair.leader), skip_tiered=True).start(pair.follower, step)
    assert pair.follower.log_end_offset == pair.leader.local_log_start_offset


async def test_log_that_was_emptied_above_the_log_start_skips_nothing_of_the_leaders_disk(pair: Pair) -> None:
    pair.produce(60)
    await pair.tier()
    pair.produce(60)
    end, local_start = pair.leader.log_end_offset, pair.leader.local_log_start_offset
    pair.follower.as_follower.start_at(5, pair.node.clock.now_ms())
    caller = Caller(pair.leader, pending_upload=end)
    assert await pair.start(caller, skip_tiered=True).start(pair.follower, StartFromTier(0))
    assert pair.follower.log_end_offset == local_start < end


async def test_replica_waits_until_its_leader_knows_what_is_remote(pair: Pair) -> None:
    pair.produce(60)
    await pair.finish_tiering()
    machine = pair.start(Caller(pair.leader, pending_upload=0), skip_tiered=True)
    assert not await machine.start(pair.follower, StartFromTier(0))
    assert pair.follower.log_end_offset == 0
