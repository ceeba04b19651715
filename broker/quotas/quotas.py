"""Client quotas of a node: count what each client uses and compute its throttle time. PURE.

Only clients with a quota have an account, at most `ACCOUNTS_MAX` of them. Throttle times are in milliseconds,
0 for none. Called by net and handlers, from one event loop; `now_ms` never goes back.
"""

import heapq
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from tierlog.broker.quotas.accounts import ACCOUNTS_MAX, IDLE_MS, Accounts, Use
from tierlog.broker.quotas.limits import Account, Limit, Limits
from tierlog.broker.quotas.rates import TokenBucket, WindowedRate, Windows
from tierlog.config.node import NodeSettings
from tierlog.metadata.records import QuotaEntity, QuotaKey

THROTTLE_MAX_MS = IDLE_MS
"""Maximum throttle time: an idle account is removed after this time."""

AT_MOST_A_WINDOW = frozenset({QuotaKey.REQUEST_PERCENTAGE, QuotaKey.CONNECTION_CREATION_RATE})
"""Quotas with a throttle time of at most one window, as in Kafka."""

DEFAULT_WINDOWS = Windows()
Meter = TypeVar("Meter", WindowedRate, TokenBucket)

REPORTED_MAX = 100
"""Accounts of one quota in a report: each adds metrics, and clients choose their names."""


class Report(NamedTuple):
    """`used`: the rate, or for controller mutations the tokens left."""

    account: Account
    used: float
    throttled: int
    throttled_ms: int

    def plus(self, other: "Report") -> "Report":
        """The sum of both, for the account of the first."""
        return Report(
            self.account,
            self.used + other.used,
            self.throttled + other.throttled,
            self.throttled_ms + other.throttled_ms,
        )


class ClientQuotas:
    """`windows`: of rates. `mutation_windows`: of controller mutations."""

    def __init__(
        self,
        windows: Windows = DEFAULT_WINDOWS,
        mutation_windows: Windows = DEFAULT_WINDOWS,
        accounts_max: int = ACCOUNTS_MAX,
    ) -> None:
        self._windows = windows
        self._rates = Accounts(lambda: WindowedRate(windows), accounts_max)
        self._buckets = Accounts(lambda: TokenBucket(mutation_windows), accounts_max)
        self.throttled: Counter[QuotaKey] = Counter()
        """Number of throttled requests."""
        self.throttled_ms: Counter[QuotaKey] = Counter()
        """Total throttle time in ms."""
        self.configure({})

    def configure(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Replace the quotas. Past use still counts unless all quotas are removed."""
        self._limits = Limits(quotas)
        if not quotas:
            self._rates.clear()
            self._buckets.clear()

    def has_quota(self, key: QuotaKey) -> bool:
        """Whether any client has such a quota."""
        return self._limits.has_quota(key)

    def charge(self, key: QuotaKey, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Count a value. Returns the throttle time if the rate is above the quota."""
        limit = self._limits.of_client(key, user, client_id)
        if limit is None:
            return 0
        use = self._rates.use(key, limit, now_ms)
        use.meter.record(value, now_ms)
        return self._count_throttle(key, use, self._throttle_ms(key, use, now_ms))

    def charge_unless_over(self, key: QuotaKey, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Count a value unless it would exceed the quota. Returns the throttle time if it was not counted
        (the caller must not use it), else 0."""
        return self._unless_over(key, self._limits.of_client(key, user, client_id), value, now_ms)

    def connect(self, ip: str, now_ms: int) -> int:
        """Count a connection from an address unless it exceeds the quota (KIP-612)."""
        key = QuotaKey.CONNECTION_CREATION_RATE
        return self._unless_over(key, self._limits.of_ip(key, ip), 1.0, now_ms)

    def record(self, key: QuotaKey, user: str, client_id: str, value: float, now_ms: int) -> None:
        """Count a value for the next charge."""
        limit = self._limits.of_client(key, user, client_id)
        if limit is not None:
            self._rates.use(key, limit, now_ms).meter.record(value, now_ms)

    def mutate(
        self, user: str, client_id: str, partitions: int, now_ms: int, *, strict: bool
    ) -> tuple[bool, int]:
        """Whether `partitions` may be created or deleted, and the throttle time (KIP-599).

        A request may take the bucket below zero, but not start below zero. A request that is not `strict`
        always may, since its version has no error for it; it is only throttled.
        """
        key = QuotaKey.CONTROLLER_MUTATION_RATE
        limit = self._limits.of_client(key, user, client_id)
        if limit is None:
            return True, 0
        use = self._buckets.use(key, limit, now_ms)
        bucket, bound = use.meter, limit.bound
        throttle_ms = bucket.throttle_ms(bound, now_ms)
        if strict and throttle_ms:
            return False, self._count_throttle(key, use, min(throttle_ms, THROTTLE_MAX_MS))
        bucket.take(partitions, bound, now_ms)
        if strict:
            return True, 0
        return True, self._count_throttle(key, use, min(bucket.throttle_ms(bound, now_ms), THROTTLE_MAX_MS))

    def max_burst(self, key: QuotaKey, user: str, client_id: str) -> int | None:
        """The burst of an idle client; a larger value always exceeds the quota. None without a quota."""
        limit = self._limits.of_client(key, user, client_id)
        return None if limit is None else int(limit.bound * self._windows.min_span_ms / 1000)

    def report(self, key: QuotaKey, now_ms: int) -> list[Report]:
        """The accounts with the longest throttle time."""
        if key is QuotaKey.CONTROLLER_MUTATION_RATE:
            self._buckets.expire(now_ms)
            return [
                Report(account, use.meter.left(use.bound, now_ms), use.throttled, use.throttled_ms)
                for account, use in _waited_longest(self._buckets.of(key))
            ]
        self._rates.expire(now_ms)
        return [
            Report(account, use.meter.per_second(now_ms), use.throttled, use.throttled_ms)
            for account, use in _waited_longest(self._rates.of(key))
        ]

    def _unless_over(self, key: QuotaKey, limit: Limit | None, value: float, now_ms: int) -> int:
        if limit is None:
            return 0
        use = self._rates.use(key, limit, now_ms)
        throttle_ms = self._throttle_ms(key, use, now_ms, value)
        if throttle_ms and not use.meter.per_second(now_ms):
            throttle_ms = 0  # else a value above the quota would never be allowed
        if not throttle_ms:
            use.meter.record(value, now_ms)
        return self._count_throttle(key, use, throttle_ms)

    def _count_throttle(self, key: QuotaKey, use: Use[Meter], throttle_ms: int) -> int:
        if throttle_ms:
            use.throttled += 1
            use.throttled_ms += throttle_ms
            self.throttled[key] += 1
            self.throttled_ms[key] += throttle_ms
        return throttle_ms

    def _throttle_ms(self, key: QuotaKey, use: Use[WindowedRate], now_ms: int, more: float = 0.0) -> int:
        most = self._windows.size_ms if key in AT_MOST_A_WINDOW else THROTTLE_MAX_MS
        return min(use.meter.throttle_ms(use.bound, now_ms, more), most)


def _waited_longest(uses: Mapping[Account, Use[Meter]]) -> list[tuple[Account, Use[Meter]]]:
    """Accounts with the longest throttle times, which are known without computing the rates of all."""
    return heapq.nlargest(REPORTED_MAX, uses.items(), key=lambda row: row[1].throttled_ms)


def windows_of(settings: NodeSettings) -> tuple[Windows, Windows]:
    """Windows of client quotas, and of controller mutations."""
    return (
        Windows(settings.quota_window_num, settings.quota_window_size_seconds * 1000),
        Windows(settings.controller_quota_window_num, settings.controller_quota_window_size_seconds * 1000),
    )
