"""Quota metrics: one sample for each pair of labels, and a pause before each quota."""

from manual_clock import ManualClock

from tierlog.broker.gateway.exposition import PAUSE
from tierlog.broker.gateway.metrics import quota_families
from tierlog.broker.quotas.quotas import ClientQuotas
from tierlog.metadata.records import QuotaKey

KEY = QuotaKey.PRODUCER_BYTE_RATE
OF_USER = (("user", "ada"),)
OF_EACH_CLIENT = (("client-id", None), ("user", "ada"))


def test_accounts_with_the_same_labels_are_added_up() -> None:
    quotas, clock = ClientQuotas(), ManualClock()
    for entity in (OF_USER, OF_EACH_CLIENT):
        quotas.configure({entity: {KEY: 1000.0}})
        assert quotas.charge(KEY, "ada", "", 12_000, clock.now) == 2_000
    assert len(quotas.report(KEY, clock.now)) == 2
    shown = {name: list(samples) for name, samples in quota_families(quotas, clock)}
    assert shown["kafka_server_produce_byte_rate"] == [(("ada", ""), 2_400.0)]
    assert shown["kafka_server_produce_throttle_time"] == [(("ada", ""), 2_000.0)]


def test_quota_metrics_yield_between_quotas_and_read_the_clock_again() -> None:
    quotas, clock = ClientQuotas(), ManualClock()
    quotas.configure({OF_USER: {KEY: 1000.0}})
    quotas.charge(KEY, "ada", "", 12_000, clock.now)
    families = list(quota_families(quotas, clock))
    shown = [bool(name) for name, _ in families[2:]]
    assert shown == [False, True, True] * 4
    assert families.count(PAUSE) == 4
    lazily = quota_families(quotas, clock)
    while next(lazily) is not PAUSE:
        pass
    clock.now += 60_000  # all of it was long ago, when the pause is over
    assert next(lazily) == ("kafka_server_produce_byte_rate", [(("ada", ""), 0.0)])
