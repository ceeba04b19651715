"""Limits: which quota applies to a client, and which clients share it (KIP-55, KIP-546, KIP-612)."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tierlog.metadata.records import CLIENT_ID, IP, QUOTA_NAME_MAX, USER, QuotaEntity, QuotaKey

CACHED_LIMITS_MAX = 10_000
"""Maximum number of cached limits. At this number the cache is cleared, since clients choose their ids."""


class Account(NamedTuple):
    """The clients that share a limit. A field that is None matches any value."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


OVERLONG_NAME = f"(longer than {QUOTA_NAME_MAX} characters)"
"""Client id of the account that all overlong client ids share."""


def account_name(client_id: str) -> str:
    """The name of a client's account, which is bounded since it outlives the request."""
    return client_id if len(client_id) <= QUOTA_NAME_MAX else OVERLONG_NAME


class Limit(NamedTuple):
    """The quota that applies to a client. The unit of `bound` depends on the quota key."""

    bound: float
    account: Account


class Limits:
    """All configured quotas by quota key."""

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self._bounds: dict[str, dict[QuotaEntity, float]] = {}
        for entity, values in quotas.items():
            for key, bound in values.items():
                self._bounds.setdefault(key, {})[entity] = bound
        self._cache: dict[tuple[QuotaKey, str, str], Limit | None] = {}

    def has_quota(self, key: QuotaKey) -> bool:
        """Whether a quota with this key is configured for any entity."""
        return key in self._bounds

    def of_client(self, key: QuotaKey, user: str, client_id: str) -> Limit | None:
        """The most specific quota that applies. None if there is none, or if it is infinite: an infinite
        quota exempts the client from less specific ones."""
        client_id = account_name(client_id)
        cache_key = key, user, client_id
        try:
            return self._cache[cache_key]
        except KeyError:
            if len(self._cache) >= CACHED_LIMITS_MAX:
                self._cache.clear()
            found = self._cache[cache_key] = self._first(key, _of_client(user, client_id))
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
    """Entities whose quota may apply, in Kafka's order, and the account of each.

    All client ids of a user share the quota of that user. A default quota applies to each pair, user or
    client id separately.
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
