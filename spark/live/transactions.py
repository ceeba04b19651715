"""Transactions of a streaming write: one for each task, and a decision that commits those of a batch.

A task writes in a transaction with two-phase commit (KIP-939), and leaves it open: prepared. The driver then
stores the decision, which is the batch and the list of its transactions, and commits them. The decision is a
set of group offsets, stored in a transaction of its own, whose transactional id fences a former driver. See
docs/adr/0038.

A transaction is aborted by the driver only, once a decision without it is durable, or by its own task. A task
takes an id of its own thread, of which no other task that is still running can have one. It begins only if
the id has no open transaction, and the coordinator checks that again.
"""

import os
import re
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tierlog.client import ClientError, Cluster, TimedOut, Unreachable, error_name, is_retriable, raise_for
from tierlog.client.cluster import CoordinatorType
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tierlog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from tierlog.protocol.messages.end_txn import EndTxnRequest
from tierlog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tierlog.protocol.messages.list_transactions import ListTransactionsRequest
from tierlog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tierlog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tierlog.spark.live.produce import WriteFailed

DECISION_TIMEOUT_MS = 60_000
"""Timeout of the transaction that stores a decision."""

ABORT_S = 15.0
"""Time in which brokers abort a transaction after its timeout: Kafka looks for such every 10 s."""

OFFSETS_TOPIC = "__consumer_offsets"
"""A decision is stored as the group's offsets of this topic, which always exists and has many partitions."""

OFFSETS_PARTITIONS = 50
PART_CHARACTERS = 3_500  # offset.metadata.max.bytes is 4,096 by default
MOST_SLOTS = 20_000  # open transactions of one thread: more than a decision has
OWNER_BYTES = 6
OPEN_STATE = "Ongoing"
TWO_PHASE_SETTING = "transaction.two.phase.commit.enable"
RETRY_PAUSE_S = 0.05
INIT_PRODUCER_ID_2PC = 6
"""The version of InitProducerId that has two-phase commit."""

UNUSED_PRODUCER_ID = 2**63 - 1
"""No producer has this id. InitProducerId that expects it creates an id, or is fenced if the id exists."""

FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class Prepared(NamedTuple):
    """A transaction that is flushed and open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Decision(NamedTuple):
    """The batch that was decided last, and its transactions. Batch -1: none."""

    batch_id: int
    transactions: Sequence[Prepared]


NO_DECISION = Decision(-1, ())


class Transactions:
    """Requests about transactions, repeated until they have a final response. It belongs to one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def begin(self, transactional_id: str, *, timeout_ms: int) -> Prepared:
        """A producer id and epoch for the next transaction of an id. Aborts an open one."""
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        return self._begun(transactional_id, self.ask(transactional_id, request, lambda r: r.error_code))

    def begin_two_phase(self, transactional_id: str, found: Prepared | None) -> Prepared | None:
        """The same with two-phase commit, if the id is still as it was `found` (None: not known) and has no
        open transaction. Otherwise None, and nothing has changed.

        A copy of the request that timed out may arrive at any time, also once the transaction is prepared."""
        self._require_two_phase(transactional_id)
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=DECISION_TIMEOUT_MS,  # unused: there is none
            producer_id=UNUSED_PRODUCER_ID if found is None else found.producer_id,
            producer_epoch=0 if found is None else found.producer_epoch,
            enable2_pc=True,
        )
        response = self.ask(transactional_id, request, lambda r: r.error_code)
        if response.error_code in FENCED:
            return None
        if response.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise WriteFailed(
                f"the brokers refuse two-phase commit: set {TWO_PHASE_SETTING}=true on all brokers; "
                "streaming writes need it"
            )
        return self._begun(transactional_id, response)

    def _begun(self, transactional_id: str, response: InitProducerIdResponse) -> Prepared:
        raise_for(response.error_code, None, f"producer id of {transactional_id}")
        return Prepared(transactional_id, response.producer_id, response.producer_epoch)

    def end(self, transaction: Prepared, *, commit: bool) -> None:
        """Commit or abort; does nothing if that has happened. Raises WriteFailed if it cannot."""
        request = EndTxnRequest(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            committed=commit,
        )
        code = self.ask(transaction.transactional_id, request, lambda r: r.error_code).error_code
        if code:
            verb = "commit" if commit else "abort"
            raise WriteFailed(f"cannot {verb} transaction {transaction.transactional_id}: {error_name(code)}")

    def state(self, transactional_id: str) -> tuple[str, Prepared] | None:
        """State of the current transaction of an id; None if the id is not known."""
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        response = self.ask(transactional_id, request, lambda r: r.transaction_states[0].error_code)
        found = response.transaction_states[0]
        if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        raise_for(found.error_code, None, f"transaction {transactional_id}")
        return found.transaction_state, Prepared(transactional_id, found.producer_id, found.producer_epoch)

    def open_ids(self, pattern: str) -> list[str]:
        """Ids with an open transaction, of all coordinators that respond. `pattern`: RE2 and Python."""
        request = ListTransactionsRequest(state_filters=[OPEN_STATE], transactional_id_pattern=pattern)
        found: set[str] = set()
        for broker in self._cluster.metadata([]).brokers:
            response = self._cluster.call(request, broker.node_id)
            raise_for(response.error_code, None, f"transactions of broker {broker.node_id}")
            found |= {each.transactional_id for each in response.transaction_states}
        return sorted(each for each in found if re.fullmatch(pattern, each))

    def ask_group(
        self, group: str, request: Any, code: Callable[[Any], int], least_wait_s: float = 0.0
    ) -> Any:
        return self.ask(group, request, code, CoordinatorType.GROUP, least_wait_s)

    def _require_two_phase(self, transactional_id: str) -> None:
        node = self._cluster.coordinator(CoordinatorType.TRANSACTION, transactional_id)
        version = self._cluster.version("InitProducerId", node)
        if version is None or version < INIT_PRODUCER_ID_2PC:
            raise WriteFailed(
                "the brokers do not support two-phase commit (KIP-939): streaming writes need it"
            )

    def ask(
        self,
        key: str,
        request: Any,
        code: Callable[[Any], int],
        kind: CoordinatorType = CoordinatorType.TRANSACTION,
        least_wait_s: float = 0.0,
    ) -> Any:
        """The response of the coordinator, repeated while the error is retriable, for twice the client's
        timeout and at least `least_wait_s`."""
        deadline = time.monotonic() + max(self._cluster.timeout_s * 2, least_wait_s)
        while True:
            try:
                response = self._cluster.call(request, self._cluster.coordinator(kind, key))
                if not is_retriable(code(response)) or time.monotonic() > deadline:
                    return response
            except (Unreachable, TimedOut):
                if time.monotonic() > deadline:
                    raise
            self._cluster.forget_coordinator(kind, key)
            time.sleep(RETRY_PAUSE_S)


class _Owner(threading.local):
    """A thread that runs one task after the other, such as a Python worker of Spark, and the transactional
    ids that it has used for the last batch of each query."""

    def __init__(self) -> None:
        self._renew()

    def name(self) -> str:
        if self._process != os.getpid():
            self._renew()  # a fork
        return self._name

    def first_slot(self, identity: str, batch_id: int) -> int:
        """The first that no task of the batch has used in this thread."""
        known_batch, slot = self._used.get(identity, (batch_id, 0))
        return slot if known_batch == batch_id else 0

    def use(self, identity: str, batch_id: int, slot: int) -> None:
        self._used[identity] = batch_id, slot + 1

    def _renew(self) -> None:
        self._process, self._name = os.getpid(), secrets.token_hex(OWNER_BYTES)
        self._used: dict[str, tuple[int, int]] = {}


_OWNER = _Owner()


class BatchCommitter:
    """Decides the batches of one streaming query. `identity`: of the query, in all of its ids."""

    def __init__(self, transactions: Transactions, identity: str) -> None:
        self._transactions = transactions
        self._identity = identity

    def begin_task(self, batch_id: int) -> Prepared:
        """A new transaction for a task of a batch that is not decided.

        A task may live on although Spark has started another for the same rows, or the next batch. If both
        could take one id, the late one would abort what the other has prepared. Therefore each thread has ids
        of its own. They are few, because a coordinator keeps each for days: a task takes the first that has
        no open transaction, whose driver may still commit it. It takes none that the thread has used for the
        same batch: a driver may commit these again, which must have no effect."""
        owner = _OWNER.name()
        for slot in range(_OWNER.first_slot(self._identity, batch_id), MOST_SLOTS):
            transactional_id = f"{self._identity}-{owner}-{slot}"
            _OWNER.use(self._identity, batch_id, slot)
            state, found = self._transactions.state(transactional_id) or ("Empty", None)
            if state.startswith(("Empty", "Complete")):
                begun = self._transactions.begin_two_phase(transactional_id, found)
                if begun is not None:
                    return begun
        raise WriteFailed(f"{MOST_SLOTS} transactions of one Python worker are open: {self._identity}")

    def decision(self) -> Decision:
        """The last decision. Waits for one that is being stored, also by a driver that was killed: then for
        the timeout of its transaction."""
        group = OffsetFetchRequestGroup(group_id=self._identity, topics=None)
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        wait_s = DECISION_TIMEOUT_MS / 1_000 + ABORT_S
        response = self._transactions.ask_group(self._identity, request, _offsets_error, wait_s)
        raise_for(_offsets_error(response), None, f"decisions of {self._identity}")
        parts = [part for topic in response.groups[0].topics for part in topic.partitions]
        newest = max((part.committed_offset for part in parts), default=NO_DECISION.batch_id)
        if newest == NO_DECISION.batch_id:
            return NO_DECISION
        texts = {p.partition_index: p.metadata or "" for p in parts if p.committed_offset == newest}
        count = int(texts.get(0, "0").partition("/")[0])
        if count != len(texts):
            raise WriteFailed(f"the decision of batch {newest} of {self._identity} is not complete")
        lines = [text.partition("/")[2] for _, text in sorted(texts.items())]
        return Decision(newest, [self._parsed(each) for line in lines for each in line.split(",") if each])

    def commit(self, batch_id: int, prepared: Sequence[Prepared]) -> None:
        """Decide a batch, unless it is decided, and commit it. A new decision aborts everything else that was
        open before it."""
        decided, others = self.decide(batch_id, prepared)
        for each in decided.transactions:
            self._transactions.end(each, commit=True)
        self._abort(others)

    def decide(self, batch_id: int, prepared: Sequence[Prepared]) -> tuple[Decision, Sequence[Prepared]]:
        """The decision for a batch: the stored one, or a new one with the transactions that were open and are
        not in it. Raises WriteFailed if a transaction is no longer open, or another driver decides.

        A former driver may still run, so it must not look for open transactions after its decision: they
        could be those of the next batch. Nor may one that finds its batch decided."""
        fence = self._transactions.begin(f"{self._identity}-decision", timeout_ms=DECISION_TIMEOUT_MS)
        known = self.decision()
        check_batch(known, batch_id)
        if known.batch_id == batch_id:
            return known, ()
        others = self._open_besides(prepared)
        for each in prepared:
            if self._transactions.state(each.transactional_id) != (OPEN_STATE, each):
                raise WriteFailed(f"transaction {each.transactional_id} is no longer open")
        self._store(fence, Decision(batch_id, prepared))
        return Decision(batch_id, prepared), others

    def abort(self, batch_id: int, prepared: Iterable[Prepared]) -> None:
        """Abort the transactions of a failed batch, except those that are decided: its commit may have failed
        after the decision."""
        self._transactions.begin(f"{self._identity}-decision", timeout_ms=DECISION_TIMEOUT_MS)
        known = self.decision()
        keep = set(known.transactions) if known.batch_id >= batch_id else set()
        self._abort([each for each in prepared if each not in keep])

    def _store(self, fence: Prepared, decision: Decision) -> None:
        parts = _parts([self._text(each) for each in decision.transactions])
        if len(parts) > OFFSETS_PARTITIONS:
            raise WriteFailed(
                f"the batch has too many tasks ({len(decision.transactions)}) for one decision: "
                "write fewer partitions, with coalesce()"
            )
        producer: dict[str, Any] = {
            "transactional_id": fence.transactional_id,
            "producer_id": fence.producer_id,
            "producer_epoch": fence.producer_epoch,
            "group_id": self._identity,
        }
        subject = f"decision of batch {decision.batch_id} of {self._identity}"
        added = self._transactions.ask(
            fence.transactional_id, AddOffsetsToTxnRequest(**producer), lambda r: r.error_code
        )
        raise_for(added.error_code, None, subject)
        partitions = [
            TxnOffsetCommitRequestPartition(
                partition_index=number,
                committed_offset=decision.batch_id,
                committed_metadata=f"{len(parts)}/{text}",
            )
            for number, text in enumerate(parts)
        ]
        topic = TxnOffsetCommitRequestTopic(name=OFFSETS_TOPIC, partitions=partitions)
        stored = self._transactions.ask_group(
            self._identity, TxnOffsetCommitRequest(**producer, topics=[topic]), _commit_error
        )
        raise_for(_commit_error(stored), None, subject)
        self._transactions.end(fence, commit=True)

    def _open_besides(self, prepared: Iterable[Prepared]) -> list[Prepared]:
        """Open transactions of lost tasks and of a former driver."""
        keep = set(prepared)
        try:
            ids = self._transactions.open_ids(re.escape(self._identity) + r"-\w+(-\d+)+")
            states = [self._transactions.state(each) for each in ids]
        except (ClientError, WriteFailed) as failure:
            warnings.warn(f"open transactions are aborted with a later batch: {failure}", stacklevel=2)
            return []
        return [found for state, found in filter(None, states) if state == OPEN_STATE and found not in keep]

    def _abort(self, transactions: Iterable[Prepared]) -> None:
        """Abort all of them, but pass over one that has ended or cannot be ended now."""
        for each in transactions:
            try:
                self._transactions.end(each, commit=False)
            except (ClientError, WriteFailed) as failure:
                warnings.warn(str(failure), stacklevel=2)

    def _text(self, transaction: Prepared) -> str:
        name = transaction.transactional_id.removeprefix(f"{self._identity}-")
        return f"{name}:{transaction.producer_id}:{transaction.producer_epoch}"

    def _parsed(self, text: str) -> Prepared:
        name, producer_id, epoch = text.split(":")
        return Prepared(f"{self._identity}-{name}", int(producer_id), int(epoch))


def check_batch(known: Decision, batch_id: int) -> None:
    """Raises WriteFailed if a later batch is decided."""
    if known.batch_id > batch_id:
        raise WriteFailed(
            f"batch {batch_id} is older than batch {known.batch_id}, which this query has written: its "
            "checkpoint was restored from a copy. Start the query with a new checkpoint"
        )


def _parts(texts: Iterable[str]) -> list[str]:
    """Texts joined by commas, in parts that fit into the metadata of one offset. At least one part."""
    parts = [""]
    for text in texts:
        if parts[-1] and len(parts[-1]) + len(text) >= PART_CHARACTERS:
            parts.append("")
        parts[-1] += f",{text}" if parts[-1] else text
    return parts


def _offsets_error(response: Any) -> int:
    group = response.groups[0]
    codes = [part.error_code for topic in group.topics for part in topic.partitions if part.error_code]
    return int(group.error_code or (codes[0] if codes else 0))


def _commit_error(response: Any) -> int:
    codes = [part.error_code for topic in response.topics for part in topic.partitions]
    return next((code for code in codes if code), 0)
