"""AlterPartition manager: sends proposed changes of in-sync sets to the controller (KIP-497).

One command at a time carries the proposals of many partitions. A fetch which shows that a follower has caught
up or has lost records submits its partition at once. Followers that do not fetch are found by a check of all
partitions, twice per `replica.lag.time.max.ms`. While the outcome of a proposal is unknown, the larger of
both sets counts, and the partition is submitted again. Called by the Fetch handler; owned by app.py.
"""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.broker.replication.core.in_sync import IsrProposal
from tierlog.broker.replication.partition_roles import live_brokers
from tierlog.broker.replication.replica import Replica
from tierlog.config.node import NodeSettings
from tierlog.metadata.controller.commands import AlterPartitions, InSync, IsrChange
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.protocol.errors import ErrorCode

RETRY_S = 0.2
COMMAND_PARTITIONS_MAX = 5_000
CHECKED_PER_TURN = 200
"""Partitions checked in one turn of the event loop."""

_log = structlog.get_logger("tierlog.isr")


class AlterPartitionManager:
    def __init__(
        self,
        settings: NodeSettings,
        metadata: MetadataClient,
        replicas: Iterable[Replica],
        clock: Clock,
        tasks: TaskGroup,
        *,
        broker_epoch: Callable[[], int],
    ) -> None:
        """`replicas`: each iteration yields the current ones."""
        self._settings = settings
        self._metadata = metadata
        self._replicas = replicas
        self._clock = clock
        self._tasks = tasks
        self._broker_epoch = broker_epoch
        self.shrinks = self.expands = 0
        """In-sync sets that the controller has made smaller, or larger, on proposals of this broker."""
        self._due: dict[Replica, None] = {}
        self._something_due = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._running = [
            self._tasks.spawn("in-sync sets", self._send_all()),
            self._tasks.spawn("lag of followers", self._check_all()),
        ]

    async def stop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def submit(self, replica: Replica) -> None:
        """Propose a new in-sync set soon, if the replica's set has to change."""
        self._due[replica] = None
        self._something_due.set()

    async def _check_all(self) -> None:
        while True:
            await asyncio.sleep(self._settings.replica_lag_time_max_ms / 2000)
            for number, replica in enumerate(self._replicas):
                if replica.is_leader and replica.followers:
                    self.submit(replica)
                if number % CHECKED_PER_TURN == 0:
                    await asyncio.sleep(0)

    async def _send_all(self) -> None:
        while True:
            await self._something_due.wait()
            self._something_due.clear()
            while proposals := self._propose():
                if not await self._send(proposals):
                    await asyncio.sleep(RETRY_S)

    def _propose(self) -> list[tuple[Replica, IsrProposal]]:
        live = live_brokers(self._metadata.image)
        now_ms = self._clock.monotonic_ms()
        proposals: list[tuple[Replica, IsrProposal]] = []
        while self._due and len(proposals) < COMMAND_PARTITIONS_MAX:
            replica = next(iter(self._due))
            del self._due[replica]
            proposal = replica.as_leader.isr_proposal(now_ms, self._settings.replica_lag_time_max_ms, live)
            if proposal is not None:
                proposals.append((replica, proposal))
        return proposals

    async def _send(self, proposals: list[tuple[Replica, IsrProposal]]) -> bool:
        """Returns False if the outcome is unknown; the partitions are then due again."""
        command = AlterPartitions(
            broker_id=self._settings.node_id,
            broker_epoch=self._broker_epoch(),
            changes=tuple(_change(replica, proposal) for replica, proposal in proposals),
        )
        before = [len(replica.in_sync) for replica, _ in proposals]
        try:
            reply = await self._metadata.submit(command)
        except MetadataUnavailable as failure:
            _log.warning("isr.unanswered", what="in-sync sets", error=str(failure))
            self._failed(proposals)
            return False
        if reply.error is not ErrorCode.NONE or len(reply.partitions) != len(proposals):
            # The whole command was rejected: the controller knows a newer registration of this broker.
            _log.warning("isr.rejected", error=reply.error.name, why=reply.message)
            self._failed(proposals)
            return False
        for (replica, proposal), size, outcome in zip(proposals, before, reply.partitions, strict=True):
            if outcome.error is ErrorCode.NONE and outcome.partition_epoch > proposal.partition_epoch:
                self.shrinks += len(proposal.in_sync) < size
                self.expands += len(proposal.in_sync) > size
            replica.as_leader.on_isr_response(
                proposal, outcome.error, outcome.leader_epoch, outcome.partition_epoch
            )
        return True

    def _failed(self, proposals: list[tuple[Replica, IsrProposal]]) -> None:
        for replica, proposal in proposals:
            replica.as_leader.on_isr_failure(proposal)
            self._due[replica] = None


def _change(replica: Replica, proposal: IsrProposal) -> IsrChange:
    return IsrChange(
        topic_id=replica.topic_id,
        partition=replica.name.partition,
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch,
        in_sync=tuple(InSync(broker_id, epoch) for broker_id, epoch in proposal.in_sync),
    )
