"""Batches of an idempotent producer that lack an earlier one, over sockets."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from connection_harness import Client, until
from manual_clock import ManualClock
from produce_node import Node, batch, produce_node, receive, request, results

from tierlog.base.clock import SystemClock
from tierlog.broker.handlers.sequence_gaps import PARTITIONS_MAX, WAIT_MS, Refusals
from tierlog.broker.storage.core.record_validation import RECORDS_PER_TURN
from tierlog.protocol.api import PRODUCE_KEY
from tierlog.protocol.errors import ErrorCode
from tierlog.records.codecs import Codec

NOT_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
GAP = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


@pytest.fixture
def clock() -> ManualClock:
    clock = ManualClock()
    clock.now = SystemClock().now_ms()  # the records have the time of now
    return clock


@pytest.fixture
async def node(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Node]:
    async with produce_node(tmp_path, clock) as running:
        running.threads.release()
        yield running


class Sender:
    """One producer id on one connection; batches of two records."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def send(self, sequence: int, epoch: int = 0, **changed: Any) -> tuple[int, int]:
        fields = {"producer_id": 7, "producer_epoch": epoch, "base_sequence": sequence, **changed}
        answer = await self.client.ask(PRODUCE_KEY, 9, request(batch(2, **fields)))
        return results(answer)[0]


@pytest.fixture
async def sender(node: Node) -> Sender:
    """Batch 0 is appended; then the node lost the leadership, and refused batch 2."""
    sender = Sender(await node.connect())
    assert await sender.send(0) == (0, 0)
    node.replica().become_follower(2, 5, 1)
    assert await sender.send(2) == NOT_LEADER
    node.replica().become_leader(6, 2, [1])
    return sender


async def test_later_batches_are_refused_until_the_refused_one_is_sent_again(sender: Sender) -> None:
    """After OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka would begin another epoch, and send batches in flight to
    other partitions twice."""
    assert [await sender.send(sequence) for sequence in (4, 6)] == [NOT_LEADER, NOT_LEADER]
    assert [await sender.send(sequence) for sequence in (2, 4, 6)] == [(0, 2), (0, 4), (0, 6)]


async def test_a_batch_waits_for_one_that_was_lost_with_the_former_leader(
    node: Node, clock: ManualClock
) -> None:
    """The client still waits for its response while it sends the next one here."""
    sender = Sender(await node.connect())
    assert await sender.send(0) == (0, 0)
    node.replica().become_leader(1, 1, [1], now_ms=clock.monotonic_ms())
    assert await sender.send(4) == NOT_LEADER
    assert await sender.send(4, producer_id=8) == NOT_LEADER, "the partition does not know it"
    assert [await sender.send(sequence) for sequence in (2, 4)] == [(0, 2), (0, 4)]
    assert await sender.send(8) == NOT_LEADER
    clock.now += WAIT_MS
    assert await sender.send(8) == GAP
    assert await sender.send(4, producer_id=8) == (0, 6), "its state may have expired"


async def test_a_gap_in_the_first_leader_epoch_is_an_error_at_once(node: Node) -> None:
    sender = Sender(await node.connect())
    assert await sender.send(0) == (0, 0)
    assert await sender.send(4) == GAP


async def test_a_producer_that_the_partition_does_not_know_keeps_its_order(node: Node) -> None:
    """Without state any sequence is accepted: then the first batch could never be appended."""
    sender = Sender(await node.connect())
    node.replica().become_follower(2, 5, 1)
    assert await sender.send(0) == NOT_LEADER
    node.replica().become_leader(6, 2, [1])
    assert await sender.send(2) == NOT_LEADER
    assert [await sender.send(sequence) for sequence in (0, 2)] == [(0, 0), (0, 2)]


async def test_a_later_refusal_does_not_replace_an_earlier_one(sender: Sender, node: Node) -> None:
    node.replica().become_follower(2, 7, 3)
    assert await sender.send(4) == NOT_LEADER
    node.replica().become_leader(8, 4, [1])
    assert await sender.send(4) == NOT_LEADER
    assert [await sender.send(sequence) for sequence in (2, 4)] == [(0, 2), (0, 4)]


async def test_a_batch_that_is_refused_again_is_waited_for_again(
    sender: Sender, node: Node, clock: ManualClock
) -> None:
    clock.now += WAIT_MS - 1
    node.replica().become_follower(2, 7, 3)
    assert await sender.send(2) == NOT_LEADER
    node.replica().become_leader(8, 4, [1])
    clock.now += 1
    assert await sender.send(4) == NOT_LEADER


async def test_a_batch_that_was_refused_after_its_validation_is_waited_for(node: Node) -> None:
    client = await node.connect()
    node.threads.held = []
    large = batch(RECORDS_PER_TURN + 1, Codec.ZSTD, producer_id=7, producer_epoch=0, base_sequence=0)
    client.send(PRODUCE_KEY, 9, request(large))
    await until(lambda: node.validator.pending_batches == 1)
    node.replica().become_follower(2, 5, 1)
    node.threads.release()
    assert await receive(client) == [NOT_LEADER]
    node.replica().become_leader(6, 2, [1])
    assert await Sender(client).send(RECORDS_PER_TURN + 1) == NOT_LEADER


async def test_a_batch_that_never_comes_again_is_waited_for_some_seconds(
    sender: Sender, clock: ManualClock
) -> None:
    clock.now += WAIT_MS - 1
    assert await sender.send(4) == NOT_LEADER
    clock.now += 1
    assert await sender.send(4) == GAP


async def test_a_gap_on_another_connection_waits_too(sender: Sender, node: Node) -> None:
    other = Sender(await node.connect())
    assert await other.send(4) == NOT_LEADER
    assert await sender.send(2) == (0, 2)
    assert await other.send(4) == (0, 4)


async def test_a_refused_batch_that_came_another_way_is_not_waited_for(sender: Sender, node: Node) -> None:
    """The client may send it to another leader before this broker leads again."""
    assert await Sender(await node.connect()).send(2) == (0, 2)
    assert await sender.send(4) == (0, 4)


async def test_batches_without_a_gap_do_not_wait(sender: Sender) -> None:
    assert await sender.send(0, producer_id=8) == (0, 2)
    assert await sender.send(0, epoch=1) == (0, 4)
    assert await sender.send(-1, producer_id=-1, producer_epoch=-1) == (0, 6)


async def test_batches_wait_over_the_wrap_of_sequences(node: Node) -> None:
    sender = Sender(await node.connect())
    assert await sender.send(2**31 - 4) == (0, 0)
    node.replica().become_follower(2, 5, 1)
    assert await sender.send(2**31 - 2) == NOT_LEADER
    node.replica().become_leader(6, 2, [1])
    assert await sender.send(0) == NOT_LEADER
    assert [await sender.send(sequence) for sequence in (2**31 - 2, 0)] == [(0, 2), (0, 4)]


async def test_a_batch_waits_for_one_that_was_refused_for_lack_of_space(node: Node) -> None:
    sender = Sender(await node.connect())
    assert await sender.send(0) == (0, 0)
    log_dir = node.log_directories.all[0]
    log_dir.mark_full()
    assert await sender.send(2) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert await sender.send(4) == NOT_LEADER
    log_dir.mark_not_full()
    assert await sender.send(4) == NOT_LEADER
    assert [await sender.send(sequence) for sequence in (2, 4)] == [(0, 2), (0, 4)]


async def test_only_so_many_partitions_are_remembered(node: Node) -> None:
    refusals, replica, gap = (
        Refusals(),
        node.replica(),
        batch(producer_id=7, producer_epoch=0, base_sequence=4),
    )
    for number in range(PARTITIONS_MAX + 5):
        refusals.note(("t", number), ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    refusals.note(("not a topic", 5), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)
    waits = [refusals.must_wait(("t", number), replica, gap, 0) for number in range(10)]
    assert waits == [False] * 5 + [True] * 5
    assert not refusals.must_wait(("not a topic", 5), replica, gap, 0)
