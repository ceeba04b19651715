"""Verification of transactions before a partition's first batch, for Produce and TxnOffsetCommit (KIP-890).

A `Verifying` collects the partitions of one request that need it. Clients of transaction version 2 do not
send AddPartitionsToTxn: for them the verification adds the partition to the transaction.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tierlog.base.network import Unreachable
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
    _waiting: list["_Question"] = field(default_factory=list)

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

    def ask(self, verifier: TransactionVerifier) -> bool:
        """Ask the coordinator. Partitions that it does not confirm are `refused`. Returns whether it has
        answered at once; otherwise `answers` waits for it."""
        self._waiting = self._ask(verifier, self._batches)
        return not self._waiting

    def _ask(self, verifier: TransactionVerifier, batches: list["_Batch"]) -> list["_Question"]:
        """Returns the questions that are not answered yet."""
        producers: dict[tuple[int, int], list[TopicPartition]] = {}
        for each in batches:
            producers.setdefault((each.producer_id, each.epoch), []).append(each.replica.name)
        waiting = []
        for (producer_id, epoch), partitions in producers.items():
            verification = Verification(
                transactional_id=self.transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                partitions=frozenset(partitions),
                adds=self.adds,
            )
            found = verifier.verify(verification)
            if isinstance(found, asyncio.Future):
                waiting.append(_Question(found, partitions))
            else:
                self._note(found, partitions)
        return waiting

    async def answers(self, verifier: TransactionVerifier) -> None:
        for each in self._waiting:
            self._note(await each.errors(), each.partitions)
        if self.adds:
            for each in self._ask(verifier, self._ended()):
                self._note(await each.errors(), each.partitions)

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


class _Question(NamedTuple):
    """A verification that the coordinator has not answered yet."""

    found: "asyncio.Future[Mapping[TopicPartition, ErrorCode]]"
    partitions: list[TopicPartition]

    async def errors(self) -> Mapping[TopicPartition, ErrorCode]:
        """Empty if the coordinator could not be reached."""
        try:
            return await self.found
        except Unreachable:
            return {}


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
    """Append after the verification. `appended`: set once later requests of the connection may follow."""
    await verifying.answers(verifier)
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
