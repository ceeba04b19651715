"""Lag history: bounded samples of each group's lag."""

from tierlog.broker.groups import lag_history
from tierlog.broker.groups.lag_history import GROUPS_MAX, SAMPLE_INTERVAL_MS, SAMPLES, LagHistory


def test_samples_have_a_distance() -> None:
    history = LagHistory()
    assert history.is_due(1_000)
    history.add(1_000, {"a": 1})
    assert not history.is_due(999 + SAMPLE_INTERVAL_MS)
    assert history.is_due(1_000 + SAMPLE_INTERVAL_MS)


def test_group_that_comes_and_goes() -> None:
    history = LagHistory()
    for at, lags in enumerate([{"a": 5}, {"a": 6, "b": 1}, {"b": 2}], start=1):
        history.add(at, lags)
    assert history.of("a") == [(1, 5), (2, 6), (3, None)]
    assert history.of("b") == [(2, 1), (3, 2)]
    assert history.of("c") == []
    assert history.oldest("a") == (2, 5)
    assert history.oldest("c") is None


def test_only_the_newest_samples_are_kept() -> None:
    history = LagHistory()
    history.add(1, {"gone": 1})
    for at in range(2, SAMPLES + 2):
        history.add(at, {"a": at})
    assert [when for when, _ in history.of("a")] == list(range(2, SAMPLES + 2))
    assert history.of("gone") == []


def test_groups_are_bounded() -> None:
    history = LagHistory()
    history.add(1, {f"g{one}": one for one in range(GROUPS_MAX + 5)})
    assert history.of(f"g{GROUPS_MAX - 1}") == [(1, GROUPS_MAX - 1)]
    assert history.of(f"g{GROUPS_MAX}") == []


def test_clock_that_is_set_back_begins_again() -> None:
    history = LagHistory()
    history.add(100, {"a": 1})
    history.add(50, {"a": 2})
    assert history.of("a") == [(50, 2)]
    assert lag_history.UNKNOWN < 0
