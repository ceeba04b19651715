"""Transactions in which a member of a consumer group commits its offsets (KIP-447).

A transaction has one offset of one partition. The group's coordinator accepts it only in the member's epoch.
It is committed, aborted, or left open by an instance that dies, until its timeout.
"""

import asyncio
import random
from collections import Counter

from simulator.consumer_witness import Member
from simulator.transaction_history import SimTransaction, TransactionHistory
from simulator.transaction_producer import ADD_OFFSETS, VERSIONS, Failed, Producer, call, find_coordinator
from simulator.workload import RETRY_S, TOPIC, Client
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tierlog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

GROUP = "consumers"
COMMIT_OFFSETS = BY_NAME["TxnOffsetCommit"].key
TIMEOUT_MS = 1000
FATES = ("commit",) * 6 + ("abort", "die")

REFUSED = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
"""Errors of an offset whose member has another epoch, or is gone."""


class MemberTransactions:
    """The transactions of one client, by one producer after another."""

    def __init__(self, client: Client, name: str, done: Counter[str], draws: random.Random) -> None:
        """`draws`: says what a transaction does."""
        self._client, self._name, self._done, self.draws = client, name, done, draws
        self._version = draws.choice((1, 2))
        self._history = TransactionHistory(Counter())
        self._producer: Producer | None = None
        self._transaction: SimTransaction | None = None

    async def add_offset(self, member: Member, number: int, offset: int, epoch: int) -> bool:
        """Begin a transaction with this offset. Returns whether it was accepted."""
        try:
            if self._producer is None:
                producer = Producer(self._client, self._history, self._name, self._version, TIMEOUT_MS)
                await producer.initialize()
                self._producer = producer
            self._transaction = self._producer.begin()
            if await self._send_offset(self._producer, member, number, offset, epoch):
                return True
            self._done["offsets of stale members refused"] += 1
            await self._producer.end(self._transaction, commit=False)
        except Failed:
            self._producer = None
        return False

    async def end(self, *, may_commit: bool) -> bool:
        """Returns whether a commit was acknowledged."""
        fate = self.draws.choice(FATES)
        producer, transaction = self._producer, self._transaction
        if fate == "die" or producer is None or transaction is None:
            self._producer = None
            return False
        commits = may_commit and fate == "commit"
        try:
            await producer.end(transaction, commit=commits)
        except Failed:
            self._producer = None
            return False
        self._done["transactions of members"] += commits
        return commits

    async def _send_offset(
        self, producer: Producer, member: Member, number: int, offset: int, epoch: int
    ) -> bool:
        """Returns False if the group refuses the member. Raises Failed."""
        if producer.version == 1:
            await producer.ask(
                ADD_OFFSETS,
                AddOffsetsToTxnRequest(
                    transactional_id=producer.transactional_id,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    group_id=GROUP,
                ),
            )
        committed = TxnOffsetCommitRequestPartition(partition_index=number, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=producer.transactional_id,
            group_id=GROUP,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            generation_id=epoch,
            member_id=member.member_id,
            topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[committed])],
        )
        while True:
            node = await find_coordinator(self._client, GROUP)
            version = VERSIONS[producer.version][COMMIT_OFFSETS]
            answer = await call(self._client, node, COMMIT_OFFSETS, version, request)
            if answer is not None:
                error = ErrorCode(answer.topics[0].partitions[0].error_code)
                if error in (ErrorCode.NONE, *REFUSED):
                    return error == ErrorCode.NONE
                producer.check_error(error)
            await asyncio.sleep(self._client.rng.uniform(*RETRY_S))
