"""Tells the controller which replicas this broker cannot serve, so that others lead them (KIP-858), and which
have no room for records.

What failed, and what is full, is told until the image says it: the difference between the image and what is
so here is found anew each time, so nothing is forgotten while no quorum answers, or if the broker has to
register again. A directory is full at once, and no more only when it has had room for a while: each change
moves leaders and in-sync sets, and a disk that is nearly full has room every other second.
What was nowhere to be found at the start is told once, before anything is made in its place: of an empty log
that is there nobody knows what it has lost. So is a log that was damaged and lost more than a killed process
could have left half written: it may miss what was acknowledged, and is told as if nothing of it were left, by
the next start if this one ends before. What a loss of power tore is no damage: that loss is known. If there
was no room to open a log at the start, it is told when it opens, and waits for that with its role.
All else before the broker is let in, or it would be elected for what it has not got. Called by app.py and
the replica manager; a broker that is alone tells nobody.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from uuid import UUID

import structlog

from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.broker.storage.names import DAMAGED
from tierlog.metadata.client import MetadataClient
from tierlog.metadata.controller.commands import ReportReplicas
from tierlog.metadata.image import ClusterImage, PartitionImage
from tierlog.metadata.quorum.node import MetadataUnavailable
from tierlog.protocol.errors import ErrorCode

RETRY_S = 0.2
ROOM_LASTS_S = 5.0
"""How long a directory must have room before the controller counts on it."""

REPORT_REPLICAS_MAX = 1_500
"""Of each kind: all of them together are within what the controller takes at a time."""

Key = tuple[UUID, int]
"""Topic id and partition."""

_log = structlog.get_logger("tierlog.directories")


class Report(NamedTuple):
    """The fields of ReportReplicas."""

    failed: tuple[Key, ...] = ()
    emptied: tuple[Key, ...] = ()
    full: tuple[Key, ...] = ()
    has_room: tuple[Key, ...] = ()


class ReplicaReports:
    def __init__(
        self,
        broker_id: int,
        metadata: MetadataClient,
        replicas: ReplicaManager,
        tasks: TaskGroup,
        *,
        broker_epoch: Callable[[], int],
        room_lasts_s: float = ROOM_LASTS_S,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._replicas = replicas
        self._tasks = tasks
        self._broker_epoch = broker_epoch
        self._room_lasts_s = room_lasts_s
        self._has_room_since: dict[LogDirectory, float] = {}  # by the loop's clock
        self._due = asyncio.Event()
        self._told_first = asyncio.Event()
        self._unsubscribe: Callable[[], None] = lambda: None
        self._telling: asyncio.Task[None] | None = None

    async def tell_empty(self, empty: Sequence[Key]) -> None:
        """Before they are made: returns when the controller knows that nothing of them was found."""
        for at in range(0, len(empty), REPORT_REPLICAS_MAX):
            await self._send(Report(emptied=tuple(empty[at : at + REPORT_REPLICAS_MAX])))

    async def tell_first(self) -> None:
        """Once the logs are open: returns when the controller knows which of them failed, or were damaged."""
        await self._tell_damaged([replica for replica in self._replicas if replica.log.was_damaged])
        self._told_first.set()
        await self._tell_untold()

    async def _tell_late(self, replica: Replica) -> None:
        """There was no room to open its log before."""
        await self._told_first.wait()
        await self._tell_damaged([replica])

    async def _tell_damaged(self, damaged: Sequence[Replica]) -> None:
        await self.tell_empty([(replica.topic_id, replica.name.partition) for replica in damaged])
        for replica in damaged:
            if (directory := self._replicas.directories.directory_of(replica.name)) is not None:
                path = replica.log.directory
                with suppress(OSError):  # then it is told again
                    directory.files.unlink(path / DAMAGED, missing_ok=True)
                    await directory.run(partial(directory.files.sync_directory, path))

    def start(self) -> None:
        """From now on what fails or fills is told at once."""
        loop = asyncio.get_running_loop()
        self._replicas.gave_up.append(self._due.set)
        self._replicas.tell_damaged = self._tell_late
        directories = self._replicas.directories
        for directory in directories.all:
            self._has_room_since[directory] = loop.time()
            held = self._known(directories.partitions_in(directory))
            if any(self._broker_id in one.full for _, one in held):
                directories.mark_full_if_short(directory)  # it was full once; others may be new there
            directory.on_full_changed = lambda one: loop.call_soon_threadsafe(self._room_changed, one)
        directories.on_moved = self._due.set
        loop.call_later(self._room_lasts_s, self._due.set)
        self._unsubscribe = self._metadata.subscribe(self._follow)
        self._due.set()
        self._telling = self._tasks.spawn("reports of failed replicas", self._tell_again())

    async def stop(self) -> None:
        self._unsubscribe()
        self._replicas.directories.on_moved = lambda: None
        for directory in self._replicas.directories.all:
            directory.on_full_changed = lambda one: None
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)

    async def _tell_again(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            await self._tell_untold()
            await asyncio.sleep(RETRY_S)  # much may come at once

    async def _tell_untold(self) -> None:
        told, untold = Report(), self._untold()
        while untold not in (Report(), told):  # a controller of before these marks takes and forgets them
            await self._send(untold)
            told, untold = untold, self._untold()

    def _untold(self) -> Report:
        """Where the image differs from what is so here."""
        me, replicas = self._broker_id, self._replicas
        failed = [key for key, known in self._known(replicas.given_up) if me not in known.offline]
        full, has_room = list[Key](), list[Key]()
        for directory in replicas.directories.online:
            if directory.is_full:
                held = self._known(replicas.directories.partitions_in(directory))
                full += [key for key, known in held if me not in known.full]
            elif self._keeps_room(directory):
                held = self._known(replicas.directories.partitions_in(directory))
                has_room += [key for key, known in held if me in known.full]
        most = REPORT_REPLICAS_MAX
        return Report(tuple(failed[:most]), full=tuple(full[:most]), has_room=tuple(has_room[:most]))

    def _known(self, names: Sequence[TopicPartition]) -> Iterator[tuple[Key, PartitionImage]]:
        """Those of the names that the image places here."""
        image = self._metadata.image
        for name in names:
            topic = image.topic(name.topic)
            if topic is not None and name.partition < len(topic.partitions):
                partition = topic.partitions[name.partition]
                if self._broker_id in partition.replicas:
                    yield (topic.topic_id, name.partition), partition

    def _room_changed(self, directory: LogDirectory) -> None:
        loop = asyncio.get_running_loop()
        if not directory.is_full:
            self._has_room_since[directory] = loop.time()
            loop.call_later(self._room_lasts_s, self._due.set)
        self._due.set()

    def _keeps_room(self, directory: LogDirectory) -> bool:
        """Not before the start."""
        since = self._has_room_since.get(directory, math.inf)
        return asyncio.get_running_loop().time() >= since + self._room_lasts_s

    async def _send(self, report: Report) -> None:
        """Returns once the controller has taken it."""
        while True:
            if await self._taken(report):
                return
            await asyncio.sleep(RETRY_S)

    async def _taken(self, report: Report) -> bool:
        command = ReportReplicas(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            failed=report.failed,
            emptied=report.emptied,
            full=report.full,
            has_room=report.has_room,
        )
        try:
            reply = await self._metadata.submit(command)
        except MetadataUnavailable as failure:
            _log.warning("the controller does not answer", what="reports of replicas", error=str(failure))
            return False
        if reply.error is not ErrorCode.NONE:  # of a newer life of this broker; or it registers again
            _log.warning("the controller refuses a report", error=reply.error.name, why=reply.message)
            return False
        counts = {kind: len(names) for kind, names in report._asdict().items() if names}
        _log.info("the controller knows", **counts)
        return True

    def _follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """With a new registration failures are forgotten; a new partition may lie on a full disk."""
        registered = old.brokers.get(self._broker_id) is not new.brokers.get(self._broker_id)
        if registered or (old.topics is not new.topics and self._replicas.directories.some_full):
            self._due.set()
