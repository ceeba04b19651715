"""Verification of transactions before a partition's first batch, for Produce and TxnOffsetCommit (KIP-890).

A `Verifying` collects the partitions of one request that need it. Clients of transaction version 2 do not
send AddPartitionsToTxn: for them the verification adds the partition to the transaction.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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

    _producers: dict[tuple[int, int], list[TopicPartition]] = field(default_factory=dict)

    def begin(self, replica: Replica, producer_id: int, epoch: int, first_sequence: int) -> None:
        """Note whether the partition's batch may be appended at once, after a verification, or not at all."""
        found = replica.as_leader.begin_verification(
            producer_id, epoch, first_sequence, supports_epoch_bump=self.adds
        )
        if isinstance(found, Rejection):
            self.refused[replica.name] = found.error
        elif found is not None and (self.adds or self.is_enforced):
            self.guards[replica.name] = found
            self._producers.setdefault((producer_id, epoch), []).append(replica.name)

    async def ask(self, verifier: TransactionVerifier) -> None:
        """Ask the coordinator. Partitions that it does not confirm are `refused`."""
        for (producer_id, epoch), partitions in self._producers.items():
            verification = Verification(
                transactional_id=self.transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                partitions=frozenset(partitions),
                adds=self.adds,
            )
            self._note(await verifier.verify(verification), partitions)

    def _note(self, errors: Mapping[TopicPartition, ErrorCode], partitions: list[TopicPartition]) -> None:
        for each in partitions:
            error = errors.get(each, ErrorCode.NETWORK_EXCEPTION)
            if error != ErrorCode.NONE:
                self.refused[each] = error


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
