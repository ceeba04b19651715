"""Produce of transactional batches whose partition was not verified."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tier_handlers import dependencies
from tier_node import START_MS, TierNode

from tierlog.broker.handlers.context import Connection, RequestContext
from tierlog.broker.handlers.produce import produce_handler
from tierlog.config.node import NodeSettings
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.tiering.memory_store import MemoryStore


@pytest.mark.parametrize(
    ("enabled", "expected"), [(True, ErrorCode.INVALID_TXN_STATE), (False, ErrorCode.NONE)]
)
async def test_verification_can_be_switched_off(tmp_path: Path, enabled: bool, expected: ErrorCode) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        await node.create("t")
        settings = NodeSettings(transaction_partition_verification_enable=enabled)
        produce = produce_handler(dataclasses.replace(dependencies(node), settings=settings))
        record = NewRecord(START_MS, b"k", b"v")
        batch = encode_batch([record], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        data = TopicProduceData(
            name="t", partition_data=[PartitionProduceData(index=0, records=memoryview(batch))]
        )
        context = RequestContext(0, 9, 1, "test", Connection(1, "127.0.0.1", 1))
        request = ProduceRequest(transactional_id="id", acks=-1, timeout_ms=1000, topic_data=[data])
        response: Any = produce(context, request)
        [result] = response.responses[0].partition_responses
        assert result.error_code == expected
