"""Moves to a log directory that hangs during the switch, while flushes of the log are held back."""

import asyncio
from pathlib import Path

import pytest
from connection_harness import until
from moving_node import NAME, Node, image_of

from tierlog.broker.maintenance.directory_move import MAX_SWITCH_TIMEOUTS
from tierlog.broker.maintenance.directory_moves import MoveOutcome


async def hung_at_the_end(path: Path, max_retry_s: float = 0.05) -> Node:
    """A node with a move to `b`, which hangs during the switch for longer than flushes may be held."""
    node = await Node(path, max_hold_s=0.05, max_retry_s=max_retry_s).start(image_of(segment_bytes="100000"))
    node.fill(0, 20)
    node.disk.closes_if = node.replica.log.flusher._lock.locked
    await hang(node)
    return node


async def hang(node: Node) -> None:
    """Start the move and append records until its target hangs with records left to copy."""
    while not node.disk.waits.is_set():
        node.to("b")  # starts it again if it failed because the machine was slow
        node.append(node.replica.log_end_offset)
        await asyncio.sleep(0)


async def test_target_that_hangs_during_the_switch_blocks_no_flush_and_keeps_the_copy(tmp_path: Path) -> None:
    node = await hung_at_the_end(tmp_path)
    (move,) = node.moves.under_way
    await until(lambda: move.switch_timeouts >= 1)
    node.moves.times.max_hold_s = 30
    await node.commits.flush(node.replica)
    log_end_offset = node.append(node.replica.log_end_offset) + 1
    assert node.moves.under_way == [move]
    node.disk.closes_if = lambda: False
    node.disk.gate.set()
    await node.moved()
    assert node.places() == ["b/t-0"]
    assert node.values() == list(range(log_end_offset))
    await node.stop()


async def test_move_fails_after_too_many_switch_timeouts(tmp_path: Path) -> None:
    node = await hung_at_the_end(tmp_path)
    (move,) = node.moves.under_way
    while move.switch_timeouts < MAX_SWITCH_TIMEOUTS:
        if node.disk.waits.is_set():
            await until(lambda: not node.disk.closes_if())  # flushes are no longer held
            node.disk.waits.clear()
            node.disk.gate.set()
        node.append(node.replica.log_end_offset)
        await asyncio.sleep(0)
    await node.commits.flush(node.replica)
    node.disk.closes_if = lambda: False
    node.disk.gate.set()
    await node.moved()
    assert node.places() == ["a/t-0"]
    assert (node.moves.failed_partitions, node.moves.outcomes) == ({NAME}, {MoveOutcome.FAILED: 1})
    node.moves.times.max_hold_s = 30
    node.to("b")
    await node.moved()
    assert node.places() == ["b/t-0"]
    assert (node.moves.failed_partitions, node.moves.outcomes[MoveOutcome.MOVED]) == (set(), 1)
    await node.stop()


@pytest.mark.parametrize("outcome", [MoveOutcome.FAILED, MoveOutcome.STOPPED])
async def test_move_to_a_hanging_target_fails_or_can_be_cancelled(
    tmp_path: Path, outcome: MoveOutcome
) -> None:
    node = await hung_at_the_end(tmp_path)
    if outcome is MoveOutcome.STOPPED:
        node.moves.times.max_hold_s = 30
        node.to("a")
    await until(lambda: not node.moves._moves)
    assert node.moves.outcomes == {outcome: 1}
    assert not node.disk.gate.is_set()
    await node.commits.flush(node.replica)
    node.disk.closes_if = lambda: False
    node.disk.gate.set()
    await node.idle()
    assert node.places() == ["a/t-0"]
    await node.stop()


async def test_waiting_flushes_complete_before_flushes_are_held_again(tmp_path: Path) -> None:
    node = await hung_at_the_end(tmp_path, max_retry_s=60)
    (move,) = node.moves.under_way
    await until(lambda: move.switch_timeouts >= 1)
    node.moves.times.max_hold_s = 30
    node.disk.closes_if = lambda: False
    node.disk.gate.set()
    for _ in range(200):
        node.append(node.replica.log_end_offset)
        await node.commits.flush(node.replica)
    assert node.moves.under_way == [move]
    node.to("a")
    await node.moved()
    assert node.moves.outcomes == {MoveOutcome.STOPPED: 1}
    await node.stop()
