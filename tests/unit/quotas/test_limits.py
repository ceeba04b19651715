"""Which quota applies, in Kafka's order, and which clients share it."""

import math

import pytest

from tierlog.broker.quotas.limits import CACHED_LIMITS_MAX, OVERLONG_NAME, Account, Limit, Limits
from tierlog.metadata.records import QUOTA_NAME_MAX, QuotaKey

KEY = QuotaKey.PRODUCER_BYTE_RATE
PAIR = Account(user="ada", client_id="app")
MOST_SPECIFIC_FIRST = [
    ((("client-id", "app"), ("user", "ada")), PAIR),
    ((("client-id", None), ("user", "ada")), PAIR),
    ((("user", "ada"),), Account(user="ada")),
    ((("client-id", "app"), ("user", None)), PAIR),
    ((("client-id", None), ("user", None)), PAIR),
    ((("user", None),), Account(user="ada")),
    ((("client-id", "app"),), Account(client_id="app")),
    ((("client-id", None),), Account(client_id="app")),
]


@pytest.mark.parametrize("first", range(len(MOST_SPECIFIC_FIRST)))
def test_most_specific_quota_applies(first: int) -> None:
    limits = Limits(
        {entity: {KEY: float(n)} for n, (entity, _) in enumerate(MOST_SPECIFIC_FIRST) if n >= first}
    )
    assert limits.of_client(KEY, "ada", "app") == Limit(float(first), MOST_SPECIFIC_FIRST[first][1])


def test_only_quotas_of_the_same_key_apply() -> None:
    limits = Limits({(("user", "ada"),): {"consumer_byte_rate": 1.0}, (("user", None),): {KEY: 2.0}})
    assert limits.of_client(KEY, "ada", "app") == Limit(2.0, Account(user="ada"))
    assert limits.has_quota(KEY) and not limits.has_quota(QuotaKey.REQUEST_PERCENTAGE)


def test_other_clients_have_no_limit() -> None:
    limits = Limits({(("user", "ada"),): {KEY: 1.0}, (("client-id", "app"),): {KEY: 1.0}})
    assert limits.of_client(KEY, "bob", "other") is None


def test_clients_beyond_the_cache_size_get_the_right_limit() -> None:
    limits = Limits({(("client-id", None),): {KEY: 1.0}, (("client-id", "7"),): {KEY: 7.0}})
    for n in (*range(CACHED_LIMITS_MAX + 2), 7):
        assert limits.of_client(KEY, "ada", str(n)) == Limit(
            7.0 if n == 7 else 1.0, Account(client_id=str(n))
        )


def test_client_ids_that_are_too_long_share_an_account() -> None:
    limits = Limits({(("client-id", None),): {KEY: 1.0}})
    longest = "x" * QUOTA_NAME_MAX
    assert limits.of_client(KEY, "ada", longest) == Limit(1.0, Account(client_id=longest))
    for name in (longest + "x", "y" * 32_000):
        assert limits.of_client(KEY, "ada", name) == Limit(1.0, Account(client_id=OVERLONG_NAME))


def test_infinite_quota_exempts_from_less_specific_quotas() -> None:
    limits = Limits({(("user", "ada"),): {KEY: math.inf}, (("user", None),): {KEY: 1.0}})
    assert limits.of_client(KEY, "ada", "app") is None
    assert limits.of_client(KEY, "bob", "app") is not None


def test_ip_address_has_its_own_quota_or_the_default() -> None:
    key = QuotaKey.CONNECTION_CREATION_RATE
    limits = Limits({(("ip", "10.0.0.1"),): {key: 5.0}, (("ip", None),): {key: 9.0}})
    assert limits.of_ip(key, "10.0.0.1") == Limit(5.0, Account(ip="10.0.0.1"))
    assert limits.of_ip(key, "10.0.0.2") == Limit(9.0, Account(ip="10.0.0.2"))
