"""Verdict of a soak run: a good history passes, and each kind of bad history is flagged."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from samples import Sample
from verdict import Verdict, verdict_of
from worker_process import CLOSED

MINUTES = 10.0
INTERVAL = 1 / 12

Change = Callable[[Sample], Sample]


def history(change: Change = lambda sample: sample, minutes: float = MINUTES) -> list[Sample]:
    """A healthy broker: values grow in the first third and fluctuate after that."""
    rng = random.Random(1)
    samples = []
    for number in range(1, round(minutes / INTERVAL) + 1):
        at = number * INTERVAL
        warm = min(3 * at / minutes, 1.0)
        sample = Sample(
            minutes=at,
            rss_mib=100 + 40 * warm + rng.uniform(-2, 2),
            anon_mib=80 + 30 * warm + rng.uniform(-2, 2),
            descriptors=round(100 + 50 * warm + rng.uniform(-10, 10)),
            threads=20 + rng.randrange(2),
            local_disk_mib=20 + 80 * warm + rng.uniform(-6, 6),
            store_mib=50 * warm,
            loop_lag_p99_ms=5,
            p50_ms=3.0,
            p99_ms=8 * rng.uniform(0.7, 1.4),
            max_ms=rng.choice([20.0, 20.0, 300.0]),
            e2e_p50_ms=4.0,
            e2e_p99_ms=12 * rng.uniform(0.7, 1.4),
            e2e_max_ms=40.0,
            counts={
                "produced": 7500,
                "read": 30_000,
                "cleaned": rng.choice([0, 5_000_000]),
                "topics": 3,
                "connections": 180,
                CLOSED: 2,
            },
        )
        samples.append(change(sample))
    return samples


def flagged(samples: list[Sample], **options: object) -> set[str]:
    verdict: Verdict = verdict_of(samples, **{"minutes_planned": MINUTES, **options})  # type: ignore[arg-type]
    reported = verdict.as_json()["verdict"]
    assert (reported == "flat") == (not verdict.bad)
    return {check.what for check in verdict.bad}


def with_counts(sample: Sample, **counts: int) -> Sample:
    return replace(sample, counts={**sample.counts, **counts})


def test_a_good_run_passes() -> None:
    assert flagged(history()) == set()


def test_few_slow_intervals_pass() -> None:
    def slow(sample: Sample) -> Sample:
        return replace(sample, p99_ms=200.0, e2e_p99_ms=200.0) if 8.0 <= sample.minutes < 9.0 else sample

    assert flagged(history(slow)) == set()


def test_growth_in_the_first_third_is_warm_up() -> None:
    def fill(sample: Sample) -> Sample:
        warm = min(3 * sample.minutes / MINUTES, 1)
        return replace(sample, rss_mib=20 + 400 * warm, local_disk_mib=200 * warm, p99_ms=50 - 40 * warm)

    assert flagged(history(fill)) == set()


@pytest.mark.parametrize(
    ("name", "a_minute", "what"),
    [
        ("rss_mib", 1.5, "sure growth of resident memory, second half, MiB"),
        ("anon_mib", 1.5, "sure growth of anonymous memory, second half, MiB"),
        ("descriptors", 3, "growth of descriptors"),
        ("threads", 1, "threads, peak of the last third"),
    ],
)
def test_leak_is_flagged(name: str, a_minute: float, what: str) -> None:
    def leak(sample: Sample) -> Sample:
        return replace(sample, **{name: getattr(sample, name) + a_minute * sample.minutes})  # type: ignore[arg-type]

    assert flagged(history(leak)) == {what}


ANON = "growth of anonymous memory, second half, MiB"


def memory(minutes: float, mib: Callable[[float], float]) -> list[Sample]:
    """A history with this anonymous memory by minute, plus fluctuation."""
    rng = random.Random(2)

    def change(sample: Sample) -> Sample:
        return replace(sample, anon_mib=80 + mib(sample.minutes) + rng.uniform(-1, 1))

    return history(change, minutes)


class TestMemory:
    def test_steady_growth_in_a_short_run_is_flagged(self) -> None:
        samples = memory(18, lambda minute: 0.37 * minute)
        assert flagged(samples, minutes_planned=18.0) == {f"sure {ANON}"}

    def test_small_growth_in_a_short_run_passes(self) -> None:
        assert flagged(memory(10, lambda minute: 0.1 * minute)) == set()

    def test_single_step_of_the_allocator_passes(self) -> None:
        assert flagged(memory(10, lambda minute: 1.5 * (minute > 7))) == set()

    @pytest.mark.parametrize(("an_hour", "bad"), [(0.0, False), (0.5, False), (1.5, True), (4.0, True)])
    def test_long_run_must_be_flat(self, an_hour: float, bad: bool) -> None:
        samples = memory(120, lambda minute: an_hour * minute / 60)
        assert flagged(samples, minutes_planned=120.0) == ({ANON} if bad else set())

    def test_fluctuation_is_flat(self) -> None:
        samples = memory(120, lambda minute: 0.3 * (minute % 5))
        assert flagged(samples, minutes_planned=120.0) == set()

    def test_long_run_with_wide_uncertainty_is_flagged(self) -> None:
        samples = memory(120, lambda minute: 6.0 * (int(minute) // 13 % 2))
        assert "uncertainty of that, anonymous memory, MiB an hour" in flagged(samples, minutes_planned=120.0)


def threads(count: Callable[[float], int]) -> list[Sample]:
    """A run of two hours with this many threads in each minute."""
    return history(lambda sample: replace(sample, threads=count(sample.minutes)), 120)


class TestThreads:
    def test_pools_that_fill_and_stay_are_flat(self) -> None:
        filled_at = (0.3, 0.4, 1.1, 1.8, 1.8, 4.1, 63.8, 75.6, 76.7)  # minutes, of a run that was measured
        samples = threads(lambda minute: 7 + sum(at <= minute for at in filled_at))
        assert flagged(samples, minutes_planned=120.0) == set()

    def test_one_more_every_quarter_of_an_hour_is_growth(self) -> None:
        samples = threads(lambda minute: 13 + int(minute // 15))
        assert flagged(samples, minutes_planned=120.0) == {"threads, peak of the last third"}


@pytest.mark.parametrize(
    ("name", "what"), [("p99_ms", "produce"), ("e2e_p99_ms", "end to end")], ids=["produce", "end to end"]
)
class TestLatency:
    def test_growth_with_the_data_is_flagged(self, name: str, what: str) -> None:
        def rise(sample: Sample) -> Sample:
            return replace(sample, **{name: 12 * sample.minutes})  # type: ignore[arg-type]

        assert flagged(history(rise)) == {f"{what} p99, last third, ms"}

    def test_jump_at_the_end_is_flagged(self, name: str, what: str) -> None:
        def jump(sample: Sample) -> Sample:
            return replace(sample, **{name: 40.0}) if sample.minutes > 7 else sample  # type: ignore[arg-type]

        assert flagged(history(jump)) == {f"{what} p99, last third, ms"}

    def test_high_level_from_the_start_is_flagged(self, name: str, what: str) -> None:
        def slow(sample: Sample) -> Sample:
            return replace(sample, **{name: 900.0})  # type: ignore[arg-type]

        assert flagged(history(slow)) == {f"{what} p99, level, ms"}
        assert flagged(history(slow), latency_level_ms=1000.0) == set()

    def test_missing_latency_is_flagged(self, name: str, what: str) -> None:
        def unmeasured(sample: Sample) -> Sample:
            return replace(sample, **{name: None}) if sample.minutes > 9 else sample  # type: ignore[arg-type]

        assert flagged(history(unmeasured)) == {f"{what} intervals without latency"}


def test_growing_disk_usage_is_flagged() -> None:
    def fill(sample: Sample) -> Sample:
        return replace(sample, local_disk_mib=15 * sample.minutes)

    assert flagged(history(fill)) == {"local disk, peak of the last third, MiB"}


def test_high_disk_usage_from_the_start_is_flagged() -> None:
    assert flagged(history(lambda sample: replace(sample, local_disk_mib=2000.0))) == {
        "local disk, peak, MiB"
    }


@pytest.mark.parametrize("what", ["produced", "read", "cleaned", "topics", "connections", CLOSED])
@pytest.mark.parametrize("idle_minute", [0, 4, 9])
def test_idle_minute_of_a_load_is_flagged(what: str, idle_minute: int) -> None:
    def pause(sample: Sample) -> Sample:
        inside = (
            idle_minute <= sample.minutes < idle_minute + 1 or sample.minutes == idle_minute + 1 == MINUTES
        )
        return with_counts(sample, **{what: 0}) if inside else sample

    samples = history(pause)
    verdict = verdict_of(samples, minutes_planned=MINUTES)
    (check,) = verdict.bad
    assert check.what == f"{what}, least of a minute"
    assert check.note == f"nothing in minute {idle_minute + 1}"


def test_early_end_is_flagged() -> None:
    assert flagged(history(minutes=9.5)) == {"minutes passed"}


def test_missing_samples_are_flagged() -> None:
    samples = [sample for sample in history() if not 4.2 < sample.minutes < 4.9]
    assert flagged(samples) == {"minutes without a sample"}


def test_run_without_samples_is_flagged() -> None:
    assert {"minutes passed", "produced, least of a minute"} <= flagged([])


def test_client_fault_is_flagged() -> None:
    samples = history()
    samples[3] = with_counts(samples[3], **{"fault: produce": 1})
    assert flagged(samples) == {"faults that clients met"}


@pytest.mark.parametrize(
    ("closed", "hung", "allowed"),
    [
        (0, 1, True),
        (0, 2, False),
        (900, 2, True),
        (2034, 3, True),
        (2034, 12, False),
        (10_000, 15, True),
        (10_000, 40, False),
    ],
)
def test_hanging_clients_are_limited_to_a_share(closed: int, hung: int, allowed: bool) -> None:
    samples = [with_counts(sample, **{CLOSED: 0}) for sample in history()]
    samples[3] = with_counts(samples[3], **{CLOSED: closed})
    samples[9] = with_counts(samples[9], **{"hung: group members": hung})
    assert flagged(samples) - {f"{CLOSED}, least of a minute"} == (
        set() if allowed else {"clients that hung"}
    )


def test_reason_of_an_early_end_is_reported() -> None:
    verdict = verdict_of(history(minutes=4), minutes_planned=MINUTES, ended_early="the broker ended")
    assert {check.what: check.note for check in verdict.bad} == {
        "runs that ended early": "the broker ended",
        "minutes passed": "",
    }


def test_logged_error_is_flagged() -> None:
    assert flagged(history(), broker_errors=1) == {"errors that the broker logged"}


def test_short_run_is_checked_by_the_same_thirds() -> None:
    assert flagged(history(minutes=2.0), minutes_planned=2.0) == set()

    def jump(sample: Sample) -> Sample:
        return replace(sample, p99_ms=40.0) if sample.minutes > 1.4 else sample

    assert flagged(history(jump, minutes=2.0), minutes_planned=2.0) == {"produce p99, last third, ms"}
