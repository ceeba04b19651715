"""Produce with large batches, over sockets: their order, other connections, and checks at append time."""

import gc
import random
import sys
import tracemalloc
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cramjam
import pytest
from connection_harness import turns, until
from produce_node import (
    ALL,
    LEADER,
    NONE,
    TOPIC,
    Node,
    batch,
    produce_node,
    receive,
    request,
    results,
)

from tierlog.base.clock import SystemClock
from tierlog.broker.handlers.validated_produce import UnvalidatedBatch
from tierlog.broker.storage.core.record_validation import BYTES_PER_TURN, RECORDS_PER_TURN
from tierlog.config.topic import TopicConfig
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.protocol.api import PRODUCE_KEY
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import produce
from tierlog.records.batch import HEADER_SIZE, read_header
from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord, encode_batch, with_section

MANY = RECORDS_PER_TURN + 1


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with produce_node(tmp_path) as running:
        yield running


@pytest.mark.parametrize("acks", [LEADER, ALL])
async def test_batches_of_one_connection_are_appended_in_order(node: Node, acks: int) -> None:
    client, other = await node.connect(), await node.connect()
    counts = [2 * MANY, 3, MANY, 1, 4 * MANY, 2]
    codecs = [Codec.ZSTD, Codec.NONE, Codec.LZ4, Codec.GZIP, Codec.SNAPPY, Codec.NONE]
    sequence = 0
    for count, codec in zip(counts, codecs, strict=True):
        fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        client.send(PRODUCE_KEY, 9, request(batch(count, codec, **fields), acks=acks))
        sequence += count
    await until(lambda: node.validator.pending_batches == 1)
    assert results(await other.ask(PRODUCE_KEY, 9, request(batch(2), partition=1))) == [(0, 0)]
    assert results(await other.ask(PRODUCE_KEY, 9, request(batch(5)))) == [(0, 0)], "others do not wait"
    assert node.replica().log_end_offset == 5
    node.threads.release()
    assert [await receive(client) for _ in counts] == [
        [(0, 5 + sum(counts[:number]))] for number in range(len(counts))
    ]
    await until(lambda: node.is_idle)


async def test_other_partitions_of_a_request_do_not_wait(node: Node) -> None:
    client = await node.connect()
    client.send(PRODUCE_KEY, 9, request(batch(MANY, Codec.LZ4), batch(3)))
    await until(lambda: node.replica(1).log_end_offset == 3)
    assert node.replica().log_end_offset == 0
    node.threads.release()
    assert await receive(client) == [(0, 0), (0, 0)]
    assert node.replica().log_end_offset == MANY


async def test_a_retry_of_a_large_batch_is_not_validated(node: Node) -> None:
    client = await node.connect()
    large = request(batch(MANY, Codec.LZ4, producer_id=7, producer_epoch=0, base_sequence=0))
    node.threads.release()
    assert results(await client.ask(PRODUCE_KEY, 9, large)) == [(0, 0)]
    node.threads.held = []
    assert results(await client.ask(PRODUCE_KEY, 9, large)) == [(0, 0)]
    stale = request(batch(MANY, Codec.LZ4, producer_id=7, producer_epoch=0, base_sequence=3 * MANY))
    assert results(await client.ask(PRODUCE_KEY, 9, stale)) == [(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
    assert (node.threads.held, node.replica().log_end_offset) == ([], MANY)


async def test_former_leader_does_not_append_after_validation(node: Node) -> None:
    client = await node.connect()
    client.send(PRODUCE_KEY, 9, request(batch(MANY, Codec.ZSTD)))
    client.send(PRODUCE_KEY, 9, request(batch(1)))
    await until(lambda: node.validator.pending_batches == 1)
    node.replica().become_follower(2, 5, 1)
    node.threads.release()
    assert await receive(client) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    assert await receive(client) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    assert node.replica().log_end_offset == 0


async def test_batch_is_appended_with_the_new_leader_epoch(node: Node) -> None:
    client = await node.connect()
    client.send(PRODUCE_KEY, 9, request(batch(MANY, Codec.ZSTD)))
    await until(lambda: node.validator.pending_batches == 1)
    node.replica().become_follower(2, 5, 1)
    node.replica().become_leader(6, 2, [1])
    node.threads.release()
    assert await receive(client) == [(0, 0)]
    assert node.replica().log.epochs.epoch_of(0) == 6


async def test_topic_deleted_during_validation(node: Node) -> None:
    client = await node.connect()
    client.send(PRODUCE_KEY, 9, request(batch(MANY, Codec.ZSTD)))
    await until(lambda: node.validator.pending_batches == 1)
    old = node.metadata.image
    node.metadata.image = evolve_all(old, [r.TopicDeleted(topic_id=TOPIC, at_ms=0)])
    node.replicas.follow(old, node.metadata.image)
    await until(lambda: node.replicas.get("t", 0) is None)
    node.threads.release()
    assert await receive(client) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


async def test_settings_changed_during_validation_apply(node: Node) -> None:
    client = await node.connect()
    client.send(PRODUCE_KEY, 9, request(batch(MANY, Codec.LZ4, key=None)))
    await until(lambda: node.validator.pending_batches == 1)
    node.replica().update_config(TopicConfig(cleanup_policy=("compact",)))
    node.threads.release()
    _, answer = await client.receive(PRODUCE_KEY, 9)
    assert results(answer) == [(ErrorCode.INVALID_RECORD, -1)]
    assert len(answer.responses[0].partition_responses[0].record_errors) == 100
    assert node.replica().log_end_offset == 0


async def test_produce_with_acks_0_of_a_closed_client_is_appended(node: Node) -> None:
    client, other = await node.connect(), await node.connect()
    client.send(PRODUCE_KEY, 9, request(batch(MANY, Codec.LZ4), acks=NONE))
    client.send(PRODUCE_KEY, 9, request(batch(4), acks=NONE))
    await client.writer.drain()
    await until(lambda: node.validator.pending_batches == 1)
    client.close()
    await turns()
    node.threads.release()
    await until(lambda: node.listener.connections == 1)
    assert results(await other.ask(PRODUCE_KEY, 9, request(batch()))) == [(0, MANY + 4)]
    await until(lambda: node.is_idle)


async def test_transactional_batch_needs_its_id_behind_a_large_batch_too(node: Node) -> None:
    client = await node.connect()
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    both = request(batch(MANY, Codec.LZ4), batch(**fields))
    both.topic_data[0].partition_data[1].index = 0
    node.threads.release()
    refused = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)
    assert results(await client.ask(PRODUCE_KEY, 9, both)) == [(0, 0), refused]
    assert node.replica().log_end_offset == MANY


async def test_invalid_batch_with_acks_0_closes_the_connection(node: Node) -> None:
    client = await node.connect()
    node.threads.release()
    damaged = batch(MANY, Codec.LZ4, offset_deltas=[0, 0, *range(2, MANY)])
    client.send(PRODUCE_KEY, 9, request(damaged, acks=NONE))
    assert await client.expect_close() == b""
    assert node.replica().log_end_offset == 0


async def test_no_request_is_handled_after_an_invalid_batch_with_acks_0(node: Node) -> None:
    """The client notices only the closed connection, so its next request must not be executed."""
    client = await node.connect()
    damaged = batch(MANY, Codec.LZ4, offset_deltas=[0, 0, *range(2, MANY)])
    client.send(PRODUCE_KEY, 9, request(damaged, acks=NONE))
    client.send(PRODUCE_KEY, 9, request(batch(1), acks=NONE))
    await until(lambda: node.validator.pending_batches == 1)
    node.threads.release()
    assert await client.expect_close() == b""
    assert node.replica().log_end_offset == 0
    await until(lambda: node.is_idle)


async def test_batches_of_a_repeated_partition_are_appended_in_order(node: Node) -> None:
    client = await node.connect()
    both = request(batch(2), batch(MANY, Codec.LZ4), batch(3), batch(2 * MANY, Codec.ZSTD), batch(4))
    for data, partition in zip(both.topic_data[0].partition_data, (0, 0, 0, 0, 1), strict=True):
        data.index = partition
    client.send(PRODUCE_KEY, 9, both)
    await until(lambda: node.replica(1).log_end_offset == 4)
    node.threads.release()
    assert await receive(client) == [(0, 0), (0, 2), (0, 2 + MANY), (0, 5 + MANY), (0, 0)]
    await until(lambda: node.is_idle)


async def test_work_grows_linearly_with_the_partitions_of_a_request(node: Node) -> None:
    client = await node.connect()
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += 1

    async def work_of(entries: int) -> int:
        """A large batch, many more for its partition, which wait for it, and as many for another one."""
        nonlocal calls
        data = [produce.PartitionProduceData(index=0, records=batch(MANY, Codec.LZ4))]
        for index in (0, 1):
            data += [produce.PartitionProduceData(index=index, records=b"") for _ in range(entries)]
        topic = produce.TopicProduceData(name="t", partition_data=data)
        requested = produce.ProduceRequest(acks=LEADER, timeout_ms=60_000, topic_data=[topic])
        node.threads.held, calls = None, 0
        sys.setprofile(count)
        try:
            client.send(PRODUCE_KEY, 9, requested)
            assert len(await receive(client)) == 2 * entries + 1
        finally:
            sys.setprofile(None)
        return calls

    await work_of(1)
    assert await work_of(1_000) < 3 * await work_of(500)


def incompressible(size: int) -> bytes:
    values = random.Random(1).randbytes(size)
    parts = [NewRecord(0, None, values[at : at + 1000]) for at in range(0, size, 1000)]
    return bytes(encode_batch(parts, codec=Codec.LZ4))


async def test_a_small_batch_is_copied_out_of_the_receive_buffer(node: Node) -> None:
    client, other = await node.connect(), await node.connect()
    buffers, memory_pool = node.listener.buffers, node.listener.memory_pool
    shared, small = buffers.shared, incompressible(200_000)
    client.send(PRODUCE_KEY, 9, request(small))
    await until(lambda: node.validator.pending_batches == 1)
    assert (buffers.shared is shared, memory_pool.used) == (True, len(small))
    assert results(await other.ask(PRODUCE_KEY, 9, request(incompressible(60_000), partition=1))) == [(0, 0)]
    node.threads.release()
    assert await receive(client) == [(0, 0)]
    records = node.replica().read(0, 1 << 20).slice
    assert records is not None
    (part,) = records.parts
    assert part.read()[61:] == small[61:]  # type: ignore[union-attr]
    await until(lambda: node.is_idle)


@pytest.mark.parametrize("size", [200_000, 600_000])
async def test_bytes_of_a_request_are_released_before_it_is_acknowledged(node: Node, size: int) -> None:
    replica = node.replica()
    replica.update_config(TopicConfig(flush_messages=1))
    replica.flusher = lambda _: None
    client = await node.connect()
    client.send(PRODUCE_KEY, 9, request(incompressible(size), acks=ALL))
    await until(lambda: node.validator.pending_batches == 1)
    assert node.listener.memory_pool.used >= size
    node.threads.release()
    await until(lambda: replica.log_end_offset > 0)
    await turns()
    assert (node.listener.memory_pool.used, len(node.tasks)) == (0, 1)
    assert not [one for one in gc.get_objects() if type(one) is UnvalidatedBatch]  # some are dead proxies
    replica.flush()
    replica.flushed()
    assert await receive(client) == [(0, 0)]


async def test_close_cancels_validations(node: Node) -> None:
    clients = [await node.connect() for _ in range(8)]
    for client in clients:
        client.send(PRODUCE_KEY, 9, request(batch(MANY, Codec.LZ4)))
    await until(lambda: node.validator.pending_batches == 8)
    await node.listener.close()
    await until(lambda: node.is_idle)
    node.threads.release()
    await turns()
    assert node.replica().log_end_offset == 0


async def test_concurrent_validations_are_limited(node: Node) -> None:
    clients = [await node.connect() for _ in range(8)]
    for client in clients:
        client.send(PRODUCE_KEY, 9, request(batch(MANY, Codec.LZ4)))
    await until(lambda: node.validator.pending_batches == 8)
    await turns()
    assert node.threads.held is not None and len(node.threads.held) == 4
    node.threads.release()
    found = sorted([(await receive(client))[0] for client in clients])
    assert found == [(0, MANY * number) for number in range(8)]


async def test_acks_all_completes_if_committed_during_another_validation(node: Node) -> None:
    """The high watermark has already moved, and no later event checks the partition again."""
    replica = node.replica(1)
    replica.update_config(TopicConfig(flush_messages=1))
    replica.flusher = lambda _: None
    client = await node.connect()
    client.send(PRODUCE_KEY, 9, request(batch(MANY, Codec.LZ4), batch(2), acks=ALL))
    await until(lambda: replica.log_end_offset == 2)
    assert replica.high_watermark == 0
    replica.flush()
    replica.flushed()
    await turns()
    node.threads.release()
    assert await receive(client) == [(0, 0), (0, 0)]


async def test_batch_that_fails_during_another_validation_counts_one_error(node: Node) -> None:
    replica = node.replica(1)
    replica.update_config(TopicConfig(flush_messages=1))
    replica.flusher = lambda _: None
    client = await node.connect()
    client.send(PRODUCE_KEY, 9, request(batch(MANY, Codec.LZ4), batch(2), acks=ALL))
    await until(lambda: replica.log_end_offset == 2)
    replica.become_follower(2, 5, 1)
    node.threads.release()
    assert await receive(client) == [(0, 0), (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    assert node.errors == {ErrorCode.NOT_LEADER_OR_FOLLOWER: 1}


async def test_small_batches_and_plain_ones_are_appended_at_once(node: Node) -> None:
    client = await node.connect()
    for codec in Codec:
        answer = await client.ask(PRODUCE_KEY, 9, request(batch(100, codec)))
        assert results(answer)[0][0] == 0
    large = bytes(encode_batch([NewRecord(SystemClock().now_ms(), None, bytes(BYTES_PER_TURN))]))
    assert results(await client.ask(PRODUCE_KEY, 9, request(large)))[0][0] == 0
    assert results(await client.ask(PRODUCE_KEY, 9, request(batch(20 * MANY))))[0][0] == 0
    assert (node.threads.held, node.validator.pending_batches) == ([], 0)


async def test_validation_in_threads(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as threads:
        node = Node(tmp_path, threads)
        await node.start()
        client = await node.connect()
        node.replica().update_config(TopicConfig(compression_type="zstd"))
        for number in range(3):
            answer = await client.ask(PRODUCE_KEY, 9, request(batch(MANY, Codec.GZIP)))
            assert results(answer) == [(0, number * MANY)]
        await node.listener.close()
        await node.replicas.close(clean=False)
        assert node.failures == []


HUGE = TopicConfig(max_message_bytes=100 << 20)
BOMBS = {
    "plain": HUGE,
    "compacted": TopicConfig(max_message_bytes=100 << 20, cleanup_policy=("compact",)),
    "packed again": TopicConfig(max_message_bytes=100 << 20, compression_type="gzip"),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])  # snappy's ratio is 21 at the most
async def test_decompression_bomb_uses_little_memory_and_does_not_block_others(
    node: Node, codec: Codec, name: str
) -> None:
    """Twice the frame and 8 MiB, however much the topic takes; what the codecs allocate beside Python is
    measured on a whole broker (`test_bounds_broker.py`).
    """
    now_ms = SystemClock().now_ms()
    bomb = bytes(encode_batch([NewRecord(now_ms, b"k", bytes(140 << 20))], codec=codec))
    node.replica().update_config(BOMBS[name])
    client, other = await node.connect(), await node.connect()
    client.send(PRODUCE_KEY, 9, request(bomb))
    frame = request(batch(1), partition=1)
    tracemalloc.start()
    try:
        for _ in range(5):
            await until(lambda: bool(node.threads.held))
            assert results(await other.ask(PRODUCE_KEY, 9, frame))[0][0] == 0
            node.threads.run_one()
        node.threads.release()
        assert (await receive(client))[0][0] == ErrorCode.MESSAGE_TOO_LARGE
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(bomb) + (8 << 20)


def raw_snappy() -> bytes:
    """As librdkafka sends it: one block, which cannot be decompressed in pieces."""
    now_ms = SystemClock().now_ms()
    plain = encode_batch([NewRecord(now_ms, b"k", bytes(1 << 20)) for _ in range(16)])
    header = read_header(plain)
    return bytes(with_section(header, bytes(cramjam.snappy.compress_raw(plain[HEADER_SIZE:])), Codec.SNAPPY))


async def test_batches_that_need_much_memory_are_validated_one_at_a_time(node: Node) -> None:
    node.replica().update_config(HUGE)
    clients = [await node.connect() for _ in range(3)]
    large = raw_snappy()
    assert len(large) < 1 << 20
    for client in clients:
        client.send(PRODUCE_KEY, 9, request(large))
    for _ in clients:  # each finds that it cannot be decompressed in pieces
        await until(lambda: bool(node.threads.held))
        node.threads.run_one()
    for left in (3, 2, 1):
        await until(lambda: bool(node.threads.held))
        await turns()
        assert len(node.threads.held or ()) == 1
        while node.validator.pending_batches == left:
            await until(lambda: bool(node.threads.held) or node.validator.pending_batches < left)  # noqa: B023
            if node.threads.held:
                node.threads.run_one()
            await turns()
    assert sorted([(await receive(client))[0] for client in clients]) == [(0, 0), (0, 16), (0, 32)]
