"""Produce of transactional batches whose partition nothing has verified."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
from tier_handlers import dependencies
from tier_node import START_MS, TierNode

from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.shards import Host, Shards
from tierlog.broker.handlers.context import Connection, Handler, Pending, RequestContext
from tierlog.broker.handlers.produce import produce_handler
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.transactions.core.coordinator import Coordinator, TransactionSettings
from tierlog.broker.transactions.transaction_service import transactions_topic
from tierlog.broker.transactions.verifier import Errors, TransactionVerifier, Verification
from tierlog.config.node import NodeSettings
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tierlog.records.markers import EndMarker
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.tiering.memory_store import MemoryStore

PRODUCER = 7


def verifier_without_a_coordinator(node: TierNode, settings: NodeSettings) -> TransactionVerifier:
    host = Host(1, node.metadata, cast(ReplicaManager, node), node.clock, node.tasks)
    shards = Shards(host, transactions_topic(settings), lambda: Coordinator(TransactionSettings()), 5_000)
    return TransactionVerifier(1, shards, lambda: node.metadata.image, None, node.tasks)


class VerifierAfterAMarker(TransactionVerifier):
    """The coordinator confirms a partition after it has written the marker of the last transaction."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.count = 0

    def verify(self, verification: Verification) -> Errors | asyncio.Future[Errors]:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Errors] = loop.create_future()
        loop.call_soon(lambda: found.set_result(self._answer(verification)))
        return found

    def _answer(self, verification: Verification) -> Errors:
        self.count += 1
        if self.count == 1:
            ended = self.replica.as_leader.append_marker(
                PRODUCER, verification.producer_epoch, EndMarker(True, 0), START_MS, transaction_version=2
            )
            assert ended.error == ErrorCode.NONE
        return dict.fromkeys(verification.partitions, ErrorCode.NONE)


class VerifierAtOnce(TransactionVerifier):
    """The coordinator is on this broker, and does not wait."""

    def __init__(self) -> None:
        pass

    def verify(self, verification: Verification) -> Errors:
        return dict.fromkeys(verification.partitions, ErrorCode.NONE)


def first_batch(epoch: int) -> ProduceRequest:
    """A batch of one record."""
    batch = encode_batch(
        [NewRecord(START_MS, b"k", b"v")],
        producer_id=PRODUCER,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
    )
    partition = PartitionProduceData(index=0, records=memoryview(batch))
    data = TopicProduceData(name="t", partition_data=[partition])
    return ProduceRequest(transactional_id="id", acks=-1, timeout_ms=1000, topic_data=[data])


async def produced(produce: Handler, *, version: int, epoch: int) -> ErrorCode:
    """Send the first batch of the epoch."""
    request = first_batch(epoch)
    response: Any = produce(RequestContext(0, version, 1, "test", Connection(1, "127.0.0.1", 1)), request)
    if isinstance(response, Pending):
        response = await response.work
    [result] = response.responses[0].partition_responses
    return ErrorCode(result.error_code)


@pytest.mark.parametrize(
    ("enabled", "expected"), [(True, ErrorCode.NOT_ENOUGH_REPLICAS), (False, ErrorCode.NONE)]
)
async def test_verification_can_be_switched_off(tmp_path: Path, enabled: bool, expected: ErrorCode) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        await node.create("t")
        settings = NodeSettings(transaction_partition_verification_enable=enabled)
        verifier = verifier_without_a_coordinator(node, settings)
        produce = produce_handler(
            dataclasses.replace(dependencies(node), settings=settings, verifier=verifier)
        )
        assert await produced(produce, version=9, epoch=0) == expected


async def test_marker_of_the_last_transaction_does_not_end_the_verification_of_the_next(
    tmp_path: Path,
) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        await node.create("t")
        replica = node.replicas[TopicPartition("t", 0)]
        verifier = VerifierAfterAMarker(replica)
        produce = produce_handler(dataclasses.replace(dependencies(node), verifier=verifier))
        assert await produced(produce, version=12, epoch=1) == ErrorCode.NONE
        assert (verifier.count, replica.last_stable_offset) == (2, 1)


async def test_batch_that_the_coordinator_confirms_at_once_is_answered_without_a_task(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        await node.create("t")
        produce = produce_handler(dataclasses.replace(dependencies(node), verifier=VerifierAtOnce()))
        context = RequestContext(0, 12, 1, "test", Connection(1, "127.0.0.1", 1))
        response = produce(context, first_batch(epoch=1))
        assert not isinstance(response, Pending)
