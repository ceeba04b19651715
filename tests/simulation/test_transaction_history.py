"""The history of transactions notices each way in which a reader may see what it must not."""

from collections import Counter

import pytest
from simulator.transaction_history import Outcome, SimTransaction, TransactionHistory
from simulator.witness import Violation

Found = dict[int, list[tuple[int, bytes]]]


def written(history: TransactionHistory, *places: tuple[int, int]) -> SimTransaction:
    """An open transaction with an acknowledged record at each (partition, offset)."""
    transaction = history.begin("t")
    for place in places:
        transaction.written[place] = transaction.next_value()
    return transaction


def shown(*transactions: SimTransaction) -> Found:
    """A reader finds all records of these transactions."""
    found: Found = {0: [], 1: []}
    for transaction in transactions:
        for (partition, offset), value in transaction.written.items():
            found[partition].append((offset, value))
    return found


@pytest.fixture
def history() -> TransactionHistory:
    return TransactionHistory(Counter())


def test_committed_transaction_is_visible_and_one_of_unknown_outcome_may_be(
    history: TransactionHistory,
) -> None:
    committed, unknown = written(history, (0, 0), (1, 0)), written(history, (0, 2), (1, 2))
    history.committed_by(committed)
    unknown.outcome = Outcome.UNKNOWN
    history.check(shown(committed), -1)
    history.check(shown(committed, unknown), -1)


@pytest.mark.parametrize("lost", ((0, 0), (1, 0), None))
def test_committed_transaction_that_is_missing_in_part_or_as_a_whole_is_noticed(
    history: TransactionHistory, lost: tuple[int, int] | None
) -> None:
    transaction = written(history, (0, 0), (1, 0))
    history.committed_by(transaction)
    if lost is None:
        found: Found = {0: [], 1: []}
    else:
        found = shown(transaction)
        found[lost[0]].clear()
    with pytest.raises(Violation, match="in part"):
        history.check(found, -1)


@pytest.mark.parametrize("is_aborted", (False, True))
def test_record_of_an_open_or_aborted_transaction_is_noticed_at_once_and_at_the_end(
    history: TransactionHistory, is_aborted: bool
) -> None:
    transaction = written(history, (0, 0))
    if is_aborted:
        history.aborted_by(transaction)
    history.begin_pass(0)
    with pytest.raises(Violation, match="read_committed shows"):
        history.read(0, [(0, transaction.written[0, 0])], 1)
    with pytest.raises(Violation, match="is visible"):
        history.check(shown(transaction), -1)


def test_abort_of_a_transaction_that_was_read_is_noticed(history: TransactionHistory) -> None:
    transaction = written(history, (0, 0))
    transaction.outcome = Outcome.UNKNOWN
    history.begin_pass(0)
    history.read(0, [(0, transaction.written[0, 0])], 1)
    with pytest.raises(Violation, match="was read"):
        history.aborted_by(transaction)


def test_reader_that_passes_a_committed_record_is_noticed(history: TransactionHistory) -> None:
    transaction = written(history, (0, 3))
    history.begin_pass(0)
    history.read(0, [], 4)
    history.committed_by(transaction)
    with pytest.raises(Violation, match="passed"):
        history.check(shown(transaction), -1)


@pytest.mark.parametrize("offset", (0, 2, 3))
def test_input_that_is_processed_twice_or_never_is_noticed(history: TransactionHistory, offset: int) -> None:
    transaction = history.begin("loop")
    transaction.written[0, 0] = transaction.next_value("0")
    transaction.first_input, transaction.next_input = 0, 1
    history.committed_by(transaction)
    history.check(shown(transaction), 1)
    with pytest.raises(Violation, match="the loop is at"):
        history.check(shown(transaction), offset)


def test_committed_offset_of_a_transaction_that_is_open_or_older_is_noticed(
    history: TransactionHistory,
) -> None:
    first, second = history.begin("loop"), history.begin("loop")
    first.next_input, second.next_input = 1, 2
    history.committed_by(first)
    history.committed_offset(1, history.acknowledged_offset)
    for offset in (-1, 2):
        with pytest.raises(Violation, match="the offset of the loop"):
            history.committed_offset(offset, history.acknowledged_offset)
