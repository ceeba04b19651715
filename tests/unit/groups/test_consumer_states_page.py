"""Consumer group states: the transition tables and their reference page."""

from pathlib import Path

import pytest

from tierlog.base.types import InvariantViolation
from tierlog.broker.groups.core.consumer.states import (
    GROUP_TRANSITIONS,
    ConsumerGroupState,
    check_transition,
    reference_page,
)

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "consumer-group-states.md"


def test_reference_page_matches_the_tables():
    assert PAGE.read_text() == reference_page(), (
        "write reference_page() of broker/groups/core/consumer/states.py to the page"
    )


def test_every_state_is_reachable_and_only_dead_is_final():
    assert {old for old, _ in GROUP_TRANSITIONS} == set(ConsumerGroupState) - {ConsumerGroupState.DEAD}
    assert {new for _, new in GROUP_TRANSITIONS} == set(ConsumerGroupState)


def test_unknown_transition_raises_invariant_violation():
    with pytest.raises(InvariantViolation, match="Dead"):
        check_transition(ConsumerGroupState.DEAD, ConsumerGroupState.ASSIGNING)
