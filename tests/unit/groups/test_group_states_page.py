"""The table of group states: total, closed, and the page that shows it."""

from pathlib import Path

import pytest

from tierlog.base.types import InvariantViolation
from tierlog.broker.groups.core.states import TRANSITIONS, Cause, GroupState, next_state, reference_page

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "group-states.md"


def test_the_reference_page_is_the_table():
    assert PAGE.read_text() == reference_page(), (
        "write reference_page() of broker/groups/core/states.py to the page"
    )


def test_every_state_but_dead_can_be_left_and_every_state_can_be_reached():
    assert {state for state, _ in TRANSITIONS} == set(GroupState) - {GroupState.DEAD}
    assert set(TRANSITIONS.values()) == set(GroupState)


def test_a_transition_outside_the_table_is_a_broken_invariant():
    with pytest.raises(InvariantViolation, match="Dead"):
        next_state(GroupState.DEAD, Cause.MEMBERSHIP_CHANGED)
