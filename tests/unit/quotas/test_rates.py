"""Rates and buckets against figures that Apache Kafka gives for the same use."""

import pytest

from tierlog.broker.quotas.rates import WAIT_MS_MAX, TokenBucket, WindowedRate, Windows

DEFAULT = Windows()


def rate_of(*records: tuple[float, int], windows: Windows = DEFAULT) -> WindowedRate:
    rate = WindowedRate(windows)
    for value, at_ms in records:
        rate.record(value, at_ms)
        assert rate.check()
    return rate


def test_first_burst_is_averaged_over_all_windows_but_one() -> None:
    rate = rate_of((10_000, 0))
    assert (rate.per_second(0), rate.throttle_ms(1000, 0)) == (1000, 0)
    rate.record(10_150, 0)
    assert rate.throttle_ms(1000, 0) == 10_150  # Kafka 4.3.1: 10,126 after 24 ms
    rate.record(20_150, 50)
    assert rate.throttle_ms(1000, 50) == 30_250


def test_span_grows_with_the_age_of_samples() -> None:
    rate = rate_of((5_000, 0), (5_000, 10_500))
    assert rate.per_second(10_500) == pytest.approx(10_000 / 10.5)


def test_samples_older_than_all_windows_are_dropped() -> None:
    rate = rate_of((5_000, 0), (7_000, 4_000))
    assert rate.per_second(10_999) == pytest.approx(12_000 / 10.999)
    assert rate.per_second(11_000) == 700
    assert rate.per_second(15_000) == 0
    assert rate.check()


def test_age_of_a_sample_counts_from_its_last_value() -> None:
    rate = rate_of((1, 0), (1, 999))
    assert rate.per_second(11_998) > 0
    assert rate.per_second(11_999) == 0


def test_throttle_time_of_a_value_is_known_without_recording_it() -> None:
    rate = rate_of((8_000, 0))
    assert rate.throttle_ms(1000, 0, more=4_000) == 2_000
    assert rate.throttle_ms(1000, 0) == 0


def test_one_window_has_no_burst() -> None:
    rate = rate_of((1, 0), windows=Windows(1, 1000))
    assert rate.throttle_ms(1, 0) == 999


def test_bucket_is_full_at_first_and_may_be_overdrawn_once() -> None:
    bucket = TokenBucket(DEFAULT)
    assert bucket.left(1.0, 123_456) == 11
    bucket.take(10.5, 1.0, 123_456)
    assert bucket.throttle_ms(1.0, 123_456) == 0  # half a token is left
    bucket.take(-10.5, 1.0, 123_456)
    bucket.take(17, 1.0, 123_456)
    assert bucket.throttle_ms(1.0, 123_456) == 6_000  # Kafka 4.3.1: 5,964 after 36 ms
    assert bucket.throttle_ms(1.0, 129_455) == 1
    assert bucket.throttle_ms(1.0, 129_456) == 0
    assert bucket.left(1.0, 10**9) == 11


def test_tiny_bound_waits_for_the_maximum_time() -> None:
    least = 5e-324
    assert rate_of((1, 0)).throttle_ms(least, 0) == WAIT_MS_MAX
    bucket = TokenBucket(DEFAULT)
    bucket.take(1, least, 0)
    assert bucket.throttle_ms(least, 0) == WAIT_MS_MAX


def test_changed_bound_limits_the_tokens_to_the_new_burst() -> None:
    bucket = TokenBucket(DEFAULT)
    assert bucket.left(10.0, 0) == 110
    assert bucket.left(2.0, 1) == 22
