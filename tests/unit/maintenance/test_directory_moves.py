"""Moves between log directories: what is moved, interruptions, and results."""

import asyncio
import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from connection_harness import until
from moving_node import EMPTY, NAME, Disk, Node, image_of
from structlog.testing import capture_logs

from tierlog.base.clock import SystemClock
from tierlog.base.files import Space
from tierlog.base.types import TopicPartition
from tierlog.broker.maintenance.directory_move import FREE_BYTES_KEPT
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode


def unplug_c(path: Path) -> None:
    (path / "c").rename(path / "unplugged")
    (path / "c").write_text("no directory")


def plug_c(path: Path) -> None:
    (path / "c").unlink()
    (path / "unplugged").rename(path / "c")


async def test_log_moves_with_its_state_while_appends_continue(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 30)
    assert node.append(30, producer=(7, 0, 0)) == 30
    await node.commits.flush(node.replica)
    node.fill(31, 5)
    node.replica.raise_log_start(12)
    assert node.replica.log_start_offset == 12
    node.replica.log.cleaned_to = 3
    log = node.replica.log
    before = [segment.base_offset for segment in node.replica.segments]
    node.disk.gate.clear()
    assert node.to("b") is ErrorCode.NONE
    await node.copying()
    node.fill(36, 4)
    (move,) = node.moves.under_way
    assert (move.copied_bytes, move.offset_lag) == (0, 40 - 12)
    assert node.to("b") is ErrorCode.NONE
    assert node.moves.under_way == [move]
    node.disk.gate.set()
    for number in range(40, 60):
        node.append(number)
        await asyncio.sleep(0)
    await node.moved()
    count = node.replica.log_end_offset
    assert node.replica.log is log
    assert log.directory == tmp_path / "b" / "t-0"
    assert node.append(30, producer=(7, 0, 0)) == 30, "a retry is still known"
    assert node.values() == list(range(12, count))
    assert [segment.base_offset for segment in node.replica.segments][: len(before)] == before
    await asyncio.sleep(0)
    await node.kill()
    node = await Node(tmp_path).start(image_of())
    assert node.directories.directory_of(NAME) is node.directories.all[1]
    assert (node.replica.log_start_offset, node.replica.log.cleaned_to) == (12, 3)
    assert node.values() == list(range(12, count))
    assert node.append(30, producer=(7, 0, 0)) == 30
    assert node.replica.log.epochs.entries[0].epoch == 0
    assert node.places() == ["b/t-0"]
    node.append(count)
    await node.stop()
    node = await Node(tmp_path).start(image_of())
    assert node.values() == list(range(12, count + 1))
    await node.stop()


async def test_truncation_deletion_and_rolls_during_the_copy_apply_to_it(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 40)
    node.disk.gate.clear()
    node.to("b")
    await node.copying()
    log = node.replica.log
    now_ms = SystemClock().now_ms()
    node.replica.raise_log_start(14)
    assert log.delete_local_before(14, now_ms) > 0
    node.replica.become_follower(2, 1, 1)
    node.replica.as_follower.truncate_to(29, now_ms)
    node.replica.become_leader(2, 2, [1])
    node.fill(100, 15)
    node.disk.gate.set()
    await node.moved()
    expected = [*range(14, 29), *range(100, 115)]
    assert log.directory == tmp_path / "b" / "t-0"
    assert node.values() == expected
    node.fill(115, 10)
    await node.kill()
    node = await Node(tmp_path).start(image_of(leader_epoch=2))
    assert node.values() == [*expected, *range(115, 125)]
    assert node.replica.log.recovered_dropped_segments == 0
    await node.stop()


async def test_pending_acknowledgement_is_flushed_in_the_new_directory(
    tmp_path: Path,
) -> None:
    node = await Node(tmp_path).start(image_of(flush_messages="1", segment_bytes="10000"))
    node.fill(0, 20)
    node.to("b")
    while node.moves.under_way:
        offset = node.append(node.replica.log_end_offset)
        await until(partial(_is_answered, node, offset + 1))
    await node.moved()
    await node.commits.flush(node.replica)
    assert node.replica.as_leader.acknowledgement(offset + 1, 1) is ErrorCode.NONE
    assert node.replica.log.recovery_point == node.replica.log_end_offset
    assert node.values() == list(range(node.replica.log_end_offset))
    await node.stop()


def _is_answered(node: Node, end_offset: int) -> bool:
    return not node.moves.under_way or node.replica.as_leader.acknowledgement(end_offset, 1) is not None


async def test_new_target_replaces_a_move_and_the_current_directory_cancels_it(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.disk.gate.clear()
    node.to("b")
    await node.copying()
    assert node.to("c") is ErrorCode.NONE
    assert [move.target.path.name for move in node.moves.under_way] == ["c"]
    node.disk.gate.set()
    await node.moved()
    assert node.values() == list(range(20))
    await node.stop()
    assert node.places() == ["c/t-0"]
    node = await Node(tmp_path).start(image_of())
    node.disk.gate.clear()
    node.to("a")
    await node.copying()
    assert node.to("c") is ErrorCode.NONE
    assert node.moves.under_way == []
    node.disk.gate.set()
    await node.moved()
    assert node.places() == ["c/t-0"]
    assert node.values() == list(range(20))
    await node.stop()


async def test_copy_of_a_deleted_topic_is_removed_and_a_recreated_topic_stays(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.disk.gate.clear()
    node.to("b")
    await node.copying()
    node.follow(EMPTY)
    assert node.moves.under_way == []
    node.follow(image_of(2))
    await node.manager.wait_until_created()
    node.disk.gate.set()
    await node.moved()
    node.append(500)
    assert node.values() == [500]
    node.to("b")
    await node.moved()
    assert node.values() == [500]
    await node.stop()
    assert node.places() == ["b/t-0"]


async def test_topic_deleted_just_after_the_switch_leaves_no_files(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.to("b")
    await until(lambda: node.directories.directory_of(NAME) is node.directories.all[1])
    node.follow(EMPTY)
    node.directories.set_preferred(NAME, node.directories.all[0])
    node.follow(image_of(2))
    await node.manager.wait_until_created()
    node.append(500)
    await node.moved()
    node.append(501)
    assert node.values() == [500, 501]
    await node.stop(clean=False)
    node = await Node(tmp_path).start(image_of(2))
    assert node.values() == [500, 501]
    await node.stop()


async def test_broken_target_fails_the_move_but_not_the_partition(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.disk.gate.clear()
    node.to("b")
    await node.copying()
    node.disk.broken.add(tmp_path / "b")
    node.disk.gate.set()
    await node.moved()
    assert [directory.path.name for directory in node.directories.offline] == ["b"]
    node.append(20)
    assert node.to("c") is ErrorCode.KAFKA_STORAGE_ERROR, "a start could not tell where it is"
    assert node.to("b") is ErrorCode.KAFKA_STORAGE_ERROR
    await node.stop()
    node = await Node(tmp_path).start(image_of())
    await node.moved()
    assert node.directories.directory_of(NAME) is node.directories.all[1], "it is back, and so is the move"
    assert node.values() == list(range(21))
    await node.stop()


async def test_broken_source_takes_the_partition_offline(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.disk.gate.clear()
    node.to("b")
    await node.copying()
    node.directories.all[0].fail("broken")
    await asyncio.sleep(0)
    assert node.manager.is_offline(NAME)
    assert node.moves.under_way == []
    assert node.to("b") is ErrorCode.KAFKA_STORAGE_ERROR
    node.disk.gate.set()
    await node.moved()
    await node.stop()
    node = await Node(tmp_path).start(image_of())
    assert node.values() == list(range(20))
    await node.stop()
    assert node.places() == ["a/t-0"]


async def test_interrupted_move_restarts_at_the_next_start(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.disk.gate.clear()
    node.to("b")
    await node.copying()
    node.disk.gate.set()
    await node.stop()
    assert [place[:4] for place in node.places()] == ["a/t-", "b/t-"]
    node = await Node(tmp_path).start(image_of())
    await node.moved()
    assert node.values() == list(range(20))
    assert node.directories.directory_of(NAME) is node.directories.all[1]
    await node.stop()
    assert node.places() == ["b/t-0"]


async def test_invalid_requests_get_kafkas_errors(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    path = str(tmp_path / "b")
    assert node.moves.move(NAME, "b") is ErrorCode.LOG_DIR_NOT_FOUND, "a path is absolute"
    assert node.moves.move(NAME, str(tmp_path / "d")) is ErrorCode.LOG_DIR_NOT_FOUND
    unknown = TopicPartition("u", 0)
    assert node.moves.move(unknown, path) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert node.moves.move(TopicPartition("t", 1), path) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert node.moves.move(TopicPartition("t", -1), path) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    long = TopicPartition("t" * 214, 0)
    assert node.moves.move(long, path) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert node.to("a") is ErrorCode.NONE
    assert node.moves.under_way == []
    await node.stop()


async def test_new_partition_is_created_in_its_preferred_directory(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.directories.claim(1, "c")
    await node.manager.open_all(EMPTY)
    for place in ("b", "c"):
        assert node.to(place) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    node.image = image_of()
    assert node.to("b") is ErrorCode.REPLICA_NOT_AVAILABLE
    node.manager.follow(EMPTY, image_of())
    assert node.directories.directory_of(NAME) is node.directories.all[1]
    await node.stop()


async def test_rate_limits_a_copy_until_it_is_raised(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of(segment_bytes="1000000"))
    node.fill(0, 100)
    key = "replica.alter.log.dirs.io.max.bytes.per.second"

    def rate(value: str) -> ClusterImage:
        record = r.ConfigRecord(scope=r.ConfigScope.BROKER, name="1", key=key, value=value)
        return evolve_all(node.image, [record])

    node.follow(rate("1"))
    node.to("b")
    await until(lambda: node.moves.under_way[0].copied_bytes > 0)
    (move,) = node.moves.under_way
    assert move.copied_bytes < node.replica.log.size_bytes
    node.to("a")
    await node.moved()
    node.follow(rate("100000000"))
    node.to("b")
    await node.moved()
    assert node.values() == list(range(100))
    assert node.places() == ["b/t-0"]
    await node.stop()


class Small(Disk):
    """Each directory has space for one of two logs beyond the space kept free."""

    def __init__(self, log_bytes: int) -> None:
        super().__init__()
        self.log_bytes = log_bytes

    def space(self, path: Path) -> Space:
        total = FREE_BYTES_KEPT + self.log_bytes * 3 // 2
        return Space(total, total - sum(map(_size, path.rglob("*.log"))))


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):  # another thread removes what a move has left
        return path.stat().st_size
    return 0


async def test_move_without_space_waits_for_files_of_an_earlier_one_to_be_removed(tmp_path: Path) -> None:
    node = await Node(tmp_path, Small(20_000)).start(
        image_of(segment_bytes="100000", file_delete_delay_ms="100")
    )
    while node.replica.log.size_bytes < 18_000:
        node.append(node.replica.log_end_offset)
    count = node.replica.log_end_offset
    node.to("b")
    await until(lambda: not node.moves.under_way)
    assert node.replica.log.directory.parent.name == "b"
    node.to("a")  # where its old directory still is
    await node.moved()
    assert node.places() == ["a/t-0"]
    assert node.values() == list(range(count))
    node.disk.log_bytes = 100  # type: ignore[attr-defined]
    node.to("b")
    await node.moved()
    assert node.places() == ["a/t-0"], "nothing more goes there, so it is given up"
    await node.stop()


async def test_index_renamed_during_the_copy_is_copied(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of(index_interval_bytes="1"))
    node.fill(0, 40)
    node.disk.lacks = {
        node.replica.log.rolled_below(40)[0].path(suffix) for suffix in (".index", ".timeindex")
    }
    node.to("b")
    await node.moved()
    assert node.disk.lacks == set()
    for segment in node.replica.log.rolled_below(40):
        segment.unload()
        assert segment.index_entries > 0 and segment.time_entries > 0
    assert node.values() == list(range(40))
    await node.stop()


async def test_missing_file_fails_the_move(tmp_path: Path) -> None:
    node = await Node(tmp_path, retry_s=0).start(image_of())
    node.fill(0, 40)
    node.disk.gone = {node.replica.log.rolled_below(40)[0].path(".index")}
    with capture_logs() as logged:
        node.to("b")
        await node.moved()
    assert ["10 times in a row" in line["error"] for line in logged if "error" in line] == [True]
    assert node.places() == ["a/t-0"]
    node.disk.gone = set()
    node.to("b")
    await node.moved()
    assert node.values() == list(range(40))
    assert node.places() == ["b/t-0"]
    await node.stop()


async def test_pauses_between_attempts_are_limited(tmp_path: Path) -> None:
    node = await Node(tmp_path, retry_s=60, max_retry_s=0.01).start(image_of())
    node.fill(0, 40)
    node.disk.gone = {node.replica.log.rolled_below(40)[0].path(".index")}
    node.to("b")
    async with asyncio.timeout(30):
        await node.moved()
    assert len(node.moves.failed_partitions) == 1
    await node.stop()


async def test_unreported_damage_is_known_after_the_move(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    await node.kill()
    (tmp_path / "a" / "t-0" / "damaged").touch()
    node = await Node(tmp_path).start(image_of())
    node.to("b")
    await node.moved()
    await node.kill()
    node = await Node(tmp_path).start(image_of())
    assert node.directories.directory_of(NAME) is node.directories.all[1]
    assert node.replica.log.was_damaged
    (tmp_path / "b" / "t-0" / "damaged").unlink()
    node.to("c")
    await node.moved()
    assert not (tmp_path / "c" / "t-0" / "damaged").exists()
    await node.stop()


@pytest.mark.parametrize("to", ["a", "c"])
async def test_next_move_removes_leftover_files(tmp_path: Path, to: str) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.disk.stuck = {tmp_path / "a" / "t-0"}
    with capture_logs() as logged:
        node.to("b")
        await node.moved()
    assert [line["event"] == "move.cleanup_failed" for line in logged if "error" in line] == [True]
    marker = f"a/t-0.{node.directories.all[1].directory_id.hex}.moved-away"  # type: ignore[union-attr]
    assert node.places() == ["a/t-0", marker, "b/t-0"]
    node.fill(20, 5)
    node.disk.stuck = set()
    node.directories.all[0].mark_not_full()
    node.to(to)
    await node.moved()
    assert node.places() == [f"{to}/t-0"]
    await node.kill()
    node = await Node(tmp_path).start(image_of())
    assert node.values() == list(range(25))
    await node.stop()


async def test_unfinished_copy_is_kept_while_a_directory_is_offline(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.disk.gate.clear()
    node.to("b")
    await node.copying()
    node.disk.gate.set()
    await node.stop()
    unplug_c(tmp_path)
    node = await Node(tmp_path).start(image_of())
    await node.moved()
    assert [place[:4] for place in node.places()] == ["a/t-", "b/t-"]
    await node.stop()
    plug_c(tmp_path)
    node = await Node(tmp_path).start(image_of())
    await node.moved()
    assert node.places() == ["b/t-0"]
    assert node.values() == list(range(20))
    await node.stop()


@pytest.mark.parametrize("place", ["a", "b"])
async def test_partition_found_twice_is_in_the_directory_without_a_move_marker(
    tmp_path: Path, place: str
) -> None:
    node = await Node(tmp_path).start(image_of(), place)
    node.fill(0, 20)
    await node.stop()
    other = "b" if place == "a" else "a"
    shutil.copytree(tmp_path / place / "t-0", tmp_path / other / "t-0")
    (tmp_path / other / "t-0.moved-away").touch()
    unplug_c(tmp_path)
    node = await Node(tmp_path).start(image_of())
    assert node.values() == list(range(20)), "whatever is offline"
    assert node.directories.directory_of(NAME) is node.directories.all["abc".index(place)]
    await node.stop()
    assert node.places() == [f"{place}/t-0"]


@pytest.mark.parametrize(("marker", "target", "opens"), [
    ("t-0.{}.moved-away", 1, True),
    ("t-0.{}.moved-away", 2, False),
    ("t-0.moved-away", 1, False),
])  # fmt: skip
async def test_moving_partition_is_refused_while_the_target_may_be_offline(
    tmp_path: Path, marker: str, target: int, opens: bool
) -> None:
    """The last marker has no target id, as in earlier versions."""
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    directory_id = node.directories.all[target].directory_id
    assert directory_id is not None
    await node.stop()
    (tmp_path / "a" / marker.format(directory_id.hex)).touch()
    unplug_c(tmp_path)
    node = await Node(tmp_path).start(image_of())
    assert node.manager.is_offline(NAME) is not opens
    assert not opens or node.values() == list(range(20))
    await node.stop()
    plug_c(tmp_path)
    node = await Node(tmp_path).start(image_of())
    assert node.values() == list(range(20))
    await node.stop()
    assert node.places() == ["a/t-0"]


@pytest.mark.parametrize("is_alone", [True, False])
async def test_partition_that_may_have_moved_to_a_removed_directory_is_refused(
    tmp_path: Path, is_alone: bool
) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    await node.stop()
    marker = tmp_path / "a" / f"t-0.{uuid.UUID(int=7).hex}.moved-away"
    marker.touch()
    reported = list[list[tuple[uuid.UUID, int]]]()

    async def report_empty(empty: Sequence[tuple[uuid.UUID, int]]) -> None:
        reported.append(list(empty))

    node = Node(tmp_path)
    if is_alone:
        await node.start(image_of())
        assert "not in log.dirs" in node.manager._offline[NAME]
        await node.stop()
        marker.unlink()
        node = await Node(tmp_path).start(image_of())
        assert node.values() == list(range(20)), "the operator has said so"
    else:
        await node.start(image_of(), report_empty=report_empty)
        assert reported == [[(uuid.UUID(int=1), 0)]]
        assert node.values() == []
        assert len(list(tmp_path.glob("?/t-0.*-stray"))) == 1
        assert not marker.exists()
    await node.stop()


async def test_partition_found_twice_is_refused_if_it_moved_to_a_third_directory(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    third = node.directories.all[2].directory_id
    assert third is not None
    await node.stop()
    shutil.copytree(tmp_path / "a" / "t-0", tmp_path / "b" / "t-0")
    (tmp_path / "a" / f"t-0.{third.hex}.moved-away").touch()
    node = await Node(tmp_path).start(image_of())
    assert "found twice" in node.manager._offline[NAME]
    await node.stop()
    assert [place for place in node.places() if place.endswith("t-0")] == ["a/t-0", "b/t-0"]


async def test_no_move_starts_while_a_directory_is_offline(tmp_path: Path) -> None:
    """It may hold the log from before an earlier move, and the next start would open that."""
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.to("b")
    node.directories.all[2].fail("broken")
    await node.moved()
    assert node.places() == ["a/t-0"]
    await node.stop()


async def test_refused_request_leaves_the_running_move(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.disk.gate.clear()
    node.to("b")
    await node.copying()
    running = node.moves.under_way
    node.directories.all[1].failure, kept = "broken", node.directories.all[1].failure
    assert node.to("c") is ErrorCode.KAFKA_STORAGE_ERROR
    node.directories.all[1].failure = kept
    assert len(running) == 1 and node.moves.under_way == running
    node.disk.gate.set()
    await node.moved()
    assert node.places() == ["b/t-0"]
    await node.stop()
