"""Tells the controller which replicas this broker cannot serve, so that others lead them (KIP-858).

What failed is told until the image says it: the difference between the image and what is offline here is
found anew each time, so nothing is forgotten while no quorum answers, or if the broker has to register again.
What was nowhere to be found at the start is told once, before anything is made in its place: of an empty log
that is there nobody knows what it has lost. Both before the broker is let in: else it would be elected for
what it has not got. Called by app.py and the replica manager; a broker that is alone tells nobody.
"""

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID

import structlog

from tierlog.broker.ports.tasks import TaskGroup
from tierlog.broker.runtime.replica_manager import ReplicaManager
from tierlog.broker.wire.errors import ErrorCode
from tierlog.metadata.client import MetadataClient
from tierlog.metadata.controller.commands import ReportReplicas
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.node import MetadataUnavailable

RETRY_S = 0.2
REPORT_REPLICAS_MAX = 2_000
Names = Sequence[tuple[UUID, int]]
_log = structlog.get_logger("tierlog.directories")


class ReplicaReports:
    def __init__(
        self,
        broker_id: int,
        metadata: MetadataClient,
        replicas: ReplicaManager,
        tasks: TaskGroup,
        *,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._replicas = replicas
        self._tasks = tasks
        self._broker_epoch = broker_epoch
        self._due = asyncio.Event()
        self._unsubscribe: Callable[[], None] = lambda: None
        self._telling: asyncio.Task[None] | None = None

    async def tell_empty(self, empty: Names) -> None:
        """Before they are made: returns when the controller knows that nothing of them was found."""
        for at in range(0, len(empty), REPORT_REPLICAS_MAX):
            await self._send((), empty[at : at + REPORT_REPLICAS_MAX])

    async def tell_first(self) -> None:
        """Once the logs are open: returns when the controller knows which of them failed."""
        await self._tell_failed()

    def start(self) -> None:
        """From now on what fails is told at once."""
        self._replicas.gave_up.append(self._due.set)
        self._unsubscribe = self._metadata.subscribe(self._follow)
        self._due.set()
        self._telling = self._tasks.spawn("reports of failed replicas", self._tell_again())

    async def stop(self) -> None:
        self._unsubscribe()
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)

    async def _tell_again(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            await self._tell_failed()

    async def _tell_failed(self) -> None:
        while failed := self._untold():
            await self._send(failed[:REPORT_REPLICAS_MAX], ())

    def _untold(self) -> Names:
        """What is offline here, while the image has it serve."""
        image, found = self._metadata.image, list[tuple[UUID, int]]()
        for name in self._replicas.given_up:
            topic = image.topic(name.topic)
            if topic is None or name.partition >= len(topic.partitions):
                continue
            partition = topic.partitions[name.partition]
            if self._broker_id in partition.replicas and self._broker_id not in partition.offline:
                found.append((topic.topic_id, name.partition))
        return found

    async def _send(self, failed: Names, emptied: Names) -> None:
        """Returns once the controller has taken it."""
        while True:
            if await self._taken(failed, emptied):
                return
            await asyncio.sleep(RETRY_S)

    async def _taken(self, failed: Names, emptied: Names) -> bool:
        command = ReportReplicas(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            failed=tuple(failed),
            emptied=tuple(emptied),
        )
        try:
            reply = await self._metadata.submit(command)
        except MetadataUnavailable as failure:
            _log.warning("the controller does not answer", what="failed replicas", error=str(failure))
            return False
        if reply.error is not ErrorCode.NONE:  # of a newer life of this broker; or it registers again
            _log.warning("the controller refuses a report", error=reply.error.name, why=reply.message)
            return False
        _log.info("the controller knows", failed=len(failed), empty=len(emptied))
        return True

    def _follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """With a new registration all failures of before are forgotten."""
        if old.brokers.get(self._broker_id) is not new.brokers.get(self._broker_id):
            self._due.set()
