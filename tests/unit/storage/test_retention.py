"""Retention and roll rules."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tierlog.base.segments import SegmentDescriptor
from tierlog.broker.storage.core.retention import age_limit_ms, count_expired, must_roll, must_roll_idle
from tierlog.config.topic import TopicConfig

NOW = 1_000_000


def segment(at: int, *, newest: int = NOW, size: int = 100, rolled: bool = True) -> SegmentDescriptor:
    return SegmentDescriptor(
        base_offset=at * 10,
        end_offset=at * 10 + 10,
        size_bytes=size,
        first_timestamp=newest,
        max_timestamp=newest,
        last_modified_ms=NOW - 50,
        rolled=rolled,
        has_transactions=False,
        has_aborts=False,
        leader_epochs=(),
        directory=Path("x"),
        file_name="x",
    )


LOG = (segment(0, newest=NOW - 300), segment(1, newest=NOW - 200), segment(2, newest=NOW - 100, rolled=False))


@pytest.mark.parametrize(
    ("config", "log_start", "high_watermark", "count"),
    [
        (TopicConfig(retention_ms=250), 0, 30, 1),
        (TopicConfig(retention_ms=50), 0, 30, 3),
        (TopicConfig(retention_ms=50), 0, 25, 2),  # the last one is not committed yet
        (TopicConfig(retention_ms=-1), 0, 30, 0),
        (TopicConfig(retention_ms=-1), 20, 30, 2),
        (TopicConfig(retention_ms=-1), 19, 30, 1),
        (TopicConfig(retention_ms=-1, retention_bytes=200), 0, 30, 1),
        (TopicConfig(retention_ms=-1, retention_bytes=201), 0, 30, 0),
        (TopicConfig(retention_ms=-1, retention_bytes=0), 0, 30, 2),  # never the active one by size
        (TopicConfig(retention_ms=50, cleanup_policy=("compact",)), 0, 30, 0),
        (TopicConfig(retention_ms=50, remote_storage_enable=True), 0, 30, 0),
        (TopicConfig(retention_ms=50, remote_storage_enable=True), 10, 30, 1),
    ],
)
def test_expired_segments(config: TopicConfig, log_start: int, high_watermark: int, count: int) -> None:
    assert count_expired(LOG, config, log_start, high_watermark, NOW) == count


def test_segment_without_timestamps_ages_by_its_file() -> None:
    assert count_expired([segment(0, newest=-1)], TopicConfig(retention_ms=60), 0, 10, NOW) == 0
    assert count_expired([segment(0, newest=-1)], TopicConfig(retention_ms=40), 0, 10, NOW) == 1


def active_segment(**changes: int) -> SimpleNamespace:
    values = {
        "base_offset": 0,
        "size": 500,
        "first_timestamp": 1000,
        "created_ms": NOW - 10,
        "index_entries": 1,
    }
    return SimpleNamespace(**{**values, "time_entries": 1, **changes})


@pytest.mark.parametrize(
    ("changes", "config", "last_offset", "newest", "rolls"),
    [
        ({}, {}, 10, 1000, False),
        ({}, {"segment_bytes": 600}, 10, 1000, False),
        ({}, {"segment_bytes": 599}, 10, 1000, True),
        ({"size": 0}, {"segment_bytes": 14}, 10, 1000, False),
        ({}, {"segment_ms": 100}, 10, 1100, False),
        ({}, {"segment_ms": 100}, 10, 1101, True),
        ({}, {"segment_ms": 100}, 10, -1, False),
        ({"created_ms": NOW - 101}, {"segment_ms": 100}, 10, -1, True),
        ({"index_entries": 10}, {"segment_index_bytes": 80}, 10, 1000, True),
        ({"time_entries": 6}, {"segment_index_bytes": 80}, 10, 1000, True),
        ({}, {}, 2**31 - 1, 1000, False),
        ({}, {}, 2**31, 1000, True),
        ({"size": 0}, {}, 2**31, 1000, True),
    ],
)
def test_roll_conditions(changes: dict, config: dict, last_offset: int, newest: int, rolls: bool) -> None:
    topic = TopicConfig(**config)
    limit = age_limit_ms(topic)
    assert must_roll(active_segment(**changes), topic, 100, last_offset, newest, NOW, limit) is rolls


def test_idle_segment_is_rolled_by_age_unless_empty() -> None:
    assert not must_roll_idle(active_segment(created_ms=NOW - 100), NOW, 100)
    assert must_roll_idle(active_segment(created_ms=NOW - 101), NOW, 100)
    assert not must_roll_idle(active_segment(created_ms=0, size=0), NOW, 100)


def test_compacted_log_is_rolled_by_max_compaction_lag_ms() -> None:
    lag = {"segment_ms": 100, "max_compaction_lag_ms": 40}
    assert age_limit_ms(TopicConfig(**lag)) == 100
    assert age_limit_ms(TopicConfig(**lag, cleanup_policy=("compact",))) == 40
    assert age_limit_ms(TopicConfig(segment_ms=10, cleanup_policy=("compact",))) == 10
