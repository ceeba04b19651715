"""Group states: the transition table and its reference page."""

from pathlib import Path

import pytest

from tierlog.base.types import InvariantViolation
from tierlog.broker.groups.core.classic.states import (
    TRANSITIONS,
    Cause,
    GroupState,
    next_state,
    reference_page,
)

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "group-states.md"


def test_reference_page_matches_the_table():
    assert PAGE.read_text() == reference_page(), (
        "write reference_page() of broker/groups/core/classic/states.py to the page"
    )


def test_every_state_is_reachable_and_only_dead_is_final():
    assert {state for state, _ in TRANSITIONS} == set(GroupState) - {GroupState.DEAD}
    assert set(TRANSITIONS.values()) == set(GroupState)


def test_unknown_transition_raises_invariant_violation():
    with pytest.raises(InvariantViolation, match="Dead"):
        next_state(GroupState.DEAD, Cause.MEMBERSHIP_CHANGED)
