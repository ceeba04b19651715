"""Transactional producer of the simulator, with transaction version 1 or 2 (KIP-98, KIP-890).

It sends one request at a time, and retries until the outcome is certain. A producer of version 1 that did not
get a response to an EndTxn asks for the next epoch before it begins again (KIP-360): with one epoch for two
transactions, the delayed request could end the next one.
"""

import asyncio
from typing import Any

from simulator.network import Broken
from simulator.transaction_history import Outcome, SimTransaction, TransactionHistory
from simulator.witness import Violation
from simulator.workload import RETRY_S, Client
from tierlog.base.network import Unreachable
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tierlog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from tierlog.protocol.messages.end_txn import EndTxnRequest
from tierlog.protocol.messages.find_coordinator import FindCoordinatorRequest
from tierlog.protocol.messages.init_producer_id import InitProducerIdRequest
from tierlog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tierlog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tierlog.records.writer import NewRecord, encode_batch

INPUTS, OUTPUTS, LOOP_GROUP = "inputs", "outputs", "loop"
TRANSACTION = 1  # key type of FindCoordinator
TIMESTAMP_MS = 1_750_000_000_000

FIND, INIT, ADD_PARTITIONS, ADD_OFFSETS, COMMIT_OFFSETS, END, PRODUCE = (
    BY_NAME[name].key
    for name in (
        "FindCoordinator",
        "InitProducerId",
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "TxnOffsetCommit",
        "EndTxn",
        "Produce",
    )
)
VERSIONS = {
    1: {INIT: 4, ADD_PARTITIONS: 3, ADD_OFFSETS: 3, COMMIT_OFFSETS: 3, END: 4, PRODUCE: 11},
    2: {INIT: 5, COMMIT_OFFSETS: 5, END: 5, PRODUCE: 12},
}
"""The versions of requests that a client of each transaction version sends."""

FATAL = frozenset(
    (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.TRANSACTION_ABORTABLE,
    )
)
"""Errors after which a transaction cannot be committed: another instance has the id, or its time is over."""


class Failed(Exception):
    """The producer cannot continue: another one has to initialize."""


class Producer:
    """One instance of an application. `version`: of its transactions."""

    def __init__(
        self,
        client: Client,
        history: TransactionHistory,
        transactional_id: str,
        version: int,
        timeout_ms: int,
    ) -> None:
        self.client, self._history = client, history
        self.transactional_id, self.version, self._timeout_ms = transactional_id, version, timeout_ms
        self.is_replaced = False
        """Whether another instance has initialized."""
        self.producer_id, self.epoch = -1, -1
        self._sequences: dict[int, int] = {}
        self._added: set[tuple[str, int]] = set()
        self.coordinator: int | None = None

    async def initialize(self) -> None:
        """Get the id and epoch, and the next epoch if it has one. Raises Failed."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
        )
        answer = await self.ask(INIT, request)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    def begin(self) -> SimTransaction:
        self._added.clear()
        return self._history.begin(self.transactional_id)

    async def send(self, transaction: SimTransaction, partition: int, values: list[bytes]) -> None:
        """Write a batch of the transaction. Raises Failed."""
        await self.add(partition)
        request, sequence = self.request(partition, values), self._sequences.get(partition, 0)
        version = VERSIONS[self.version][PRODUCE]
        while True:
            answer = await self.client.call_leader(partition, PRODUCE, version, request)
            if answer is None:
                continue
            result = answer.responses[0].partition_responses[0]  # type: ignore[attr-defined]
            if result.error_code == ErrorCode.NONE:
                break
            self.check_error(ErrorCode(result.error_code))
            await self.client.lost(partition)
        places = ((partition, result.base_offset + at) for at in range(len(values)))
        transaction.written.update(zip(places, values, strict=True))
        self._sequences[partition] = sequence + len(values)

    def request(self, partition: int, values: list[bytes], topic: str = OUTPUTS) -> ProduceRequest:
        """The request with the next batch of the partition; of another topic than the outputs, the first."""
        batch = encode_batch(
            [NewRecord(TIMESTAMP_MS, None, value, ()) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self._sequences.get(partition, 0) if topic == OUTPUTS else 0,
            transactional=True,
        )
        data = PartitionProduceData(index=partition, records=batch)
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )

    async def add(self, partition: int, topic: str = OUTPUTS) -> None:
        """Version 2 leaves this to the leader of the partition."""
        if self.version == 2 or (topic, partition) in self._added:
            return
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=[partition])]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        await self.ask(ADD_PARTITIONS, request)
        self._added.add((topic, partition))

    async def send_offset(self, offset: int) -> None:
        """Commit an offset of the loop's input in the transaction. Raises Failed."""
        if self.version == 1:
            request = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=LOOP_GROUP,
            )
            await self.ask(ADD_OFFSETS, request)
        committed = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        commit = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=LOOP_GROUP,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=INPUTS, partitions=[committed])],
        )
        version = VERSIONS[self.version][COMMIT_OFFSETS]
        while True:
            node = await find_coordinator(self.client, LOOP_GROUP)
            answer = await call(self.client, node, COMMIT_OFFSETS, version, commit)
            if answer is not None:
                error = ErrorCode(answer.topics[0].partitions[0].error_code)
                if error == ErrorCode.NONE:
                    return
                self.check_error(error)
            await asyncio.sleep(self.client.rng.uniform(*RETRY_S))

    async def end(self, transaction: SimTransaction, *, commit: bool) -> None:
        """Commit or abort. Raises Failed if the transaction, or its producer, has been fenced."""
        request, is_certain = self.end_request(commit), True
        if commit:
            transaction.outcome = Outcome.UNKNOWN
        while True:
            was_replaced = self.is_replaced
            answer = await self.ask_coordinator(END, request)
            error = ErrorCode.REQUEST_TIMED_OUT if answer is None else ErrorCode(answer.error_code)
            if error == ErrorCode.NONE:
                break
            if error in FATAL:
                if is_certain or not commit:
                    self._history.aborted_by(transaction)
                raise Failed(error.name)
            self.check_error(error)
            is_certain = False
        if commit and was_replaced:
            raise Violation(f"a replaced producer committed {transaction}")
        ended = self._history.committed_by if commit else self._history.aborted_by
        ended(transaction)
        if self.version == 2:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()
        elif not is_certain:
            await self.initialize()

    def end_request(self, commit: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )

    async def ask_coordinator(self, api: int, request: object) -> Any:
        """Returns None after a pause if there is no response, or if there may be another coordinator."""
        if self.coordinator is None:
            self.coordinator = await find_coordinator(self.client, self.transactional_id, TRANSACTION)
        answer = await call(self.client, self.coordinator, api, VERSIONS[self.version][api], request)
        error = None if answer is None else getattr(answer, "error_code", 0)
        if error is None or (error and error not in FATAL):
            self.coordinator = None
            await asyncio.sleep(self.client.rng.uniform(*RETRY_S))
        return answer

    async def ask(self, api: int, request: object) -> Any:
        """Ask the coordinator until it accepts. Raises Failed."""
        while True:
            answer = await self.ask_coordinator(api, request)
            if answer is None:
                continue
            if api == ADD_PARTITIONS:
                code = answer.results_by_topic_v3_and_below[0].results_by_partition[0].error_code
            else:
                code = answer.error_code
            if code == ErrorCode.NONE:
                return answer
            self.check_error(ErrorCode(code))
            self.coordinator = None
            await asyncio.sleep(self.client.rng.uniform(*RETRY_S))

    def check_error(self, error: ErrorCode) -> None:
        """Returns if the request may be sent again. Raises Failed, or Violation for an error that no client
        expects."""
        self.client.history.errors[error.name] += 1
        if error in FATAL:
            raise Failed(error.name)
        if not error.retriable:
            raise Violation(f"{self.transactional_id} got {error.name}")


async def find_coordinator(client: Client, key: str, kind: int = 0) -> int:
    request = FindCoordinatorRequest(key=key, key_type=kind)
    while True:
        answer = await call(client, client.rng.choice(client.nodes), FIND, 2, request)
        if answer is not None and answer.error_code == ErrorCode.NONE:
            return int(answer.node_id)
        await asyncio.sleep(client.rng.uniform(*RETRY_S))


async def call(client: Client, node: int, api: int, version: int, request: object) -> Any:
    """Returns None if there is no response."""
    try:
        return await client.ask(node, api, version, request)
    except (Unreachable, Broken):
        return None
