"""Drawings of the web page: tiers of a partition, and a series over time."""

import re

import pytest

from tierlog.broker.gateway.web.drawings import Tiers, chart, spans, tier_bar


@pytest.mark.parametrize(
    ("tiers", "expected"),
    [
        (Tiers(0, None, 0, 10), [("local", 0, 10)]),
        (Tiers(0, 6, 0, 10), [("both", 0, 6), ("local", 6, 10)]),
        (Tiers(0, 8, 5, 10), [("remote", 0, 5), ("both", 5, 8), ("local", 8, 10)]),
        (Tiers(3, 10, 10, 10), [("remote", 3, 10)]),
        (Tiers(3, 10, None, 10), [("remote", 3, 10)]),
        (Tiers(7, 5, 2, 10), [("local", 7, 10)]),
        (Tiers(0, 4, 6, 10), [("remote", 0, 4), ("local", 6, 10)]),
        (Tiers(5, None, 5, 5), []),
    ],
)
def test_spans_of_tiers(tiers: Tiers, expected: list[tuple[str, int, int]]) -> None:
    assert spans(tiers) == expected


@pytest.mark.parametrize("tiers", [Tiers(0, 10**12, 10**12 - 5, 10**12 + 1), Tiers(0, 1, 0, 10**9)])
def test_every_tier_is_visible_and_the_bar_is_full(tiers: Tiers) -> None:
    widths = [int(text) for text in re.findall(r' width="(\d+)"', tier_bar(tiers))]
    assert len(widths) == len(spans(tiers))
    assert min(widths) >= 6 and sum(widths) == 1000


def test_bar_says_in_words_what_it_shows() -> None:
    bar = tier_bar(Tiers(0, 8, 5, 10))
    assert "object store only 0 to 4, local disk and object store 5 to 7, local disk only 8 to 9" in bar
    assert "style=" not in bar
    assert "empty" in tier_bar(Tiers(5, None, 5, 5))


def test_chart_has_gaps_where_the_lag_is_not_known() -> None:
    drawn = chart([(0, 10), (60_000, 20), (120_000, None), (180_000, 5), (240_000, 0)], "record")
    assert drawn.count("<polyline") == 2
    assert "10 records 4 minutes ago, 0 now, at most 20" in drawn


def test_chart_needs_two_samples() -> None:
    assert "no two samples" in chart([], "record")
    assert "no two samples" in chart([(0, 3), (1, None)], "record")
