"""Statistics of records, against counting one by one."""

import math
import random
import uuid
from collections import Counter
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tierlog.spark.history.plan import OffsetRange, Part, Source
from tierlog.spark.jobs import record_stats
from tierlog.spark.jobs import stats as stats_job
from tierlog.spark.jobs.arguments import InvalidArgument, NoProgress
from tierlog.spark.jobs.record_stats import RecordStats, merged
from tierlog.spark.jobs.stats import PERIODS, period_of
from tierlog.spark.jobs.stats_progress import StatsProgress

HOUR_MS = 3_600_000


def columns(rows: list[tuple[bytes | None, bytes | None, int]]) -> dict[str, pa.Array]:
    keys, values, times = zip(*rows, strict=True)
    stamps = [datetime.fromtimestamp(time / 1000, UTC) for time in times]
    return {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "timestamp": pa.array(stamps, pa.timestamp("us", "UTC")),
    }


def test_merged_statistics_are_those_of_all_records() -> None:
    rng = random.Random(1)
    rows = [
        (
            rng.choice([None, b"", b"k%d" % rng.randrange(40)]),
            rng.choice([None, b"x" * rng.randrange(300)]),
            1_700_000_000_000 + n * 60_000 - (n % 9 == 8) * 150_000,
        )
        for n in range(1_000)
    ]
    parts = []
    for first in range(0, 1_000, 100):
        part = RecordStats()
        newest = part.add(columns(rows[first : first + 60]), HOUR_MS, -(2**62))
        part.add(columns(rows[first + 60 : first + 100]), HOUR_MS, newest)
        parts.append(part)
    total = merged(parts)
    keys = Counter(key for key, _, _ in rows if key is not None)
    assert total.records == 1_000
    assert total.keys == keys
    assert total.distinct_keys == len(keys)
    assert total.null_values == sum(value is None for _, value, _ in rows)
    assert total.value_bytes == sum(len(value or b"") for _, value, _ in rows)
    assert (total.first_ms, total.last_ms) == (min(row[2] for row in rows), max(row[2] for row in rows))
    periods = Counter(time // HOUR_MS for _, _, time in rows)
    assert {period: count for period, (count, _) in total.by_period.items()} == periods
    sizes = Counter(len(value or b"").bit_length() for _, value, _ in rows)
    assert {number: int(count) for number, count in enumerate(total.sizes) if count} == sizes
    late = 0
    for first in range(0, 1_000, 100):
        times = [row[2] for row in rows[first : first + 100]]
        late += sum(time < max(times[: n + 1]) for n, time in enumerate(times))
    assert total.late_records == late


def test_number_of_keys_is_estimated_and_frequent_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_stats, "KEYS_KEPT", 100)
    stats = RecordStats()
    for first in range(0, 200_000, 20_000):
        rows: list[tuple[bytes | None, bytes | None, int]] = [
            (b"%d" % n, b"", 0) for n in range(first, first + 20_000)
        ]
        stats.add(columns([*rows, *[(b"hot", b"", 0)] * 500]), HOUR_MS, 0)
    stats.trim()
    assert stats.distinct_keys == pytest.approx(200_001, rel=0.03)
    assert stats.keys.most_common(1) == [(b"hot", 5_000)]
    assert len(stats.keys) == 100


@pytest.mark.parametrize("keys", [1, 1_000_000, 100_000_000, 1_000_000_000])
def test_keys_that_share_a_hash_are_counted(keys: int) -> None:
    every = 1 << record_stats.HASH_BITS
    assert record_stats.keys_of_hashes(every * -math.expm1(-keys / every)) == pytest.approx(keys, rel=1e-6)
    assert record_stats.keys_of_hashes(2.0 * every) > every


ALL = {
    "html": None,
    "manifests_only": False,
    "starting_offsets": "earliest",
    "ending_offsets": "latest",
    "starting_timestamp": None,
    "ending_timestamp": None,
    "resume": None,
}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"html": "/nowhere/page.html"}, "there is no such directory"),
        ({"resume": "/nowhere/progress"}, "--resume /nowhere/progress: there is no such directory"),
        ({"manifests_only": True, "resume": "progress"}, "there is nothing to --resume"),
        ({"manifests_only": True, "starting_timestamp": 0}, "--manifests-only has no range"),
        ({"manifests_only": True, "ending_offsets": '{"t": {"0": 5}}'}, "--manifests-only has no range"),
    ],
)
def test_arguments_without_effect_are_refused_before_the_work(given: dict[str, Any], named: str) -> None:
    stats_job.check_arguments({**ALL, "manifests_only": True})
    stats_job.check_arguments({**ALL, "starting_timestamp": 0})
    with pytest.raises(InvalidArgument, match=named):
        stats_job.run({**ALL, **given}, NoProgress())


def test_large_keys_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_stats, "KEY_BYTES_KEPT", 10_000)
    stats = RecordStats(keys=Counter({b"%01000d" % number: number for number in range(1, 31)}))
    stats.trim()
    assert sorted(stats.keys.values()) == list(range(21, 31))


def test_driver_takes_the_results_of_a_round_of_tasks_and_trims_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_stats, "KEYS_KEPT", 10)
    source = Source("t", uuid.UUID(int=1), 0)
    ranges = [OffsetRange(number, number + 1) for number in range(600)]
    parts = [Part(source, "", 0, stats_job.TASK_BYTES, some, some, None) for some in ranges]
    rounds: list[int] = []

    def run_tasks(_spark: Any, _work: Any, tasks: list[Any], *_: Any) -> list[Any]:
        rounds.append(len(tasks))
        firsts = [task.parts[0].offsets.start for task in tasks]
        return [
            {("t", 0): RecordStats(records=1, keys=Counter({b"hot": 5, b"%d" % first: 1}))}
            for first in firsts
        ]

    monkeypatch.setattr(stats_job, "plan", lambda *_: (None, parts))
    monkeypatch.setattr(stats_job, "spark_session", lambda *_: nullcontext())
    monkeypatch.setattr(stats_job, "run_tasks", run_tasks)
    state = StatsProgress(None, {}, 1_000)
    stats_job._collect({}, state, NoProgress())
    found = state.found["t", 0]
    assert rounds == [256, 256, 88]
    assert (found.records, found.keys[b"hot"], len(found.keys)) == (600, 3_000, 10)


@pytest.mark.parametrize("days", [0, 1, 400, 20_000])
def test_width_of_periods_follows_the_span_of_time(days: int) -> None:
    span = days * 24 * HOUR_MS
    width = period_of(span)
    assert span <= width * PERIODS
    assert width == 1_000 or span > width * PERIODS / 10
