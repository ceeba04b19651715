"""Replacements of the safeguards of transactions. See `safeguards`."""

import dataclasses
from typing import Any

from simulator.switches import Function
from simulator.switches import without as any_without
from tierlog.broker.storage.core.producer_state import NO_PRODUCER_ID
from tierlog.broker.transactions.core.events import WriteMarkers
from tierlog.broker.transactions.core.states import TransactionState
from tierlog.broker.transactions.core.transaction import EPOCH_BUMP_VERSION
from tierlog.protocol.errors import ErrorCode


def without(name: str, breaks: str) -> Any:
    return any_without(name, breaks, of_transactions=True)


# --- the transaction coordinator


@without(
    "an outcome is durable before its markers are written",
    breaks="a transaction is committed in one partition and aborted in another",
)
def _(original: Function, core: Any, entry: Any, decided: Any, turn: Any, *then: Any) -> None:
    original(core, entry, decided, turn, *then)
    if decided.state.is_prepared:
        turn.effects.append(_markers(decided))


@without(
    "an end of a transaction is durable before it is acknowledged",
    breaks="an acknowledged transaction is aborted",
)
def _(original: Function, core: Any, entry: Any, decided: Any, turn: Any, then: Any = None) -> None:
    if decided.state.is_prepared and then is not None:
        then, reply = None, then
        reply(turn, ErrorCode.NONE)
    original(core, entry, decided, turn, then)


@without(
    "an added partition is durable before its batch is appended",
    breaks="a transaction holds the last stable offset forever",
)
def _(original: Function, core: Any, entry: Any, decided: Any, turn: Any, then: Any = None) -> None:
    if decided.state is TransactionState.ONGOING and then is not None:
        then, reply = None, then
        reply(turn, ErrorCode.NONE)
    original(core, entry, decided, turn, then)


@without(
    "an open transaction is aborted after its timeout",
    breaks="a transaction holds the last stable offset forever",
)
def _(original: Function, *_: Any) -> None:
    return


@without(
    "a new coordinator writes the markers of decided transactions",
    breaks="a transaction holds the last stable offset forever",
)
def _(original: Function, core: Any, *loaded: Any) -> Any:
    return [each for each in original(core, *loaded) if not isinstance(each, WriteMarkers)]


@without(
    "an abort by the coordinator raises the epoch",
    breaks="a transaction that timed out is committed in part",
)
def _(original: Function, known: Any, *spare: Any) -> Any:
    aborted = original(known, *spare)
    if known.bumps_epochs:
        return aborted
    return dataclasses.replace(aborted, producer_epoch=known.producer_epoch)


@without("requests of a replaced producer are refused", breaks="a replaced producer commits")
def _(original: Function, known: Any, producer_id: int, epoch: int) -> ErrorCode:
    return original(known, producer_id, epoch if known is None else known.client[1])


@without(
    "the end of an earlier transaction is refused",
    breaks="a late EndTxn commits a part of the next transaction",
)
def _(original: Function, known: Any, producer_id: int, epoch: int, **how: Any) -> Any:
    is_next = how["client_version"] >= EPOCH_BUMP_VERSION and epoch + 1 == known.client[1]
    return original(known, producer_id, epoch + 1 if is_next else epoch, **how)


@without(
    "a transaction keeps all partitions that were added",
    breaks="a transaction holds the last stable offset forever",
)
def _(original: Function, known: Any, partitions: Any, *rest: Any) -> Any:
    return dataclasses.replace(original(known, partitions, *rest), partitions=frozenset(partitions))


@without("InitProducerId raises the epoch", breaks="a replaced producer commits")
def _(original: Function, known: Any, *rest: Any) -> Any:
    decided = original(known, *rest)
    if isinstance(decided, ErrorCode) or known.producer_epoch < 0:
        return decided
    return dataclasses.replace(decided, producer_epoch=known.producer_epoch)


# --- markers


@without(
    "a marker is sent until its partition has it",
    breaks="a transaction holds the last stable offset forever",
)
def _(original: Function, *_: Any) -> bool:
    return True


@without("a marker needs the epoch of its transaction", breaks="a late marker ends the next transaction")
def _(original: Function, *_: Any) -> None:
    return


# --- the leaders of partitions


@without(
    "a coordinator confirms a partition before its first batch",
    breaks="a late batch opens a transaction that nothing ends",
)
def _(original: Function, verifier: Any, verification: Any) -> Any:
    if verification.adds:
        return original(verifier, verification)
    return dict.fromkeys(verification.partitions, ErrorCode.NONE)


@without(
    "a batch of an ended transaction is not acknowledged again",
    breaks="a record of a committed transaction is lost",
)
def _(original: Function, *_: Any) -> None:
    return


@without("a producer snapshot holds open transactions", breaks="records of an open transaction are read")
def _(original: Function, producers: Any, rest: bytes) -> None:
    original(producers, rest)
    producers._open.clear()
    for producer in producers:
        producer.transaction_first_offset = -1


# --- readers


@without("read_committed stops at the last stable offset", breaks="records of an open transaction are read")
def _(original: Function, leader: Any, producers: Any) -> int:
    return int(leader.high_watermark)


@without(
    "a fetch lists the aborted transactions of its range", breaks="records of an aborted transaction are read"
)
def _(original: Function, *_: Any) -> list[Any]:
    return []


@without("the transaction index says how far to search", breaks="records of an aborted transaction are read")
def _(original: Function, producers: Any, completed: Any) -> int:
    return int(completed.last_offset + 1)


@without("recovery rebuilds the transaction index", breaks="records of an aborted transaction are read")
def _(original: Function, *replayed: Any, index_aborts: bool) -> None:
    original(*replayed, index_aborts=False)


@without("a remote read lists aborted transactions", breaks="records of an aborted transaction are read")
async def _(original: Function, *_: Any) -> list[Any]:
    return []


# --- offsets


@without("offsets of a transaction count after its marker", breaks="an input is processed never")
def _(original: Function, core: Any, group_id: str, partition: Any, committed: Any, _: int) -> None:
    original(core, group_id, partition, committed, NO_PRODUCER_ID)


@without("a group coordinator replays the ends of transactions", breaks="a group's offsets stay unstable")
def _(original: Function, *_: Any, **how: Any) -> None:
    return


@without("OffsetFetch waits for offsets of open transactions", breaks="an input is processed twice")
def _(original: Function, *_: Any) -> list[Any]:
    return []


def _markers(transaction: Any) -> WriteMarkers:
    return WriteMarkers(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        commit=transaction.state is TransactionState.PREPARE_COMMIT,
        client_version=transaction.client_version,
        partitions=transaction.partitions,
    )
