"""Diverged segments: removes manifest entries that have other records than the log of an elected replica.

After an unclean election the replica leads only once the quorum has committed the removal
(docs/adr/0027-unclean-elections-of-tiered-partitions.md). A failed request is repeated until then, until
another leader is elected, or until the local log no longer reaches back to those entries; the replica manager
then decides again. Called by app.py.
"""

import asyncio

import structlog

from tierlog.base.tasks import TaskGroup
from tierlog.broker.replication.replica_events import RemoteLogDiverges, ReplicaEvent
from tierlog.metadata.controller.commands import RemoveDiverged
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.protocol.errors import ErrorCode
from tierlog.tiering.lineage import find_divergence

_log = structlog.get_logger("tierlog.tiering")

FIRST_BACKOFF_S = 0.2
BACKOFF_MAX_S = 5.0


class DivergedSegments:
    def __init__(self, broker_id: int, metadata: MetadataClient, tasks: TaskGroup) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._tasks = tasks
        self._removing: set[RemoteLogDiverges] = set()

    def on_replica_event(self, event: ReplicaEvent) -> None:
        if isinstance(event, RemoteLogDiverges) and event not in self._removing:
            self._removing.add(event)
            self._tasks.spawn(f"removal of diverged segments of {event.replica.name}", self._remove(event))

    async def _remove(self, event: RemoteLogDiverges) -> None:
        backoff_s = FIRST_BACKOFF_S
        try:
            while self._is_elected(event) and self._is_covered(event):
                error = await self._submit(event)
                if error is None:
                    return
                _log.error(
                    "tiering.diverged",
                    partition=str(event.replica.name),
                    error=error,
                    retry_s=backoff_s,
                )
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)
        finally:
            self._removing.discard(event)

    def _is_elected(self, event: RemoteLogDiverges) -> bool:
        """Whether this broker is still the leader of that epoch, and its replica does not lead yet."""
        partition = self._metadata.image.partition(*event.replica.id)
        if partition is None or event.replica.is_elected:
            return False
        return (partition.leader, partition.leader_epoch) == (self._broker_id, event.leader_epoch)

    def _is_covered(self, event: RemoteLogDiverges) -> bool:
        """Whether the local log still has what the removal leaves to it."""
        remote, log = self._metadata.image.remote_partition(*event.replica.id), event.replica.log
        found = find_divergence(remote, log.epochs, log.local_log_start_offset, log.log_end_offset)
        return found is not None and found.is_covered and found.first_offset == event.from_offset

    async def _submit(self, event: RemoteLogDiverges) -> str | None:
        """Returns why the removal was not committed; None if it was."""
        command = RemoveDiverged(
            topic_id=event.replica.topic_id,
            partition=event.replica.name.partition,
            broker_id=self._broker_id,
            leader_epoch=event.leader_epoch,
            from_offset=event.from_offset,
        )
        try:
            reply = await self._metadata.submit(command)
        except MetadataUnavailable as failure:
            return str(failure)
        return None if reply.error is ErrorCode.NONE else reply.message or reply.error.name
