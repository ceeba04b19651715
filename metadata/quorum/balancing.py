"""Leader balancer: the quorum's leader elects preferred leaders at a fixed interval.

`controller.balance` selects the partitions. Without this, leadership stays where the failure of a broker left
it, so each restart would concentrate leaderships on fewer brokers. A new leader waits one full interval
first, because brokers are still coming back after a failure. Called by the node with each tick.
"""

import asyncio
from dataclasses import dataclass

import structlog

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.controller.balance import IMBALANCE_PERCENT, MAX_ELECTIONS, rebalance
from tierlog.metadata.quorum.leadership import Leadership
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.publisher import MetadataPublisher
from tierlog.protocol.errors import ErrorCode

_log = structlog.get_logger("tierlog.metadata")


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSettings:
    """leader.imbalance.check.interval.seconds, leader.imbalance.per.broker.percentage."""

    interval_ms: int
    percent: int = IMBALANCE_PERCENT


class LeaderBalancer:
    def __init__(
        self, settings: BalanceSettings | None, publisher: MetadataPublisher, clock: Clock, tasks: TaskGroup
    ) -> None:
        """`settings`: None without auto.leader.rebalance.enable."""
        self._settings, self._publisher, self._clock, self._tasks = settings, publisher, clock, tasks
        self._term = -1  # in which `_due_ms` was set
        self._due_ms = 0
        self._running: asyncio.Task[None] | None = None

    def tick(self, leadership: Leadership) -> None:
        if self._settings is None or leadership.draft is None or self._running is not None:
            return
        now_ms = self._clock.monotonic_ms()
        if self._term != leadership.term:
            self._term, self._due_ms = leadership.term, now_ms + self._settings.interval_ms
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + self._settings.interval_ms
            run = self._rebalance(leadership, self._settings.percent)
            self._running = self._tasks.spawn("metadata balances leaders", run)

    async def _rebalance(self, leadership: Leadership, percent: int) -> None:
        """Selects the partitions in a thread: the image is immutable and may hold 100,000 of them."""
        try:
            election = await asyncio.to_thread(rebalance, self._publisher.image, percent)
            if election is None or election.partitions is None:
                return
            reply = await leadership.commit(election)
            elected = sum(one.error is ErrorCode.NONE for one in reply.partitions)
            if elected:  # none if the metadata has changed since that image
                _log.info("metadata.leaders.balanced", partitions=elected)
            if elected and len(election.partitions) == MAX_ELECTIONS:
                self._due_ms = self._clock.monotonic_ms()  # there are more
        except MetadataUnavailable:
            return  # retried after the next interval, or by the next leader
        finally:
            self._running = None
