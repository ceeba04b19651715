"""Transaction verifier: asks the coordinator, before a partition's first batch of a transaction (KIP-890).

For clients of transaction version 2 the request adds the partition to the transaction; for older ones, which
send AddPartitionsToTxn themselves, it only checks that. Called by the handlers of Produce and
TxnOffsetCommit.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tierlog.base.network import Caller, Network
from tierlog.base.safeguards import safeguard
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition, numbers_by_topic
from tierlog.broker.coordinators.shards import Shards
from tierlog.broker.transactions.broker_requests import REQUEST_TIMEOUT_S, BrokerRequests
from tierlog.broker.transactions.core.coordinator import Coordinator
from tierlog.broker.transactions.core.events import AddPartitions, PartitionsResponse, Response
from tierlog.broker.transactions.core.transaction import EPOCH_BUMP_VERSION
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

VERIFY_VERSION, ADD_VERSION = 4, 5
"""Versions of AddPartitionsToTxn: 5 and later stand for transaction version 2."""

Errors = Mapping[TopicPartition, ErrorCode]
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """`adds`: add the partitions to the transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    adds: bool
    client_version: int = EPOCH_BUMP_VERSION


class TransactionVerifier:
    def __init__(
        self,
        node_id: int,
        shards: Shards[Coordinator],
        image: Callable[[], ClusterImage],
        network: Network | None,
        tasks: TaskGroup,
    ) -> None:
        self._node_id = node_id
        self._shards = shards
        self._others = (
            {}
            if network is None
            else {
                adds: BrokerRequests(network, image, tasks, "transaction verifier", exchange, _partitions_of)
                for adds, exchange in ((False, _verify), (True, _add))
            }
        )
        """By whether they add the partitions. Empty if there are no other brokers."""

    @safeguard("a coordinator confirms a partition before its first batch")
    def verify(self, verification: Verification) -> "Errors | asyncio.Future[Errors]":
        """An error for each partition, or a future of them, which may raise Unreachable. A coordinator on
        this broker answers at once, unless the transaction has to wait. COORDINATOR_NOT_AVAILABLE and
        NETWORK_EXCEPTION: it is not known."""
        coordinator = self._shards.coordinator_of(verification.transactional_id)
        if coordinator is None:
            return _all(verification, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if coordinator.broker_id == self._node_id:
            return add_partitions(self._shards, verification, _same)
        others = self._others.get(verification.adds)
        if others is None:
            return _all(verification, ErrorCode.NETWORK_EXCEPTION)
        return others.send(coordinator.broker_id, verification)

    def close(self) -> None:
        for each in self._others.values():
            each.close()


def add_partitions(
    shards: Shards[Coordinator], verification: Verification, then: Callable[[Errors], R]
) -> "R | asyncio.Future[R]":
    """Ask the coordinator on this broker. Returns what `then` makes of its answer, or a future of it."""

    def convert(response: Response) -> R:
        if response.error != ErrorCode.NONE or not isinstance(response, PartitionsResponse):
            return then(_all(verification, response.error))
        failed = dict.fromkeys(response.failed, ErrorCode.TRANSACTION_ABORTABLE)
        return then(_all(verification, ErrorCode.NONE) | failed)

    return shards.ask(
        verification.transactional_id,
        lambda token: AddPartitions(
            token=token,
            transactional_id=verification.transactional_id,
            producer_id=verification.producer_id,
            producer_epoch=verification.producer_epoch,
            partitions=verification.partitions,
            verify_only=not verification.adds,
            client_version=verification.client_version,
        ),
        convert,
    )


def _same(errors: Errors) -> Errors:
    return errors


def _partitions_of(verification: Verification) -> int:
    return len(verification.partitions)


def _all(verification: Verification, error: ErrorCode) -> dict[TopicPartition, ErrorCode]:
    return dict.fromkeys(verification.partitions, error)


async def _verify(caller: Caller, batch: list[Verification]) -> list[Errors]:
    return await _exchange(caller, batch, VERIFY_VERSION)


async def _add(caller: Caller, batch: list[Verification]) -> list[Errors]:
    return await _exchange(caller, batch, ADD_VERSION)


async def _exchange(caller: Caller, batch: list[Verification], version: int) -> list[Errors]:
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                verify_only=not each.adds,
                topics=topics_of(each.partitions),
            )
            for each in batch
        ]
    )
    key = BY_NAME["AddPartitionsToTxn"].key
    response: AddPartitionsToTxnResponse = await caller.call(key, version, request, REQUEST_TIMEOUT_S)
    if response.error_code != ErrorCode.NONE:
        return [_all(each, ErrorCode(response.error_code)) for each in batch]
    return [
        {
            TopicPartition(topic.name, result.partition_index): ErrorCode(result.error_code)
            for topic in each.topic_results
            for result in topic.results_by_partition
        }
        for each in response.results_by_transaction
    ]


def topics_of(partitions: Iterable[TopicPartition]) -> list[AddPartitionsToTxnTopic]:
    numbers = numbers_by_topic(partitions)
    return [AddPartitionsToTxnTopic(name=name, partitions=each) for name, each in numbers.items()]
