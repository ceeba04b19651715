"""Verification of transactions before a partition's first batch, for Produce and TxnOffsetCommit (KIP-890).

A `Verifying` collects the partitions of one request that need it. Clients of transaction version 2 do not
send AddPartitionsToTxn: for them the verification adds the partition to the transaction.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.core.turn import response_error
from tierlog.broker.handlers.context import CLOSE, Pending, Reply
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.core.producer_state import Rejection
from tierlog.broker.storage.core.verification import VerificationGuard
from tierlog.broker.transactions.verifier import TransactionVerifier, Verification
from tierlog.protocol.errors import ErrorCode

ABORTABLE, RETRIABLE = ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.NOT_ENOUGH_REPLICAS
_NOT_KNOWN = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
)
"""The coordinator did not answer, or could not yet."""


@dataclass(slots=True)
class Verifying:
    """`is_enforced`: transaction.partition.verification.enable. `guards`: of the partitions to ask for.
    `refused`: the partitions whose batch must not be appended."""

    transactional_id: str
    adds: bool
    is_enforced: bool = True
    guards: dict[TopicPartition, VerificationGuard] = field(default_factory=dict)
    refused: dict[TopicPartition, ErrorCode] = field(default_factory=dict)
    begun: set[TopicPartition] = field(default_factory=set)
    """Partitions that this broker led when the request arrived."""

    _batches: list["_Batch"] = field(default_factory=list)

    def begin(self, replica: Replica, producer_id: int, epoch: int, first_sequence: int) -> None:
        """Note whether the partition's batch may be appended at once, after a verification, or not at all."""
        found = replica.as_leader.begin_verification(
            producer_id, epoch, first_sequence, supports_epoch_bump=self.adds
        )
        if isinstance(found, Rejection):
            self.refused[replica.name] = found.error
        elif found is not None and (self.adds or self.is_enforced):
            self.guards[replica.name] = found
            self._batches.append(_Batch(replica, producer_id, epoch, first_sequence))

    async def ask(self, verifier: TransactionVerifier) -> None:
        """Ask the coordinator. Partitions that it does not confirm are `refused`."""
        await self._ask(verifier, self._batches)
        if self.adds:
            await self._ask(verifier, self._ended())

    async def _ask(self, verifier: TransactionVerifier, batches: list["_Batch"]) -> None:
        producers: dict[tuple[int, int], list[TopicPartition]] = {}
        for each in batches:
            producers.setdefault((each.producer_id, each.epoch), []).append(each.replica.name)
        for (producer_id, epoch), partitions in producers.items():
            verification = Verification(
                transactional_id=self.transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                partitions=frozenset(partitions),
                adds=self.adds,
            )
            self._note(await verifier.verify(verification), partitions)

    def _ended(self) -> list["_Batch"]:
        """Begin the verifications again that have ended while the coordinator was asked. It answers after the
        markers of the last transaction, which end the verification of the next one if that began before
        them. With transaction version 2 the epoch says to which of them the batch belongs."""
        ended = []
        for each in self._batches:
            name = each.replica.name
            if name in self.refused:
                continue
            found = each.replica.as_leader.begin_verification(
                each.producer_id, each.epoch, each.first_sequence, supports_epoch_bump=True
            )
            if isinstance(found, Rejection):
                self.refused[name] = found.error
            elif found is not None and found is not self.guards[name]:
                self.guards[name] = found
                ended.append(each)
        return ended

    def _note(self, errors: Mapping[TopicPartition, ErrorCode], partitions: list[TopicPartition]) -> None:
        for each in partitions:
            error = errors.get(each, ErrorCode.NETWORK_EXCEPTION)
            if error != ErrorCode.NONE:
                self.refused[each] = error


class _Batch(NamedTuple):
    """The first batch of a transaction in a partition."""

    replica: Replica
    producer_id: int
    epoch: int
    first_sequence: int


def produce_error(error: ErrorCode, *, knows_abortable: bool, adds: bool) -> ErrorCode:
    """The error of a Produce whose transaction is not confirmed, as in Kafka."""
    if error == ErrorCode.CONCURRENT_TRANSACTIONS and adds:
        return error
    if error in _NOT_KNOWN:
        return RETRIABLE
    return _fencing(error, knows_abortable)


def offsets_error(error: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """The error of a TxnOffsetCommit, as in Kafka: clients retry without looking for another coordinator."""
    if error == ErrorCode.NETWORK_EXCEPTION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return _fencing(response_error(error), knows_abortable)


def _fencing(error: ErrorCode, knows_abortable: bool) -> ErrorCode:
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return error


async def append_verified(
    verifying: Verifying,
    verifier: TransactionVerifier,
    appended: "asyncio.Future[None]",
    append: Callable[[], Reply | Pending],
) -> Reply:
    """Ask the coordinator, then append. `appended`: set once later requests of the connection may follow."""
    await verifying.ask(verifier)
    reply = append()
    if not isinstance(reply, Pending):
        if reply is not CLOSE:  # else no later request is handled
            appended.set_result(None)
        return reply
    if reply.blocks_later_until is None:
        appended.set_result(None)
    else:
        work: asyncio.Future[Reply] = asyncio.ensure_future(reply.work)
        await asyncio.wait((reply.blocks_later_until, work), return_when=asyncio.FIRST_COMPLETED)
        appended.set_result(None)
        return await work
    return await reply
