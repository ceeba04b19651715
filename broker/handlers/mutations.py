"""Controller mutation quota (KIP-599): counts the partitions that a client creates and deletes.

Kafka's controller counts them; here the broker that received the request does.
"""

from tierlog.broker.handlers.context import RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.metadata.records import QuotaKey
from tierlog.protocol.errors import ErrorCode

OVER_QUOTA = ErrorCode.THROTTLING_QUOTA_EXCEEDED
OVER_QUOTA_MESSAGE = "The throttling quota has been exceeded."


class MutationQuota:
    """The quota for one request. From version `strict_from` on, a request over it fails; older ones are only
    throttled."""

    def __init__(self, deps: Dependencies, context: RequestContext, strict_from: int) -> None:
        self._deps = deps
        self._context = context
        self._strict = context.version >= strict_from
        self.throttle_time_ms = 0

    @property
    def is_set(self) -> bool:
        """Whether a controller mutation quota is set for any client."""
        return self._deps.quotas.has_quota(QuotaKey.CONTROLLER_MUTATION_RATE)

    def allow(self, partitions: int) -> bool:
        """Count partitions to create or delete. Returns False if the quota forbids it."""
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
