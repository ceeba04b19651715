"""Transaction states: the states of a transactional id and all transitions, in one table.

Only transaction.py changes a state, by this table. docs/reference/transaction-states.md is
generated from it; a test compares the page with `reference_page()`.
"""

from enum import IntEnum, StrEnum

from tierlog.base.types import InvariantViolation


class TransactionState(IntEnum):
    """The numbers are those of Kafka's records in `__transaction_state`. Kafka's PrepareEpochFence (7) is
    never stored: an epoch is fenced by PREPARE_ABORT."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def title(self) -> str:
        """As DescribeTransactions and ListTransactions report it."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided, and markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class Cause(StrEnum):
    """Why a transactional id changes state. The value is the label in the generated state diagram."""

    INITIALIZED = "InitProducerId"
    KEPT = "InitProducerId keeps the transaction (KIP-939)"
    PARTITIONS_ADDED = "AddPartitionsToTxn, AddOffsetsToTxn"
    COMMITTED = "EndTxn commits"
    ABORTED = "EndTxn aborts, the timeout passes, or InitProducerId fences the producer"
    MARKERS_WRITTEN = "all markers are written"
    EXPIRED = "transactional.id.expiration.ms"


_S = TransactionState
TRANSITIONS: dict[tuple[TransactionState, Cause], TransactionState] = {
    (_S.EMPTY, Cause.INITIALIZED): _S.EMPTY,
    (_S.EMPTY, Cause.PARTITIONS_ADDED): _S.ONGOING,
    (_S.EMPTY, Cause.ABORTED): _S.PREPARE_ABORT,
    (_S.EMPTY, Cause.EXPIRED): _S.DEAD,
    (_S.ONGOING, Cause.PARTITIONS_ADDED): _S.ONGOING,
    (_S.ONGOING, Cause.KEPT): _S.ONGOING,
    (_S.ONGOING, Cause.COMMITTED): _S.PREPARE_COMMIT,
    (_S.ONGOING, Cause.ABORTED): _S.PREPARE_ABORT,
    (_S.PREPARE_COMMIT, Cause.MARKERS_WRITTEN): _S.COMPLETE_COMMIT,
    (_S.PREPARE_ABORT, Cause.MARKERS_WRITTEN): _S.COMPLETE_ABORT,
    (_S.COMPLETE_COMMIT, Cause.INITIALIZED): _S.EMPTY,
    (_S.COMPLETE_COMMIT, Cause.PARTITIONS_ADDED): _S.ONGOING,
    (_S.COMPLETE_COMMIT, Cause.ABORTED): _S.PREPARE_ABORT,
    (_S.COMPLETE_COMMIT, Cause.EXPIRED): _S.DEAD,
    (_S.COMPLETE_ABORT, Cause.INITIALIZED): _S.EMPTY,
    (_S.COMPLETE_ABORT, Cause.PARTITIONS_ADDED): _S.ONGOING,
    (_S.COMPLETE_ABORT, Cause.ABORTED): _S.PREPARE_ABORT,
    (_S.COMPLETE_ABORT, Cause.EXPIRED): _S.DEAD,
}

MEANINGS = {
    _S.EMPTY: "The id has a producer id and epoch, and no transaction since InitProducerId.",
    _S.ONGOING: "A transaction is open. It is aborted after its timeout, if it has one.",
    _S.PREPARE_COMMIT: "The outcome is commit. Markers are written until every partition has one.",
    _S.PREPARE_ABORT: "The outcome is abort. Markers are written until every partition has one.",
    _S.COMPLETE_COMMIT: "The last transaction is committed; all its partitions have their markers.",
    _S.COMPLETE_ABORT: "The last transaction is aborted; all its partitions have their markers.",
    _S.DEAD: "The id expired without an open transaction, and its record is deleted.",
}


def next_state(state: TransactionState, cause: Cause) -> TransactionState:
    """Raises InvariantViolation for a transition that the table does not have."""
    if (state, cause) not in TRANSITIONS:
        raise InvariantViolation(f"no transition from {state.title} for {cause.name}")
    return TRANSITIONS[state, cause]


def reference_page() -> str:
    """docs/reference/transaction-states.md."""
    arrows = "\n".join(
        f"    {state.title} --> {target.title}: {cause}" for (state, cause), target in TRANSITIONS.items()
    )
    rows = "\n".join(f"| {state.title} | {meaning} |" for state, meaning in MEANINGS.items())
    return _PAGE.format(arrows=arrows, rows=rows)


_PAGE = """# States of a transactional id

Generated from `broker/transactions/core/states.py`; a test fails when this page differs.

```mermaid
stateDiagram-v2
    [*] --> Empty: first InitProducerId
{arrows}
    Dead --> [*]
```

| state | meaning |
| --- | --- |
{rows}

A state counts once its record in `__transaction_state` is durable. After a move of the coordinator, Ongoing
transactions get the rest of their timeout, and the markers of prepared ones are written again. Only clients
of transaction version 2 (KIP-890) may abort without having added a partition.
"""
