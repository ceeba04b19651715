"""Produce of transactional batches whose partition nothing has verified."""

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
from tier_handlers import dependencies
from tier_node import START_MS, TierNode

from tierlog.broker.coordinators.shards import Host, Shards
from tierlog.broker.handlers.context import Connection, Pending, RequestContext
from tierlog.broker.handlers.produce import produce_handler
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.transactions.core.coordinator import Coordinator, TransactionSettings
from tierlog.broker.transactions.transaction_service import transactions_topic
from tierlog.broker.transactions.verifier import TransactionVerifier
from tierlog.config.node import NodeSettings
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.tiering.memory_store import MemoryStore


def verifier_without_a_coordinator(node: TierNode, settings: NodeSettings) -> TransactionVerifier:
    host = Host(1, node.metadata, cast(ReplicaManager, node), node.clock, node.tasks)
    shards = Shards(host, transactions_topic(settings), lambda: Coordinator(TransactionSettings()), 5_000)
    return TransactionVerifier(1, shards, lambda: node.metadata.image, None, node.tasks)


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
        record = NewRecord(START_MS, b"k", b"v")
        batch = encode_batch([record], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        data = TopicProduceData(
            name="t", partition_data=[PartitionProduceData(index=0, records=memoryview(batch))]
        )
        context = RequestContext(0, 9, 1, "test", Connection(1, "127.0.0.1", 1))
        request = ProduceRequest(transactional_id="id", acks=-1, timeout_ms=1000, topic_data=[data])
        response: Any = produce(context, request)
        if isinstance(response, Pending):
            response = await response.work
        [result] = response.responses[0].partition_responses
        assert result.error_code == expected
