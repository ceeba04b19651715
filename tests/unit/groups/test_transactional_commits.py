"""TxnOffsetCommit whose transaction the coordinator has to confirm."""

import asyncio
from pathlib import Path
from typing import Any

from group_broker import OneBroker, fetched

from tierlog.broker.handlers.context import Connection, Pending, RequestContext
from tierlog.broker.handlers.transactional_offsets import txn_offset_commit_handler
from tierlog.broker.transactions.verifier import Errors, TransactionVerifier, Verification
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)


class LaterVerifier(TransactionVerifier):
    """The coordinator answers when the test wants it."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Errors] = asyncio.get_running_loop().create_future()
        self.partitions: frozenset[Any] = frozenset()

    def verify(self, verification: Verification) -> "asyncio.Future[Errors]":
        self.partitions = verification.partitions
        return self.answer


async def test_later_requests_of_the_connection_wait_until_the_offsets_are_appended(tmp_path: Path) -> None:
    async with OneBroker(tmp_path) as broker:
        await broker.service.shards.create_topic()
        await broker.create("t")
        verifier = LaterVerifier()
        commit = txn_offset_commit_handler(broker.service, verifier)
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        topic = TxnOffsetCommitRequestTopic(name="t", partitions=[partition])
        request = TxnOffsetCommitRequest(
            transactional_id="id", group_id="g", producer_id=1, producer_epoch=0, topics=[topic]
        )
        context = RequestContext(
            BY_NAME["TxnOffsetCommit"].key, 5, 1, "client", Connection(1, "127.0.0.1", 1)
        )
        pending = commit(context, request)
        assert isinstance(pending, Pending) and pending.blocks_later_until is not None
        work = asyncio.ensure_future(pending.work)
        await asyncio.sleep(0)
        assert not pending.blocks_later_until.done()
        verifier.answer.set_result(dict.fromkeys(verifier.partitions, ErrorCode.NONE))
        await pending.blocks_later_until
        assert broker.service.unstable_partitions("g"), "a commit that follows counts after it"
        response: Any = await work
        assert response.topics[0].partitions[0].error_code == ErrorCode.NONE
        assert await fetched(broker) == -1
