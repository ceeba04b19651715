"""Accounts: bounded table of what each client used."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tierlog.broker.quotas.limits import Account, Limit
from tierlog.metadata.records import QuotaKey

ACCOUNTS_MAX = 10_000
"""Clients choose their ids. At 2 KiB and a bounded name each, about 20 MiB; beyond it the longest idle
account is removed."""

IDLE_MS = 3_600_000
"""An account that is idle for this long is removed, as in Kafka."""

M = TypeVar("M")


@dataclass(slots=True, eq=False)
class Use(Generic[M]):
    """The use of one quota by one account. `bound`: the limit at the last use."""

    meter: M
    bound: float
    used_ms: int
    throttled: int = 0
    throttled_ms: int = 0


class Accounts(Generic[M]):
    """Accounts of all quotas in the order of their last use; the first are removed first."""

    def __init__(self, new_meter: Callable[[], M], most: int = ACCOUNTS_MAX) -> None:
        self._new_meter = new_meter
        self._most = most
        self._uses: OrderedDict[tuple[QuotaKey, Account], Use[M]] = OrderedDict()
        self._by_key: dict[QuotaKey, dict[Account, Use[M]]] = {key: {} for key in QuotaKey}

    def of(self, key: QuotaKey) -> Mapping[Account, Use[M]]:
        """All accounts of one quota."""
        return self._by_key[key]

    def use(self, key: QuotaKey, limit: Limit, now_ms: int) -> Use[M]:
        """The account of the limit, created if there is none, marked as used now."""
        line = key, limit.account
        use = self._uses.get(line)
        if use is None:
            self._forget_old(now_ms)
            use = Use(self._new_meter(), limit.bound, now_ms)
            self._uses[line] = self._by_key[key][limit.account] = use
        else:
            self._uses.move_to_end(line)
        use.bound, use.used_ms = limit.bound, now_ms
        return use

    def expire(self, now_ms: int) -> None:
        while self._uses and now_ms - next(iter(self._uses.values())).used_ms >= IDLE_MS:
            self._forget_first()

    def clear(self) -> None:
        self._uses.clear()
        for uses in self._by_key.values():
            uses.clear()

    def _forget_old(self, now_ms: int) -> None:
        self.expire(now_ms)
        if len(self._uses) >= self._most:
            self._forget_first()

    def _forget_first(self) -> None:
        (key, account), _ = self._uses.popitem(last=False)
        del self._by_key[key][account]
