"""Client quotas: use, throttle times, shared accounts, expiration."""

from tierlog.broker.quotas.accounts import IDLE_MS
from tierlog.broker.quotas.limits import Account
from tierlog.broker.quotas.quotas import REPORTED_MAX, THROTTLE_MAX_MS, ClientQuotas, Report
from tierlog.metadata.records import QuotaEntity, QuotaKey

PRODUCE, FETCH = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
REQUEST, MUTATION = QuotaKey.REQUEST_PERCENTAGE, QuotaKey.CONTROLLER_MUTATION_RATE
DEFAULT_CLIENT = (("client-id", None),)


def quotas(entity: QuotaEntity, accounts_max: int = 100, **bounds: float) -> ClientQuotas:
    made = ClientQuotas(accounts_max=accounts_max)
    made.configure({entity: bounds})
    return made


def accounts(made: ClientQuotas, now_ms: int = 0) -> list[str | None]:
    return [row.account.client_id for row in made.report(PRODUCE, now_ms)]


def test_charged_bytes_count_even_above_the_quota() -> None:
    made = quotas(DEFAULT_CLIENT, producer_byte_rate=1000)
    assert [made.charge(PRODUCE, "u", "a", 10_000, 0) for _ in range(3)] == [0, 10_000, 20_000]
    assert made.charge(PRODUCE, "u", "b", 10_000, 0) == 0  # each client id has its own
    assert made.charge(FETCH, "u", "a", 10_000, 0) == 0  # there is no quota of that kind


def test_refused_bytes_do_not_count() -> None:
    made = quotas(DEFAULT_CLIENT, consumer_byte_rate=1000)
    assert made.charge_unless_over(FETCH, "u", "a", 9_000, 0) == 0
    assert [made.charge_unless_over(FETCH, "u", "a", 3_000, 0) for _ in range(2)] == [2_000, 2_000]
    assert made.charge_unless_over(FETCH, "u", "a", 1_000, 0) == 0
    assert made.max_burst(FETCH, "u", "a") == 10_000
    assert made.max_burst(PRODUCE, "u", "a") is None


def test_idle_client_gets_a_value_above_its_quota() -> None:
    made = quotas(DEFAULT_CLIENT, consumer_byte_rate=1000)
    assert [made.charge_unless_over(FETCH, "u", "a", 30_000, 0) for _ in range(2)] == [0, 50_000]
    assert made.charge_unless_over(FETCH, "u", "a", 30_000, 11_000) == 0


def test_a_users_quota_is_shared_by_its_clients() -> None:
    made = quotas((("user", "ada"),), producer_byte_rate=1000)
    assert made.charge(PRODUCE, "ada", "a", 10_000, 0) == 0
    assert made.charge(PRODUCE, "ada", "b", 1_000, 0) == 1_000


def test_recorded_time_counts_for_the_next_charge_and_waits_are_short() -> None:
    made = quotas(DEFAULT_CLIENT, request_percentage=10)
    made.record(REQUEST, "u", "a", 100.0, 0)
    assert made.charge(REQUEST, "u", "a", 0, 0) == 0
    made.record(REQUEST, "u", "a", 900.0, 0)
    assert made.charge(REQUEST, "u", "a", 0, 0) == 1_000  # a window, not the 90 s that it would be


def test_throttle_time_is_at_most_the_life_of_an_account() -> None:
    made = quotas(DEFAULT_CLIENT, producer_byte_rate=1)
    assert made.charge(PRODUCE, "u", "a", 1e12, 0) == THROTTLE_MAX_MS


def test_mutations_are_refused_while_the_bucket_is_overdrawn() -> None:
    made = quotas(DEFAULT_CLIENT, controller_mutation_rate=2.0)
    assert made.mutate("u", "a", 30, 0, strict=True) == (True, 0)
    assert made.mutate("u", "a", 1, 0, strict=True) == (False, 4_000)
    assert made.mutate("u", "a", 2, 0, strict=False) == (True, 5_000)
    assert made.mutate("u", "a", 1, 5_000, strict=True) == (True, 0)
    assert made.mutate("u", "a", 1, 5_000, strict=True)[0] is False
    made.configure({})
    assert made.mutate("u", "a", 1000, 5_000, strict=True) == (True, 0)


def test_tiny_quota_throttles_for_the_maximum_time() -> None:
    made = quotas(DEFAULT_CLIENT, request_percentage=1e-310, controller_mutation_rate=1e-310)
    made.record(REQUEST, "u", "a", 1.0, 0)
    assert made.charge(REQUEST, "u", "a", 0, 0) == 1_000
    assert made.mutate("u", "a", 1, 0, strict=True) == (True, 0)
    assert made.mutate("u", "a", 1, 0, strict=True) == (False, THROTTLE_MAX_MS)
    assert made.mutate("u", "a", 1, 0, strict=False) == (True, THROTTLE_MAX_MS)


def test_connections_of_an_address() -> None:
    made = quotas((("ip", None),), connection_creation_rate=1)
    assert [made.connect("10.0.0.1", 0) for _ in range(12)] == [0] * 10 + [1_000] * 2
    assert made.connect("10.0.0.2", 0) == 0


def test_changed_quota_applies_to_past_use() -> None:
    made = quotas(DEFAULT_CLIENT, producer_byte_rate=1000)
    made.charge(PRODUCE, "u", "a", 10_000, 0)
    made.configure({DEFAULT_CLIENT: {"producer_byte_rate": 500.0}})
    assert made.charge(PRODUCE, "u", "a", 0, 0) == 10_000
    made.configure({})
    assert accounts(made) == []


def test_least_recently_used_account_is_removed() -> None:
    made = quotas(DEFAULT_CLIENT, accounts_max=2, producer_byte_rate=1000)
    for client_id in ("a", "b", "a", "c"):
        made.charge(PRODUCE, "u", client_id, 1, 0)
    assert accounts(made) == ["a", "c"]


def test_idle_account_is_removed() -> None:
    made = quotas(DEFAULT_CLIENT, producer_byte_rate=1000)
    made.charge(PRODUCE, "u", "a", 1, 0)
    made.charge(PRODUCE, "u", "b", 1, 5)
    assert accounts(made, IDLE_MS - 1) == ["a", "b"]
    assert accounts(made, IDLE_MS) == ["b"]


def test_throttling_is_counted() -> None:
    made = quotas(DEFAULT_CLIENT, producer_byte_rate=1000)
    for _ in range(3):
        made.charge(PRODUCE, "u", "a", 10_000, 0)
    assert made.report(PRODUCE, 0) == [Report(Account(client_id="a"), 3_000.0, 2, 30_000)]
    assert (made.throttled, made.throttled_ms) == ({PRODUCE: 2}, {PRODUCE: 30_000})


def test_report_is_limited_to_the_longest_throttled_accounts() -> None:
    made = quotas(DEFAULT_CLIENT, accounts_max=1000, producer_byte_rate=1000, controller_mutation_rate=2)
    for n in range(REPORTED_MAX + 50):
        made.charge(PRODUCE, "u", str(n), 10_000 + n, 0)
    assert accounts(made)[:3] == ["149", "148", "147"]
    assert len(accounts(made)) == REPORTED_MAX
    made.mutate("u", "a", 2, 0, strict=True)
    assert made.report(MUTATION, 500) == [Report(Account(client_id="a"), 21.0, 0, 0)]
    assert made.report(REQUEST, 0) == []
