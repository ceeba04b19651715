"""remote.log.copy.max.lag.ms with a real quorum, replicas and store: segments are rolled and uploaded in
time, and partitions that are late are reported.
"""

import asyncio
from pathlib import Path

from connection_harness import until
from faulty_store import FaultyStore
from loop_steps import LoopSteps
from structlog.testing import capture_logs
from tier_node import START_MS, TierNode, produce
from tier_pair import catch_up, opened_pair

from tierlog.broker.remote.copy_lag import CHECKS_PER_ROLL, CHECKS_PER_TURN, FOUND_SHARE
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.tiering.memory_store import MemoryStore

LAG_MS = 3_600_000
LIMITED = {"remote_log_copy_max_lag_ms": str(LAG_MS)}
LATE, IN_TIME = "upload.late", "upload.in_time"
ROLLS = CHECKS_PER_TURN // CHECKS_PER_ROLL
MARGIN_MS = 60_000
"""More than the time that a test takes."""


async def check_and_upload(node: TierNode) -> None:
    await node.log_manager.lags.check()
    await node.finish_tiering()
    await node.log_manager.lags.check()


async def test_active_segment_is_uploaded_after_half_of_the_lag(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **LIMITED)
        node.clock.pass_time(10 * LAG_MS)  # an empty log has no age
        produce(replica, 3)
        node.clock.pass_time(LAG_MS // 2 - MARGIN_MS)
        await check_and_upload(node)
        assert node.remote(replica).end_offset is None
        assert (await node.log_manager.status("t"))[0].copy_lag_ms >= LAG_MS // 2 - MARGIN_MS
        node.clock.pass_time(MARGIN_MS)
        await check_and_upload(node)
        assert node.remote(replica).end_offset == replica.log_end_offset == 15
        assert (await node.log_manager.status("t"))[0].copy_lag_ms == 0


async def test_idle_partition_makes_no_more_segments(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **LIMITED)
        produce(replica, 3)
        for _ in range(3):
            node.clock.pass_time(LAG_MS)
            await check_and_upload(node)
        assert len(node.remote(replica).entries) == 1
        assert [segment.base_offset for segment in replica.segments] == [15]


async def test_age_is_that_of_the_oldest_record_which_is_not_uploaded(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **LIMITED)
        produce(replica, 40)  # several segments
        assert len(replica.segments) > 2
        await node.finish_tiering()
        end = node.remote(replica).end_offset
        node.clock.pass_time(LAG_MS // 2 - MARGIN_MS)
        produce(replica, 1)
        assert replica.log.active_base_offset == end, "which it was appended to"
        node.clock.pass_time(MARGIN_MS)
        await check_and_upload(node)
        assert node.remote(replica).end_offset == replica.log_end_offset
        produce(replica, 1)
        node.clock.pass_time(LAG_MS // 2 - MARGIN_MS)
        await check_and_upload(node)
        assert node.remote(replica).end_offset < replica.log_end_offset


async def test_wall_clock_does_not_count(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **LIMITED)
        produce(replica, 3)
        node.clock.wall_ms += 10 * LAG_MS
        await check_and_upload(node)
        assert node.remote(replica).end_offset is None


async def test_without_the_setting_segments_are_not_rolled(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        produce(replica, 3)
        node.clock.pass_time(10 * LAG_MS)
        await check_and_upload(node)
        assert node.remote(replica).end_offset is None
        status = (await node.log_manager.status("t"))[0]
        assert (status.copy_lag_ms, status.is_behind) == (None, False)


async def test_setting_that_is_switched_on_uploads_old_records_soon(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        produce(replica, 3)
        await node.alter("t", {"remote.log.copy.max.lag.ms": str(LAG_MS)})
        node.clock.pass_time(LAG_MS // FOUND_SHARE)
        await check_and_upload(node)
        assert node.remote(replica).end_offset == 15


async def test_stopped_copying_is_not_late(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **LIMITED, remote_log_copy_disable="true")
        produce(replica, 3)
        node.clock.pass_time(2 * LAG_MS)
        await check_and_upload(node)
        assert [segment.base_offset for segment in replica.segments] == [0]
        assert not node.log_manager.lags.behind


async def test_elections_do_not_make_records_younger(tmp_path: Path) -> None:
    async with opened_pair(tmp_path, store := FaultyStore(MemoryStore()), **LIMITED) as pair:
        pair.produce(3)
        catch_up(pair.follower, pair.leader)
        store.down = True
        for leader in (2, 1, 2):
            pair.node.clock.pass_time(LAG_MS // 2)
            await pair.elect(leader)
        lags = pair.other.log_manager.lags
        assert (lags.age_ms(pair.follower.id) or 0) >= 3 * (LAG_MS // 2)
        await lags.check()
        assert pair.follower.log.active_base_offset == 15, "rolled at once, since half of the time is over"
        assert lags.behind == [pair.follower]
        store.down = False


async def test_false_timestamps_neither_hide_records_nor_make_them_late(tmp_path: Path) -> None:
    for number, timestamp in enumerate((1, START_MS + LAG_MS // 2)):
        directory = tmp_path / str(number)
        async with opened_pair(directory, store := FaultyStore(MemoryStore()), **LIMITED) as pair:
            pair.node.clock.wall_ms = START_MS
            false = encode_batch([NewRecord(timestamp, b"key", b"value", ())])
            assert pair.leader.as_leader.append(memoryview(false), START_MS).error == ErrorCode.NONE
            catch_up(pair.follower, pair.leader)
            store.down = True
            await pair.elect(2)
            lags, replica = pair.other.log_manager.lags, pair.follower
            age_ms = lags.age_ms(replica.id) or 0
            assert age_ms < LAG_MS // 2 + MARGIN_MS, "its time of the append is known"
            pair.node.clock.pass_time(LAG_MS // 2)
            await pair.elect(1)
            await pair.elect(2)
            assert (lags.age_ms(replica.id) or 0) >= LAG_MS // 2
            await lags.check()
            assert not lags.behind
            store.down = False


async def test_age_after_a_restart_is_that_of_the_timestamps_the_broker_has_set(tmp_path: Path) -> None:
    for number, (kind, least, most) in enumerate(
        (("LogAppendTime", 2 * LAG_MS, 3 * LAG_MS), ("CreateTime", LAG_MS // 2, LAG_MS - 1))
    ):
        directory = tmp_path / str(number)
        settings = {**LIMITED, "message_timestamp_type": kind}
        async with TierNode(directory, MemoryStore()) as node:
            replica = await node.create("t", **settings)
            stamped = encode_batch([NewRecord(node.clock.now_ms(), b"key", b"value", ())])
            appended = replica.as_leader.append(memoryview(stamped), node.clock.now_ms())
            assert appended.error == ErrorCode.NONE
        node = TierNode(directory, MemoryStore())
        node.clock.wall_ms += 2 * LAG_MS + MARGIN_MS
        async with node:
            await until(lambda lags=node.log_manager.lags: bool(lags.ages_ms()))
            [age_ms] = node.log_manager.lags.ages_ms().values()
            assert least <= age_ms <= most


async def test_many_partitions_are_checked_in_many_turns(tmp_path: Path) -> None:
    most = []
    for partitions in (2 * CHECKS_PER_TURN, 5 * CHECKS_PER_TURN):
        async with TierNode(tmp_path / str(partitions), MemoryStore()) as node:
            await node.create("t", partitions, **LIMITED)
            with LoopSteps("broker/remote/copy_lag.py") as steps:
                await node.log_manager.lags.check()
            most.append(steps.most)
    assert most[1] < most[0] * 1.2


async def test_new_leader_uploads_soon_what_it_finds(tmp_path: Path) -> None:
    async with opened_pair(tmp_path, FaultyStore(MemoryStore()), **LIMITED) as pair:
        pair.produce(3)
        catch_up(pair.follower, pair.leader)
        await pair.elect(2)
        pair.node.clock.pass_time(LAG_MS // FOUND_SHARE)
        await pair.other.log_manager.lags.check()
        await pair.finish_tiering()
        assert pair.remote.end_offset == pair.follower.log_end_offset == 15


async def test_only_committed_records_are_uploaded(tmp_path: Path) -> None:
    async with opened_pair(tmp_path, FaultyStore(MemoryStore()), **LIMITED) as pair:
        pair.produce(1)
        catch_up(pair.follower, pair.leader)
        await pair.elect(2)
        await pair.elect(1)  # now both are in sync
        await pair.fence(2, False)
        pair.leader.become_leader(
            pair.leader.leader_epoch, pair.leader.partition_epoch + 1, in_sync=(1, 2), replicas=(1, 2)
        )
        pair.produce(3)
        end, committed = pair.leader.log_end_offset, pair.leader.high_watermark
        assert committed < end
        pair.node.clock.pass_time(2 * LAG_MS)
        await check_and_upload(pair.node)
        assert (pair.remote.end_offset or 0) <= committed
        assert pair.node.log_manager.lags.behind == [pair.leader]
        catch_up(pair.follower, pair.leader)
        await check_and_upload(pair.node)
        await check_and_upload(pair.node)
        assert pair.remote.end_offset == end
        assert not pair.node.log_manager.lags.behind


async def test_late_partition_is_reported_once_and_makes_no_more_segments(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t", **LIMITED)
        store.down = True
        with capture_logs() as logs:
            for _ in range(5):
                produce(replica, 1)
                node.clock.pass_time(LAG_MS)
                await node.log_manager.lags.check()
        assert len(replica.segments) == 2, "the first waits for the store"
        assert [line["partition"] for line in logs if line["event"] == LATE] == ["t-0"]
        status = (await node.log_manager.status("t"))[0]
        assert status.is_behind and status.copy_lag_ms >= 5 * LAG_MS
        store.down = False
        with capture_logs() as logs:
            while node.log_manager.lags.behind:
                await check_and_upload(node)
        assert [line["event"] for line in logs if line["event"] in (LATE, IN_TIME)] == [IN_TIME]
        assert node.remote(replica).end_offset == replica.log_end_offset
        assert len(node.remote(replica).entries) == 2


async def test_failed_roll_is_logged_once_and_retried(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **LIMITED)
        produce(replica, 1)
        node.clock.pass_time(LAG_MS)
        (snapshot := replica.log._snapshot_path(5)).mkdir()  # the file cannot be written
        with capture_logs() as logs:
            await node.log_manager.lags.check()
            await node.log_manager.lags.check()
        assert [line["event"] for line in logs if "roll" in line["event"]] == ["tiering.roll_failed"]
        snapshot.rmdir()
        await check_and_upload(node)
        assert node.remote(replica).end_offset == 5


async def test_found_records_of_many_partitions_are_not_rolled_in_one_turn(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replicas = [await node.create(f"t{number}") for number in range(6 * ROLLS)]
        node.clock.wall_ms = START_MS
        for replica in replicas:
            produce(replica, 1)
            await node.alter(replica.name.topic, {"remote.log.copy.max.lag.ms": str(LAG_MS)})
        lags = node.log_manager.lags
        node.clock.pass_time(LAG_MS // FOUND_SHARE // 2)
        await lags.check()
        rolled = [replica for replica in replicas if replica.log.active_base_offset]
        assert 0 < len(rolled) < len(replicas), "their times are drawn"
        node.clock.pass_time(LAG_MS // FOUND_SHARE)
        checking = node.tasks.spawn("check", lags.check())
        await asyncio.sleep(0)
        more = [replica for replica in replicas if replica.log.active_base_offset]
        assert len(rolled) < len(more) < len(replicas), "requests run in between"
        await checking
        assert all(replica.log.active_base_offset for replica in replicas)
