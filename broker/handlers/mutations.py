"""Controller mutations: partitions that a request creates or deletes are paid for by its client (KIP-599).

Kafka's controller keeps the bill; here it is the broker that the request came to.
"""

from tierlog.broker.handlers.context import RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.metadata.records import QuotaKey
from tierlog.protocol.errors import ErrorCode

MESSAGE = "The throttling quota has been exceeded."
REFUSED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class Mutations:
    """Of one request. Versions from `strict_from` on know an error for what is too much; older ones wait."""

    def __init__(self, deps: Dependencies, context: RequestContext, strict_from: int) -> None:
        self._deps = deps
        self._context = context
        self._strict = context.version >= strict_from
        self.throttle_time_ms = 0

    @property
    def are_bounded(self) -> bool:
        """Whether anyone's are."""
        return self._deps.quotas.bounds(QuotaKey.CONTROLLER_MUTATION_RATE)

    def allow(self, partitions: int) -> bool:
        """Pays for so many; False: they must not be touched."""
        context = self._context
        allowed, throttle_ms = self._deps.quotas.mutate(
            context.connection.user,
            context.client_id or "",
            partitions,
            self._deps.clock.monotonic_ms(),
            strict=self._strict,
        )
        self.throttle_time_ms = max(self.throttle_time_ms, throttle_ms)
        return allowed
