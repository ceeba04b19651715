"""Limits: which quota applies to a client, and which clients share it (KIP-55, KIP-546, KIP-612)."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tierlog.metadata.records import CLIENT_ID, IP, QUOTA_NAME_MAX, USER, QuotaEntity, QuotaKey

FOUND_MAX = 10_000
"""Clients whose limit is cached; beyond it the cache is cleared, since clients choose their ids."""


class Account(NamedTuple):
    """Clients that share a limit. None: any."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


OVERLONG = f"(longer than {QUOTA_NAME_MAX} characters)"
"""All overlong client ids share this account."""


def account_name(client_id: str) -> str:
    """The name of a client's account, which is bounded since it outlives the request."""
    return client_id if len(client_id) <= QUOTA_NAME_MAX else OVERLONG


class Limit(NamedTuple):
    bound: float
    account: Account


class Limits:
    """All configured quotas by quota key."""

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self._bounds: dict[str, dict[QuotaEntity, float]] = {}
        for entity, values in quotas.items():
            for key, bound in values.items():
                self._bounds.setdefault(key, {})[entity] = bound
        self._found: dict[tuple[QuotaKey, str, str], Limit | None] = {}

    def bounds(self, key: QuotaKey) -> bool:
        """Whether any such quota is configured."""
        return key in self._bounds

    def of_client(self, key: QuotaKey, user: str, client_id: str) -> Limit | None:
        """The most specific limit; an infinite one exempts from less specific ones."""
        client_id = account_name(client_id)
        line = key, user, client_id
        try:
            return self._found[line]
        except KeyError:
            if len(self._found) >= FOUND_MAX:
                self._found.clear()
            found = self._found[line] = self._first(key, _of_client(user, client_id))
            return found

    def of_ip(self, key: QuotaKey, ip: str) -> Limit | None:
        account = Account(ip=ip)
        return self._first(key, iter([(((IP, ip),), account), (((IP, None),), account)]))

    def _first(self, key: QuotaKey, candidates: Iterator[tuple[QuotaEntity, Account]]) -> Limit | None:
        bounds = self._bounds.get(key)
        if bounds is None:
            return None
        for entity, account in candidates:
            bound = bounds.get(entity)
            if bound is not None:
                return None if math.isinf(bound) else Limit(bound, account)
        return None


def _of_client(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, Account]]:
    """Quotas that may apply, in Kafka's order. All client ids of a user share a quota of that user. A default
    quota applies to each pair, user or client id separately.
    """
    pair = Account(user=user, client_id=client_id)
    yield ((CLIENT_ID, client_id), (USER, user)), pair
    yield ((CLIENT_ID, None), (USER, user)), pair
    yield ((USER, user),), Account(user=user)
    yield ((CLIENT_ID, client_id), (USER, None)), pair
    yield ((CLIENT_ID, None), (USER, None)), pair
    yield ((USER, None),), Account(user=user)
    yield ((CLIENT_ID, client_id),), Account(client_id=client_id)
    yield ((CLIENT_ID, None),), Account(client_id=client_id)
