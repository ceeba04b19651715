"""Batches of an idempotent producer behind one that was refused for now, over sockets."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from connection_harness import Client, until
from manual_clock import ManualClock
from produce_node import Node, batch, produce_node, receive, request, results

from tierlog.base.clock import SystemClock
from tierlog.broker.handlers.context import RefusedBatch, Where
from tierlog.broker.handlers.refused_batches import PARTITIONS_MAX, WAIT_MS, note_refusal
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


async def test_later_batches_get_the_error_of_the_refused_one_until_it_is_sent_again(sender: Sender) -> None:
    """After OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka would begin another epoch, and send batches in flight to
    other partitions twice."""
    assert [await sender.send(sequence) for sequence in (4, 6)] == [NOT_LEADER, NOT_LEADER]
    assert [await sender.send(sequence) for sequence in (2, 4, 6)] == [(0, 2), (0, 4), (0, 6)]
    assert await sender.send(10) == GAP


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


async def test_a_batch_that_is_refused_again_is_waited_for_again(sender: Sender, node: Node) -> None:
    node.replica().become_follower(2, 7, 3)
    assert await sender.send(2) == NOT_LEADER
    node.replica().become_leader(8, 4, [1])
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


async def test_a_new_epoch_and_other_producers_and_connections_do_not_wait(
    sender: Sender, node: Node
) -> None:
    assert await Sender(await node.connect()).send(4) == GAP
    assert await sender.send(4, producer_id=8) == (0, 2)
    assert await sender.send(0, epoch=1) == (0, 4)


async def test_batches_wait_over_the_wrap_of_sequences(node: Node) -> None:
    sender = Sender(await node.connect())
    assert await sender.send(2**31 - 4) == (0, 0)
    node.replica().become_follower(2, 5, 1)
    assert await sender.send(2**31 - 2) == NOT_LEADER
    node.replica().become_leader(6, 2, [1])
    assert await sender.send(0) == NOT_LEADER
    assert [await sender.send(sequence) for sequence in (2**31 - 2, 0)] == [(0, 2), (0, 4)]


def test_only_so_many_partitions_are_remembered() -> None:
    refused: dict[Where, RefusedBatch] = {}
    records = batch(producer_id=7, producer_epoch=0, base_sequence=0)
    for number in range(PARTITIONS_MAX + 5):
        note_refusal(refused, ("t", number), records, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    assert list(refused) == [("t", number) for number in range(5, PARTITIONS_MAX + 5)]
