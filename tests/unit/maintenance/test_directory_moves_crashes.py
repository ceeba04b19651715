"""Interrupted moves between log directories: one log with all acknowledged records remains."""

import asyncio
from pathlib import Path

import pytest
from moving_node import NAME, Node, image_of
from power_loss import Killed
from power_loss_tree import PowerLossTree

from tierlog.base.files import OsFiles


class Unsynced(OsFiles):
    """Skips fsyncs of the real disk."""

    def sync(self, fd: int) -> None:  # type: ignore[override]
        return

    def sync_directory(self, path: Path) -> None:
        return


async def move_until_failure(path: Path, disk: PowerLossTree, limit: int) -> tuple[int, int]:
    """Move a partition while records are appended, until it has moved or the disk is gone. Returns how many
    records were appended, and how many were acknowledged as durable.
    """
    node = await Node(path, disk).start(image_of(flush_messages="3", segment_bytes="1500"))
    node.fill(0, 12)
    await node.commits.flush(node.replica)
    node.replica.raise_log_start(3)
    await node.manager.checkpoints.write(node.directories.all[0])
    disk.left, disk.spent = limit, 0
    count = 12
    node.to("b")
    try:
        while node.moves._moves and not node.failures:
            if count < 25:
                node.append(count)
                count += 1
            await asyncio.sleep(0)
        for _ in range(5):
            await node.commits.flush(node.replica)
    except (Killed, OSError, AssertionError):
        pass
    durable = node.replica.log.recovery_point
    node.moves._stopping = True
    disk.left = 0
    await node.tasks.close()
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)  # type: ignore[arg-type]
    node.directories.release()
    return count, durable


class KilledAtTheSwitch(PowerLossTree):
    """Fails all operations after the future log has been renamed."""

    def rename(self, source: Path, target: Path) -> None:  # type: ignore[override]
        super().rename(source, target)
        if source.name.endswith("-future"):
            self.left = 0


async def test_power_failure_after_recovery_of_a_completed_move_loses_nothing(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in "abc"]
    for root in roots:
        root.mkdir()
    disk = KilledAtTheSwitch(roots)
    count, durable = await move_until_failure(tmp_path, disk, 1_000_000)
    disk.left = None
    node = await Node(tmp_path, disk).start(image_of())
    end = node.replica.log_end_offset
    assert node.places() == ["b/t-0"]
    await node.idle()
    await node.kill()
    disk.lose_power()
    disk.close_held()
    node = await Node(tmp_path, Unsynced()).start(image_of())
    assert node.values() == list(range(3, node.replica.log_end_offset))
    assert durable <= node.replica.log_end_offset <= end <= count
    await node.stop()


@pytest.mark.slow
@pytest.mark.parametrize("power", [True, False])
async def test_one_log_with_all_acknowledged_records_remains_after_any_crash(
    memory_path: Path, power: bool
) -> None:
    outcomes = set[str]()
    limit = 1
    while True:
        path = memory_path / str(limit)
        roots = [path / name for name in "abc"]
        for root in roots:
            root.mkdir(parents=True)
        disk = PowerLossTree(roots)
        count, durable = await move_until_failure(path, disk, limit)
        completed = disk.spent < limit
        if power:
            disk.lose_power()
        disk.close_held()
        node = await Node(path, Unsynced()).start(image_of())
        end = node.replica.log_end_offset
        assert node.values() == list(range(3, end)), limit
        assert durable <= end <= count, limit
        outcomes.add(node.directories.directory_of(NAME).path.name)  # type: ignore[union-attr]
        await node.moved()
        assert node.values() == list(range(3, end)), limit
        node.append(end)
        await node.stop()
        assert len([place for place in node.places() if place.endswith("t-0")]) == 1
        if completed:
            break
        limit += 1 if power else 3
    assert outcomes == {"a", "b"}
    assert limit > 50
