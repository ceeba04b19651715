"""Replica reporter: tells the controller which replicas are offline, empty or on a full disk (KIP-858).

The controller elects other leaders for them. Three rules:

- Failed and full replicas are reported until the image shows them. Each report is the difference between the
  image and the local state, so none is lost while the quorum is unavailable or the broker registers again. A
  full directory is reported at once, but it must have had space for a while before it is reported as not
  full: each change moves leaders and in-sync sets.
- A replica that is missing at the start is reported as emptied, once, before an empty log is created in its
  place: later the loss could not be detected. A damaged log is reported too if it lost more than the batch
  that a killed process may leave incomplete, since it may lack acknowledged records. If this start fails
  before the report, the next one reports it. A log torn by a power failure is not damaged: the controller
  knows of that loss. A log that could not be opened on a full disk is reported when it opens, before it gets
  a role.
- Everything else is reported before the broker is unfenced. Otherwise the controller could elect it leader of
  partitions whose records it lacks.

Called by app.py and the replica manager. A standalone broker has none.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from uuid import UUID

import structlog

from tierlog.base.safeguards import safeguard
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_events import PartitionsFailed, ReplicaEvent
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.broker.storage.names import DAMAGED
from tierlog.metadata.controller.commands import ReportReplicas
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.records import PartitionRecord
from tierlog.protocol.errors import ErrorCode

RETRY_S = 0.2
SPACE_LASTS_S = 5.0
"""How long a directory must have space before it is reported as not full."""

REPORT_REPLICAS_MAX = 1_500
"""Replicas of each kind in one report; together they are within the controller's limit."""

Key = tuple[UUID, int]
"""Topic id and partition."""

_log = structlog.get_logger("tierlog.directories")


class Report(NamedTuple):
    """The fields of ReportReplicas."""

    failed: tuple[Key, ...] = ()
    emptied: tuple[Key, ...] = ()
    full: tuple[Key, ...] = ()
    has_space: tuple[Key, ...] = ()


class ReplicaReporter:
    def __init__(
        self,
        broker_id: int,
        metadata: MetadataClient,
        replicas: ReplicaManager,
        tasks: TaskGroup,
        *,
        broker_epoch: Callable[[], int],
        space_lasts_s: float = SPACE_LASTS_S,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._replicas = replicas
        self._tasks = tasks
        self._broker_epoch = broker_epoch
        self._space_lasts_s = space_lasts_s
        self._has_space_since: dict[LogDirectory, float] = {}  # by the loop's clock
        self._due = asyncio.Event()
        self._reported_at_start = asyncio.Event()
        self._reporting: asyncio.Task[None] | None = None

    @safeguard("a broker reports replicas that are empty after a restart")
    async def report_empty(self, empty: Sequence[Key]) -> None:
        """Report replicas as emptied, before they are created. Returns when the controller has accepted
        it."""
        for at in range(0, len(empty), REPORT_REPLICAS_MAX):
            await self._send(Report(emptied=tuple(empty[at : at + REPORT_REPLICAS_MAX])))

    async def report_at_start(self) -> None:
        """Report failed and damaged logs after all logs are open.

        Returns when the controller has accepted the reports.
        """
        await self._report_damaged([replica for replica in self._replicas if replica.log.was_damaged])
        self._reported_at_start.set()
        await self._report_changes()

    async def report_late(self, replica: Replica) -> None:
        """Report a damaged log which could not be opened at the start, as the disk was full."""
        await self._reported_at_start.wait()
        await self._report_damaged([replica])

    @safeguard("a broker reports damaged replicas to the controller")
    async def _report_damaged(self, damaged: Sequence[Replica]) -> None:
        await self.report_empty([replica.id for replica in damaged])
        for replica in damaged:
            if (directory := self._replicas.directories.directory_of(replica.name)) is not None:
                path = replica.log.directory
                with suppress(OSError):  # then the next start reports it again
                    directory.files.unlink(path / DAMAGED, missing_ok=True)
                    await directory.run(partial(directory.files.sync_directory, path))

    def start(self) -> None:
        """Begin to report failed and full replicas whenever they change."""
        loop = asyncio.get_running_loop()
        directories = self._replicas.directories
        for directory in directories.all:
            self._has_space_since[directory] = loop.time()
            held = self._known(directories.partitions_in(directory))
            if any(self._broker_id in partition.full for _, partition in held):
                directories.mark_full_if_short(directory)  # it was full before the restart
            directory.on_full_changed = lambda changed: loop.call_soon_threadsafe(
                self._on_full_changed, changed
            )
        directories.on_moved = self._due.set
        loop.call_later(self._space_lasts_s, self._due.set)
        self._due.set()
        self._reporting = self._tasks.spawn("reports of failed replicas", self._report_when_due())

    async def stop(self) -> None:
        self._replicas.directories.on_moved = lambda: None
        for directory in self._replicas.directories.all:
            directory.on_full_changed = lambda changed: None
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)

    async def _report_when_due(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            await self._report_changes()
            await asyncio.sleep(RETRY_S)  # the next report combines the changes of this time

    async def _report_changes(self) -> None:
        sent, report = Report(), self._changes()
        while report not in (Report(), sent):  # an older controller accepts and ignores full replicas
            await self._send(report)
            sent, report = report, self._changes()

    def _changes(self) -> Report:
        """A report of the differences between the image and the local state."""
        me, replicas = self._broker_id, self._replicas
        failed = [key for key, known in self._known(replicas.failed_partitions) if me not in known.offline]
        full, has_space = list[Key](), list[Key]()
        for directory in replicas.directories.online:
            if directory.is_full:
                held = self._known(replicas.directories.partitions_in(directory))
                full += [key for key, known in held if me not in known.full]
            elif self._has_lasting_space(directory):
                held = self._known(replicas.directories.partitions_in(directory))
                has_space += [key for key, known in held if me in known.full]
        limit = REPORT_REPLICAS_MAX
        return Report(tuple(failed[:limit]), full=tuple(full[:limit]), has_space=tuple(has_space[:limit]))

    def _known(self, names: Sequence[TopicPartition]) -> Iterator[tuple[Key, PartitionRecord]]:
        """Those of the named partitions that have a replica on this broker, according to the image."""
        image = self._metadata.image
        for name in names:
            topic = image.topic(name.topic)
            if topic is not None and name.partition < len(topic.partitions):
                partition = topic.partitions[name.partition]
                if self._broker_id in partition.replicas:
                    yield (topic.topic_id, name.partition), partition

    def _on_full_changed(self, directory: LogDirectory) -> None:
        loop = asyncio.get_running_loop()
        if not directory.is_full:
            self._has_space_since[directory] = loop.time()
            loop.call_later(self._space_lasts_s, self._due.set)
        self._due.set()

    def _has_lasting_space(self, directory: LogDirectory) -> bool:
        """Whether the directory has had space for long enough. False before `start`."""
        since = self._has_space_since.get(directory, math.inf)
        return asyncio.get_running_loop().time() >= since + self._space_lasts_s

    async def _send(self, report: Report) -> None:
        """Send a report until the controller accepts it."""
        while True:
            if await self._try_send(report):
                return
            await asyncio.sleep(RETRY_S)

    async def _try_send(self, report: Report) -> bool:
        command = ReportReplicas(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch(), **report._asdict()
        )
        try:
            reply = await self._metadata.submit(command)
        except MetadataUnavailable as failure:
            _log.warning("replica.report.unanswered", error=str(failure))
            return False
        if reply.error is not ErrorCode.NONE:
            # A newer process has registered, or this one must register again.
            _log.warning("replica.report.rejected", error=reply.error.name, why=reply.message)
            return False
        counts = {kind: len(names) for kind, names in report._asdict().items() if names}
        _log.info("replica.report.accepted", **counts)
        return True

    def on_replica_event(self, event: ReplicaEvent) -> None:
        if isinstance(event, PartitionsFailed):
            self._due.set()

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """Report again if necessary.

        A new registration clears all failures in the image, and a new partition may be on a full disk.
        """
        registered = old.brokers.get(self._broker_id) is not new.brokers.get(self._broker_id)
        if registered or (old.topics is not new.topics and self._replicas.directories.some_full):
            self._due.set()
