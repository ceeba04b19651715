"""Log starts that the simulator's retention witness accepts and rejects."""

from collections import Counter
from uuid import UUID

import pytest
from simulator.retention import Batch, Limits, RetentionWitness
from simulator.witness import Violation

from tierlog.base.types import TopicIdPartition

WHERE = TopicIdPartition(UUID(int=1), 0)
NOW = 10_000
LOG = [Batch(0, 2, 100, 1000), Batch(2, 5, 100, 5000), Batch(5, 6, 300, None), Batch(6, 9, 100, 9000)]


def witness(limits: Limits) -> RetentionWitness:
    return RetentionWitness({"orders": limits}, Counter())


@pytest.mark.parametrize(
    ("limits", "start", "allowed"),
    [
        (Limits(size=500), 2, True),
        (Limits(size=501), 2, False),
        (Limits(size=100), 6, True),
        (Limits(size=100), 9, False),
        (Limits(age_ms=4000), 5, True),
        (Limits(age_ms=5000), 5, False),
        (Limits(age_ms=4000), 6, True),  # without timestamps
        (Limits(age_ms=4000), 9, False),
        (Limits(size=400, age_ms=8000), 5, True),  # the first batch by age, the second by size
        (Limits(), 2, False),
    ],
)
def test_each_deleted_batch_is_old_or_has_enough_above_it(limits: Limits, start: int, *, allowed: bool):
    fault = witness(limits).fault("orders", LOG, start, NOW)
    assert (fault is None) == allowed, fault


def test_unrequested_log_start_is_a_violation():
    with pytest.raises(Violation, match="does not allow a log start of 5"):
        witness(Limits(size=0)).moved(WHERE, 5)


def test_one_correct_request_allows_a_log_start():
    known = witness(Limits(size=0))
    known.requested(WHERE, "orders", 5, 9, "too young")
    with pytest.raises(Violation, match="too young"):
        known.moved(WHERE, 5)
    known.requested(WHERE, "orders", 5, 9, None)
    known.moved(WHERE, 5)


def test_log_start_above_the_high_watermark_is_a_violation():
    known = witness(Limits(size=0))
    known.requested(WHERE, "orders", 5, 4, None)
    with pytest.raises(Violation, match="only 4 is committed"):
        known.moved(WHERE, 5)
