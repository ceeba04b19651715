"""Transaction states: the transition table and its reference page."""

from pathlib import Path

import pytest

from tierlog.base.types import InvariantViolation
from tierlog.broker.transactions.core.states import (
    MEANINGS,
    TRANSITIONS,
    Cause,
    TransactionState,
    next_state,
    reference_page,
)

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "transaction-states.md"


def test_reference_page_matches_the_table():
    assert PAGE.read_text() == reference_page(), (
        "write reference_page() of broker/transactions/core/states.py to the page"
    )


def test_every_state_is_reachable_and_only_dead_is_final():
    assert {state for state, _ in TRANSITIONS} == set(TransactionState) - {TransactionState.DEAD}
    assert set(TRANSITIONS.values()) == set(TransactionState)
    assert set(MEANINGS) == set(TransactionState)


def test_a_decided_transaction_keeps_its_outcome():
    for outcome in ("COMMIT", "ABORT"):
        prepared, complete = TransactionState[f"PREPARE_{outcome}"], TransactionState[f"COMPLETE_{outcome}"]
        assert {to for (state, _), to in TRANSITIONS.items() if state is prepared} == {complete}


def test_unknown_transition_raises_invariant_violation():
    with pytest.raises(InvariantViolation, match="Dead"):
        next_state(TransactionState.DEAD, Cause.INITIALIZED)
