"""The quotas of a node's clients: what each used, and how long one that used too much has to wait. PURE.

An account is made only for a client that has a quota, and there are at most `ACCOUNTS_MAX` of them. All times
to wait are milliseconds, 0 for none. Called by net and handlers, from one loop; `now_ms` never goes back.
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
"""Nobody waits for longer than it is remembered why."""

AT_MOST_A_WINDOW = frozenset({QuotaKey.REQUEST_PERCENTAGE, QuotaKey.CONNECTION_CREATION_RATE})
"""As in Kafka: what they bound is small, so that a short wait soon makes up for it."""

DEFAULT_WINDOWS = Windows()
Meter = TypeVar("Meter", WindowedRate, TokenBucket)

REPORTED_MAX = 100
"""Accounts of one kind of quota in a report: each makes lines of metrics, and clients choose their names."""


class Report(NamedTuple):
    """`used`: the rate; of controller mutations, the tokens that are left."""

    account: Account
    used: float
    throttled: int
    throttled_ms: int

    def plus(self, other: "Report") -> "Report":
        """Both together, under the name of the first."""
        return Report(
            self.account,
            self.used + other.used,
            self.throttled + other.throttled,
            self.throttled_ms + other.throttled_ms,
        )


class ClientQuotas:
    """`windows` are those of rates, `mutation_windows` those of controller mutations."""

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
        """How often anyone was told to wait, and for how many ms in all."""
        self.throttled_ms: Counter[QuotaKey] = Counter()
        self.configure({})

    def configure(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """What was used before still counts, as long as there are quotas at all."""
        self._limits = Limits(quotas)
        if not quotas:
            self._rates.clear()
            self._buckets.clear()

    def bounds(self, key: QuotaKey) -> bool:
        """Whether anyone has such a quota."""
        return self._limits.bounds(key)

    def charge(self, key: QuotaKey, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Counts what was done; the time to wait, if it was too much."""
        limit = self._limits.of_client(key, user, client_id)
        if limit is None:
            return 0
        use = self._rates.use(key, limit, now_ms)
        use.meter.record(value, now_ms)
        return self._told(key, use, self._throttle_ms(key, use, now_ms))

    def charge_unless_over(self, key: QuotaKey, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Counts what is about to be done; if it is too much, it must not be done, and is not counted."""
        return self._unless_over(key, self._limits.of_client(key, user, client_id), value, now_ms)

    def connect(self, ip: str, now_ms: int) -> int:
        """Counts a connection from an address, unless it is one too many (KIP-612)."""
        key = QuotaKey.CONNECTION_CREATION_RATE
        return self._unless_over(key, self._limits.of_ip(key, ip), 1.0, now_ms)

    def note(self, key: QuotaKey, user: str, client_id: str, value: float, now_ms: int) -> None:
        """Counts what the next charge is judged with."""
        limit = self._limits.of_client(key, user, client_id)
        if limit is not None:
            self._rates.use(key, limit, now_ms).meter.record(value, now_ms)

    def mutate(
        self, user: str, client_id: str, partitions: int, now_ms: int, *, strict: bool
    ) -> tuple[bool, int]:
        """Whether so many partitions may be created or deleted, and the time to wait (KIP-599).

        As long as the bucket is not below zero, a request may take it there. One that is not `strict` may
        always, as its version has no error for it; it waits instead.
        """
        key = QuotaKey.CONTROLLER_MUTATION_RATE
        limit = self._limits.of_client(key, user, client_id)
        if limit is None:
            return True, 0
        use = self._buckets.use(key, limit, now_ms)
        bucket, bound = use.meter, limit.bound
        throttle_ms = bucket.throttle_ms(bound, now_ms)
        if strict and throttle_ms:
            return False, self._told(key, use, min(throttle_ms, THROTTLE_MAX_MS))
        bucket.take(partitions, bound, now_ms)
        if strict:
            return True, 0
        return True, self._told(key, use, min(bucket.throttle_ms(bound, now_ms), THROTTLE_MAX_MS))

    def most_at_once(self, key: QuotaKey, user: str, client_id: str) -> int | None:
        """What a client may do if it did nothing lately; more would always be too much. None: no bound."""
        limit = self._limits.of_client(key, user, client_id)
        return None if limit is None else int(limit.bound * self._windows.least_ms / 1000)

    def report(self, key: QuotaKey, now_ms: int) -> list[Report]:
        """Of those who had to wait for longest."""
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
            throttle_ms = 0  # or one that is too much by itself would be for ever
        if not throttle_ms:
            use.meter.record(value, now_ms)
        return self._told(key, use, throttle_ms)

    def _told(self, key: QuotaKey, use: Use[Meter], throttle_ms: int) -> int:
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
    """Judged by the time alone: a rate is not worked out of all, but of those that are shown."""
    return heapq.nlargest(REPORTED_MAX, uses.items(), key=lambda row: row[1].throttled_ms)


def windows_of(settings: NodeSettings) -> tuple[Windows, Windows]:
    """Of the quotas of clients, and of those of changes to the metadata."""
    return (
        Windows(settings.quota_window_num, settings.quota_window_size_seconds * 1000),
        Windows(settings.controller_quota_window_num, settings.controller_quota_window_size_seconds * 1000),
    )
