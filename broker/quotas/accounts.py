"""A bounded table of who used how much."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from tierlog.broker.quotas.limits import Account, Limit
from tierlog.metadata.records import QuotaKey

ACCOUNTS_MAX = 10_000
"""Client ids are chosen by clients. At 2 KiB each, 20 MiB; beyond, the one idle for longest begins anew."""

IDLE_MS = 3_600_000
"""An account that was not used for so long is forgotten, as in Kafka."""

M = TypeVar("M")


@dataclass(slots=True, eq=False)
class Use(Generic[M]):
    """What one account used of one kind of quota. `bound` is the one that it was last judged by."""

    meter: M
    bound: float
    used_ms: int
    throttled: int = 0
    throttled_ms: int = 0


class Accounts(Generic[M]):
    """Lines are in the order of their last use: those at the front go first."""

    def __init__(self, new_meter: Callable[[], M], most: int = ACCOUNTS_MAX) -> None:
        self._new_meter = new_meter
        self._most = most
        self._uses: dict[tuple[QuotaKey, Account], Use[M]] = {}

    def __iter__(self) -> Iterator[tuple[QuotaKey, Account, Use[M]]]:
        return ((key, account, use) for (key, account), use in self._uses.items())

    def use(self, key: QuotaKey, limit: Limit, now_ms: int) -> Use[M]:
        """The account of the limit, made if there is none, as used now."""
        line = key, limit.account
        use = self._uses.pop(line, None)
        if use is None:
            self._make_room(now_ms)
            use = Use(self._new_meter(), limit.bound, now_ms)
        self._uses[line] = use
        use.bound, use.used_ms = limit.bound, now_ms
        return use

    def expire(self, now_ms: int) -> None:
        while self._uses:
            line, oldest = next(iter(self._uses.items()))
            if now_ms - oldest.used_ms < IDLE_MS:
                return
            del self._uses[line]

    def clear(self) -> None:
        self._uses.clear()

    def _make_room(self, now_ms: int) -> None:
        self.expire(now_ms)
        if len(self._uses) >= self._most:
            del self._uses[next(iter(self._uses))]
