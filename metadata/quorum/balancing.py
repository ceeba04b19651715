"""Automatic preferred elections: the leader of the quorum looks, each interval, whether brokers lead what
they were meant to lead.

Whom to elect is for `controller.balance` to say. Leadership stays where a broker that went away left it,
until this puts it back: otherwise a cluster would lean on fewer brokers with each restart. A node that has
just taken over waits a whole interval first: after a failure brokers are still coming back. Called by the
node with each tick.
"""

import asyncio
from dataclasses import dataclass

import structlog

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.controller.balance import IMBALANCE_PERCENT, MAX_ELECTIONS, rebalance
from tierlog.metadata.controller.commands import LeadersElected
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
        self._term = -1  # in which `due` was set
        self._due_ms = 0
        self._looking: asyncio.Task[None] | None = None

    def tick(self, leadership: Leadership) -> None:
        if self._settings is None or leadership.draft is None or self._looking is not None:
            return
        now_ms = self._clock.monotonic_ms()
        if self._term != leadership.term:
            self._term, self._due_ms = leadership.term, now_ms + self._settings.interval_ms
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + self._settings.interval_ms
            looking = self._look(leadership, self._settings.percent)
            self._looking = self._tasks.spawn("metadata balances leaders", looking)

    async def _look(self, leadership: Leadership, percent: int) -> None:
        """In a thread: an image never changes, and may hold 100,000 partitions."""
        try:
            election = await asyncio.to_thread(rebalance, self._publisher.image, percent)
            if election is None or election.partitions is None:
                return
            reply = await leadership.commit(election)
            outcomes = reply.partitions if isinstance(reply, LeadersElected) else ()
            elected = sum(one.error is ErrorCode.NONE for one in outcomes)
            if elected:  # not so if things have changed since that image
                _log.info("elected preferred leaders", partitions=elected)
            if elected and len(election.partitions) == MAX_ELECTIONS:
                self._due_ms = self._clock.monotonic_ms()  # there are more
        except MetadataUnavailable:
            return  # the next interval, or the next leader, finds the same
        finally:
            self._looking = None
