"""Guarantees of quotas for any sequence of uses and pauses."""

from hypothesis import given
from hypothesis import strategies as st

from tierlog.broker.quotas.accounts import IDLE_MS
from tierlog.broker.quotas.quotas import ClientQuotas
from tierlog.broker.quotas.rates import TokenBucket, WindowedRate, Windows
from tierlog.metadata.records import QuotaKey

windows = st.builds(Windows, st.integers(1, 20), st.sampled_from([100, 1000, 5000]))
pieces = st.lists(
    st.tuples(st.floats(0, 1e5), st.one_of(st.just(0), st.integers(0, 3_000), st.integers(0, 100_000))),
    min_size=1,
    max_size=80,
)
bounds = st.floats(1, 1e4)
FETCH, PRODUCE = QuotaKey.CONSUMER_BYTE_RATE, QuotaKey.PRODUCER_BYTE_RATE


@given(windows, pieces, bounds)
def test_rate_is_bounded_by_recent_values(
    windows: Windows, pieces: list[tuple[float, int]], bound: float
) -> None:
    rate, now, recorded = WindowedRate(windows), 0, []
    for value, pause in pieces:
        now += pause
        rate.record(value, now)
        recorded.append((now, value))
        recent = sum(value for at, value in recorded if now - at < windows.total_ms + windows.size_ms)
        assert rate.check()
        assert rate.per_second(now) <= recent * 1000 / windows.min_span_ms + 1e-6
        assert (rate.throttle_ms(bound, now) > 0) <= (rate.per_second(now) > bound)
    assert rate.per_second(now + windows.total_ms) == 0


@given(windows, pieces, bounds)
def test_client_that_waits_for_its_throttle_time_gets_at_most_twice_the_bound_and_a_burst(
    windows: Windows, pieces: list[tuple[float, int]], bound: float
) -> None:
    quotas = ClientQuotas(windows)
    quotas.configure({(("user", None),): {PRODUCE: bound}})
    now, done = 0, 0.0
    for value, pause in pieces:
        waiting = quotas.charge(PRODUCE, "u", "c", value, now)
        if waiting == IDLE_MS:
            return  # the wait was cut short
        done += value
        now += waiting + pause
        burst = 2 * bound * (windows.total_ms + windows.size_ms) / 1000
        assert done <= 2 * bound * (now + len(pieces)) / 1000 + burst + 1e-6


@given(windows, pieces, bounds)
def test_charge_unless_over_never_exceeds_the_bound(
    windows: Windows, pieces: list[tuple[float, int]], bound: float
) -> None:
    """A single value above the burst is the exception: an idle client gets it. A client that waits, and takes
    no more than the burst at once, is always allowed.
    """
    quotas = ClientQuotas(windows)
    quotas.configure({(("user", None),): {FETCH: bound}})
    rate, now = WindowedRate(windows), 0
    for value, pause in pieces:
        did_nothing = rate.per_second(now) == 0
        if not quotas.charge_unless_over(FETCH, "u", "c", value, now):
            rate.record(value, now)
            less_than_a_ms = 0.5 / windows.min_span_ms
            assert did_nothing or rate.per_second(now) <= bound * (1 + less_than_a_ms + 1e-9)
        now += pause
    most = quotas.max_burst(FETCH, "u", "c")
    assert most is not None
    assert quotas.charge_unless_over(FETCH, "u", "c", most, now + windows.total_ms) == 0


@given(windows, pieces, bounds)
def test_bucket_gives_at_most_a_burst_and_its_refill(
    windows: Windows, pieces: list[tuple[float, int]], bound: float
) -> None:
    bucket, now, taken, last = TokenBucket(windows), 0, 0.0, 0.0
    for value, pause in pieces:
        if not bucket.throttle_ms(bound, now):
            bucket.take(value, bound, now)
            taken, last = taken + value, value
        assert taken - last <= bound * (now + windows.total_ms) / 1000 + bound * len(pieces) / 1000 + 1e-3
        now += pause
    assert bucket.throttle_ms(bound, now + bucket.throttle_ms(bound, now)) <= 1
    assert bucket.left(bound, now + 10**9) <= bound * windows.total_ms / 1000


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, IDLE_MS)), max_size=100), st.integers(1, 10))
def test_accounts_are_bounded_and_recently_used_ones_stay(uses: list[tuple[int, int]], most: int) -> None:
    quotas = ClientQuotas(accounts_max=most)
    quotas.configure({(("client-id", None),): {PRODUCE: 1.0}})
    now, used = 0, {}
    for client, pause in uses:
        now += pause
        quotas.charge(PRODUCE, "u", str(client), 1, now)
        used.pop(str(client), None)
        used[str(client)] = now
        kept = [row.account.client_id for row in quotas.report(PRODUCE, now)]
        expected = [client_id for client_id, at in used.items() if now - at < IDLE_MS][-most:]
        assert set(kept) == set(expected)
