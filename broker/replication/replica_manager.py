"""Replica manager: opens, creates and removes the replicas of this broker, as the cluster image says.

The image is the only authority: `follow` is called with each committed image before any handler sees it. The
event loop owns the replicas. Threads open logs at start, and create many at once; a few are created on the
loop. Handlers look up replicas by topic name or topic id. `on_change` is called whenever a replica has
changed. A log that cannot be read stays offline until the next start, and so do all logs of a failed
directory. `fatal` is called when no directory is left, or when the directory with the metadata has failed.
Owned by app.py.
"""

import asyncio
import random
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.checkpoint_writer import CheckpointWriter
from tierlog.broker.replication.dynamic_settings import settings_of
from tierlog.broker.replication.log_shutdown import LogShutdown
from tierlog.broker.replication.partition_roles import PartitionRoles, PendingLeaders
from tierlog.broker.replication.replica import NO_TRAFFIC, Replica, flush_at_once
from tierlog.broker.replication.replica_events import (
    DamageSuspected,
    DirectoryFailed,
    OnReplicaEvent,
    PartitionsFailed,
    ReplicaEvent,
    ReplicaRemoved,
    ReplicasCreated,
)
from tierlog.broker.replication.replica_loader import LoadedReplicas, ReplicaLoader
from tierlog.broker.replication.topic_configs import TopicConfigs
from tierlog.broker.storage.disk_threads import chunks
from tierlog.broker.storage.log_dir import DirectoryUnusable, LogDirectory
from tierlog.broker.storage.log_dirs import LogDirectories, holds
from tierlog.config.node import NodeSettings
from tierlog.metadata.image import ClusterImage, TopicImage, changed_topics

CREATED_ON_LOOP_MAX = 64
"""New partitions of one image which are created on the loop, before handlers see the image. More than that
are created in threads."""

CONCURRENT_CREATIONS = 2
"""Threads that create logs in each directory. They mostly wait for the file system's journal. More threads
would delay the event loop."""

PROGRESS_EVERY = 1000
"""Logs opened between two progress messages."""

OPEN_BATCH_SIZE = 20
"""Logs that a thread creates, or opens after a clean shutdown, before it returns to the event loop. The
return takes longer than one of these logs."""

Opening = asyncio.Future[LoadedReplicas]
ReportDamaged = Callable[[Replica], Awaitable[None]]
ReportEmpty = Callable[[Sequence[tuple[uuid.UUID, int]]], Awaitable[None]]
Fatal = Callable[[str, BaseException], None]
OnChange = Callable[[TopicPartition], None]
_log = structlog.get_logger("tierlog.replicas")


class ReplicaManager:
    def __init__(
        self,
        settings: NodeSettings,
        directories: LogDirectories,
        clock: Clock,
        tasks: TaskGroup,
        rng: random.Random,
        *,
        on_change: OnChange,
        fatal: Fatal = lambda what, failure: None,
        flusher: Callable[[Replica], None] = flush_at_once,
        roles: PartitionRoles | None = None,
    ) -> None:
        self.directories = directories
        self.listeners: tuple[OnReplicaEvent, ...] = ()
        """Receive each event, in this order."""
        self.removed_traffic = NO_TRAFFIC
        """Traffic of removed replicas, so that the broker's totals never decrease."""
        self._settings = settings
        self._tasks = tasks
        self._on_change = on_change
        self._fatal = fatal
        self._flusher = flusher
        self._roles = roles or PartitionRoles(settings.node_id, clock)
        self._replicas: dict[tuple[str | uuid.UUID, int], Replica] = {}
        self._all: dict[TopicPartition, Replica] = {}
        self._image = ClusterImage(cluster_id="")  # without topics until the logs are open
        self._uncleanly_elected: set[TopicPartition] = set()
        """Partitions whose log is compared with the manifest before they take their role."""
        self._creating: dict[TopicPartition, TopicImage] = {}  # threads are creating these
        self._something_created = asyncio.Event()
        self._configs = TopicConfigs(settings)
        self._loader = ReplicaLoader(
            settings, directories, self._configs, clock, rng, on_renamed=self._on_deleted_directory
        )
        self._offline: dict[TopicPartition, str] = {}
        """Partitions that stay offline until the next start, and why."""
        self._missing: dict[TopicPartition, bool] = {}
        """Partitions whose log could not be opened, as on a full disk, and whether a retry is running."""
        self._pending_leaders = PendingLeaders(tasks, self._retry_role)
        self.checkpoints = CheckpointWriter(directories, self._all, self._creating, tasks)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Replica]:
        """Iterates over a copy, since replicas may be added and removed while the caller awaits."""
        return iter(list(self._all.values()))

    def get(self, topic: str | uuid.UUID, partition: int) -> Replica | None:
        """The local replica of a partition, by topic name or id; None if there is none."""
        return self._replicas.get((topic, partition))

    def holds(self, replica: Replica) -> bool:
        """Whether the replica is still in use; False after its topic was deleted or its log failed."""
        return self._all.get(replica.name) is replica

    def replicas_in(self, directory: LogDirectory) -> list[Replica]:
        return [replica for replica in self._all.values() if replica.log_dir is directory]

    def is_offline(self, name: TopicPartition) -> bool:
        """Whether the partition has a replica here which is not open, or whose log or directory has
        failed."""
        return name in self._offline or name in self._missing

    @property
    def failed_partitions(self) -> list[TopicPartition]:
        """Partitions which are offline until the next start."""
        return list(self._offline)

    @property
    def offline_count(self) -> int:
        return len(self._offline) + len(self._missing)

    # -- start and stop --

    async def open_all(self, image: ClusterImage, report_empty: ReportEmpty | None = None) -> None:
        """Open the replicas that the image places here, in threads; rename directories that the image lacks.

        A replica may have no log in any directory, although all directories are online. `report_empty`
        reports such replicas to the controller and returns once it knows. Only then are they created, because
        the next start would find an empty log and report nothing. None for a standalone broker.
        """
        self._loop = asyncio.get_running_loop()
        for directory in self.directories.all:
            directory.on_failure = self._on_directory_failure
        for directory in self.directories.online:
            try:
                directory.load_checkpoints()
            except OSError as failure:
                directory.fail(failure.strerror or str(failure))
        self.directories.require_one()
        wanted = {
            TopicPartition(topic.name, number): topic
            for topic in image.topics.values()
            for number, partition in enumerate(topic.partitions)
            if self._settings.node_id in partition.replicas
        }
        refused, renamed = self.directories.find(
            {name: topic.topic_id for name, topic in wanted.items()},
            may_be_missing=report_empty is not None,
            in_sync_elsewhere={
                name
                for name, topic in wanted.items()
                if {*topic.partitions[name.partition].in_sync} - {self._settings.node_id}
            },
        )
        for path in renamed:
            _log.warning("log_dir.partition.unknown", directory=str(path))
        for name, why in refused.items():
            self._mark_failed(name, why)
        empty = [
            (topic.topic_id, name.partition)
            for name, topic in wanted.items()
            if name not in refused and self.directories.directory_of(name) is None
        ]
        if report_empty is not None:
            await report_empty(empty)
        await self._open_in_threads(image, {name: wanted[name] for name in wanted if name not in refused})
        for directory in self.directories.all:
            directory.mark_unclean()
        self._image = image
        self._loader.finish_start()
        for topic in image.topics.values():
            self._apply_topic(image, topic)
        for directory, path in self.directories.deleted_partitions():
            self._remove_directory(directory, path)

    async def _open_in_threads(self, image: ClusterImage, wanted: dict[TopicPartition, TopicImage]) -> None:
        if not wanted:
            return
        loop = asyncio.get_running_loop()
        threads = settings_of(image, self._settings).num_recovery_threads_per_data_dir
        pools = {directory: ThreadPoolExecutor(threads, "recovery") for directory in self.directories.all}
        directory_by_name = {
            name: self.directories.directory_of(name) or self.directories.choose(name) for name in wanted
        }
        opening = [
            loop.run_in_executor(pool, self._loader.load_all, image, wanted, names)
            for directory, pool in pools.items()
            for names in chunks(
                [name for name in wanted if directory_by_name[name] is directory],
                OPEN_BATCH_SIZE if directory.checkpoints.clean else 1,
            )
        ]
        try:
            await self._add_loaded(opening, len(wanted))
        except (Exception, asyncio.CancelledError):
            # The start fails, after the threads have finished their current logs. The loop keeps running,
            # since this node may be a voter.
            for pool in pools.values():
                pool.shutdown(wait=False, cancel_futures=True)
            await asyncio.wait(opening)
            raise
        finally:
            for pool in pools.values():
                pool.shutdown(wait=False)

    async def _add_loaded(self, opening: Sequence[Opening], count: int) -> None:
        opened = logged = 0
        for future in asyncio.as_completed(opening):
            for name, replica in await future:
                self._add_result(name, replica)
                opened += 1
            if opened - logged >= PROGRESS_EVERY or opened == count:
                _log.info("logs.opened", opened=opened, of=count)
                logged = opened

    def _add_result(self, name: TopicPartition, opened: Replica | Exception) -> None:
        """Add a replica, or record why it could not be loaded. An OSError is temporary, as on a full disk;
        other reasons are not."""
        self._missing.pop(name, None)
        directory = self.directories.directory_of(name)
        if directory is not None and isinstance(opened, OSError):
            directory.on_error(opened)
        if directory is not None and directory.failure is not None:
            if isinstance(opened, Replica):
                opened.close(clean=False)
            self._mark_failed(name, directory.refusal or directory.failure)
        elif isinstance(opened, Replica):
            self._add(opened)
        elif isinstance(opened, OSError):
            _log.error("log.open_failed", partition=str(name), error=str(opened))
            self._missing[name] = False
        else:
            self._mark_failed(name, str(opened))

    async def close(self, *, clean: bool) -> None:
        """Close every log, in the threads of its directory (`log_shutdown`)."""
        replicas = dict(self._all)
        self._all.clear()
        self._replicas.clear()
        shutdown = LogShutdown(
            self.directories,
            self.checkpoints,
            replicas,
            frozenset({*self._offline, *self._missing}),
            self._settings.log_dirs_stop_timeout_ms / 1000,
        )
        await asyncio.gather(*(shutdown.close_directory(one, clean=clean) for one in self.directories.online))

    # -- failures --

    def restart_fetching(self, replica: Replica) -> None:
        """Fetch a follower again from its current log end, because its log was changed. Responses in flight
        are ignored."""
        if (topic := self._image.topics.get(replica.topic_id)) is not None:
            self._roles.remove(replica)
            self._apply_role(topic, replica.name)

    def fail(self, replica: Replica, why: OSError) -> None:
        """Take the replica's directory offline after a failed fsync or another fatal error of its disk."""
        directory = self.directories.directory_of(replica.name)
        if directory is not None:
            directory.on_sync_error(why)

    def _on_directory_failure(self, directory: LogDirectory) -> None:
        """Called in any thread. The event loop handles the failure later, even if this is called on it, so
        that the failed operation ends first."""
        self._loop.call_soon_threadsafe(self._handle_offline_directory, directory)

    def _handle_offline_directory(self, directory: LogDirectory) -> None:
        """Take the partitions of a failed directory offline. Runs on the loop."""
        why = directory.refusal or "offline"
        names = self.directories.partitions_in(directory)
        for name in names:
            replica = self._all.get(name)
            if replica is not None:
                self._forget(replica)
                replica.failed = why
                self._tasks.spawn(f"close {name}", directory.run(partial(replica.close, clean=False)))
            self._missing.pop(name, None)
            self._offline[name] = why
        for name in names:
            self._on_change(name)  # completes requests that wait for the partition
        _log.error("log_dir.failed", directory=str(directory.path), why=why, partitions=len(names))
        self.emit(DirectoryFailed(directory))
        self.emit(PartitionsFailed())
        if not self.directories.online:
            self._fatal("the last log directory", OSError(why))
        elif holds(directory, self._settings.metadata_directory):
            self._fatal("the log directory with the metadata", OSError(why))

    def _mark_failed(self, name: TopicPartition, why: str) -> None:
        _log.error("partition.offline", partition=str(name), why=why)
        self._offline[name] = why
        self.emit(PartitionsFailed())

    def emit(self, event: ReplicaEvent) -> None:
        for listener in self.listeners:
            listener(event)

    # -- following the image --

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """Apply the changes from one image to the next. Called on the event loop, in order."""
        self._image = new
        gone, changed = changed_topics(old, new)
        for topic in gone:
            self._remove(topic, range(len(topic.partitions)))
        for topic in changed:
            self._remove(topic, [n for n in range(len(topic.partitions)) if self._has_left(topic, n)])
        if old.brokers is not new.brokers:
            self._roles.brokers_changed(new, self)
        if old.configs is not new.configs:  # before the roles: an in-sync set needs its min.insync.replicas
            changed_config = self._configs.changed(old, new)
            for replica in self:
                if changed_config(replica.name.topic):
                    self._configure(replica, new)
        for topic in changed:
            self._note_unclean_elections(old, topic)
        self._create(new, {name: topic for topic in changed for name in self._apply_roles(topic)})
        if old.remote is not new.remote:
            self._pending_leaders.retry_manifests()

    def _note_unclean_elections(self, old: ClusterImage, topic: TopicImage) -> None:
        """Only a replica that was neither in sync nor eligible (KIP-966) may lack what is remote."""
        known = old.topics.get(topic.topic_id)
        if known is None:
            return
        own_id = self._settings.node_id
        for before, now in zip(known.partitions, topic.partitions, strict=False):
            if before is now or now.leader != own_id or now.leader_epoch == before.leader_epoch:
                continue
            if own_id not in (*before.in_sync, *before.eligible):
                self._uncleanly_elected.add(TopicPartition(topic.name, now.partition))

    def _configure(self, replica: Replica, image: ClusterImage) -> None:
        replica.update_config(self._configs.of(image, replica.name.topic))
        if replica.id in image.remote:
            replica.log.has_been_tiered = True

    async def retry_missing(self, report_damaged: ReportDamaged | None = None) -> None:
        """Retry operations that failed on a full disk: opening or creating a log (in a thread, since a log
        may be large), and becoming leader. `report_damaged` returns once the controller knows of a damaged
        log; None for a standalone broker.
        """
        if all(directory.is_full for directory in self.directories.online):
            return
        self._pending_leaders.retry_all()
        for name in [name for name, is_retrying in self._missing.items() if not is_retrying]:
            image = self._image
            topic = image.topic(name.topic)
            if topic is None or self._missing.get(name) is not False:
                continue  # deleted, or another call is retrying it
            self._missing[name] = True
            directory = self.directories.choose(name)
            _, opened = await directory.run(partial(self._loader.load, image, topic, name))
            adding = self._add_late(directory, topic, name, opened, report_damaged)
            if isinstance(opened, Replica) and opened.log.was_damaged:
                # in a task, because the controller may not answer for long, and other logs must not wait
                self._tasks.spawn(f"add {name}", adding)
            else:
                await adding

    async def _add_late(
        self,
        directory: LogDirectory,
        topic: TopicImage,
        name: TopicPartition,
        opened: Replica | Exception,
        report_damaged: ReportDamaged | None,
    ) -> None:
        """Add a replica while the broker may be serving. A damaged replica gets a role only after the
        controller knows of the damage."""
        if isinstance(opened, Replica) and opened.log.was_damaged and report_damaged is not None:
            await report_damaged(opened)
        image = self._image
        current = image.topics.get(topic.topic_id)
        if current is not None and name in self._missing:
            self._add_result(name, opened)
            self._apply_topic(image, current)
            self.emit(ReplicasCreated())
            return
        if isinstance(opened, Replica):  # its topic was deleted, or its directory failed
            await directory.run(partial(opened.close, clean=False))
        if name in self._missing:
            self._missing[name] = False  # a new topic of the same name needs a log

    async def wait_until_created(self) -> None:
        """Returns once all partitions of the images so far have been created or have failed."""
        while self._creating:
            await self._something_created.wait()

    def _create(self, image: ClusterImage, new: dict[TopicPartition, TopicImage]) -> None:
        """Create replicas, on the event loop if they are few. A partition whose name an earlier topic had is
        created in a thread, because its old checkpoints must be removed from the disk first."""
        in_threads = new
        if len(new) <= CREATED_ON_LOOP_MAX:
            in_threads = {name: topic for name, topic in new.items() if self.directories.has_checkpoint(name)}
            for name, topic in new.items():
                if name not in in_threads:
                    self._create_now(image, topic, name)
        if in_threads:
            self._creating.update(in_threads)
            self._tasks.spawn("create partitions", self._create_in_threads(image, in_threads))

    async def _create_in_threads(self, image: ClusterImage, topics: dict[TopicPartition, TopicImage]) -> None:
        by_directory = defaultdict[LogDirectory, list[TopicPartition]](list)
        try:
            for name in topics:
                try:
                    by_directory[self.directories.choose(name)].append(name)
                except DirectoryUnusable as failure:
                    self._mark_failed(name, str(failure))

            async def work(directory: LogDirectory, batches: Iterator[Sequence[TopicPartition]]) -> None:
                for names in batches:
                    created = await directory.run(partial(self._loader.load_all, image, topics, names))
                    added = [self._add_created(topics[name], name, opened) for name, opened in created]
                    if not all(added):
                        await self._sync_names(directory)

            workers: list[Coroutine[None, None, None]] = []
            for directory, names in by_directory.items():
                batches = chunks(names, OPEN_BATCH_SIZE)
                workers += [work(directory, batches) for _ in range(CONCURRENT_CREATIONS)]
            await asyncio.gather(*workers)
        finally:
            for name, topic in topics.items():
                if self._creating.get(name) is topic:
                    del self._creating[name]
            self._something_created.set()
            self._something_created = asyncio.Event()
        self.emit(ReplicasCreated())

    def _add_created(self, topic: TopicImage, name: TopicPartition, opened: Replica | Exception) -> bool:
        """Add a replica that a thread has created. Returns False if its topic has been deleted or replaced by
        a new one of the same name; then the replica is deleted.
        """
        self._creating.pop(name, None)
        current = self._image.topic(name.topic)
        if current is not None and current.topic_id == topic.topic_id:
            self._add_result(name, opened)
            self._apply_role(current, name)
            return True
        directory = self.directories.directory_of(name)
        self.directories.forget(name)
        if isinstance(opened, Replica):
            opened.close(clean=False)
        if directory is not None and directory.failure is None:
            self._delete_directory(name, directory, 0)
        if current is not None and self._is_placed_here(current, name.partition):
            self._create(self._image, {name: current})
        return False

    def _apply_topic(self, image: ClusterImage, topic: TopicImage) -> None:
        self._create(image, dict.fromkeys(self._apply_roles(topic), topic))

    def _apply_roles(self, topic: TopicImage) -> list[TopicPartition]:
        """Apply the roles of a topic's local replicas. Returns the replicas that must be created first."""
        to_create = []
        for number in range(len(topic.partitions)):
            if self._is_placed_here(topic, number):
                name = TopicPartition(topic.name, number)
                if name in self._all:
                    self._apply_role(topic, name)
                elif not self.is_offline(name) and name not in self._creating:
                    to_create.append(name)
        return to_create

    def _is_placed_here(self, topic: TopicImage, number: int) -> bool:
        found = topic.partitions[number : number + 1]
        return any(self._settings.node_id in partition.replicas for partition in found)

    def _has_left(self, topic: TopicImage, number: int) -> bool:
        """Whether the local replica of a partition has been reassigned to another broker (KIP-455)."""
        replica = self._replicas.get((topic.topic_id, number))
        return replica is not None and not self._is_placed_here(topic, number)

    def _create_now(self, image: ClusterImage, topic: TopicImage, name: TopicPartition) -> None:
        try:
            self.directories.choose(name)
            self._add_result(*self._loader.load(image, topic, name))
        except DirectoryUnusable as failure:
            self._mark_failed(name, str(failure))
        self._apply_role(topic, name)

    def _apply_role(self, topic: TopicImage, name: TopicPartition) -> None:
        replica = self._all.get(name)
        if replica is None:
            return
        partition = topic.partitions[name.partition]
        is_new = partition.leader_epoch > replica.leader_epoch
        if partition.leader == self._settings.node_id and is_new:
            epoch, is_unclean = partition.leader_epoch, name in self._uncleanly_elected
            try:
                event = self._loader.prepare_leader(self._image, replica, epoch, is_unclean=is_unclean)
            except OSError as failure:
                self._pending_leaders.postpone(replica, failure)
                return
            if event is not None:
                self._uncleanly_elected.add(name)  # a recovered quorum may know an old in-sync set
                self._pending_leaders.await_manifest(replica)
                self.emit(event)
                return
        self._uncleanly_elected.discard(name)
        self._pending_leaders.remove(replica)
        self._roles.apply(replica, partition)

    def _retry_role(self, name: TopicPartition) -> None:
        if (topic := self._image.topic(name.topic)) is not None:
            self._apply_role(topic, name)

    def _add(self, replica: Replica) -> None:
        if replica.topic_id in self._image.topics:  # settings may have changed while a thread opened the log
            self._configure(replica, self._image)
        self._all[replica.name] = replica
        self._replicas[replica.name] = replica
        self._replicas[replica.id] = replica
        replica.listeners.append(lambda replica: self._on_change(replica.name))
        replica.flusher = self._flusher
        replica.suspect = lambda offset, why: self.emit(DamageSuspected(replica, offset, why))
        replica.lower_checkpoint = partial(self.checkpoints.lower, replica)
        if replica.needs_checkpoint:  # a power failure has lost the log's end
            self.checkpoints.lower(replica)

    def _forget(self, replica: Replica) -> None:
        self.removed_traffic += replica.traffic
        self._roles.remove(replica)
        self._pending_leaders.remove(replica)
        self._all.pop(replica.name, None)
        self._replicas.pop(replica.name, None)
        self._replicas.pop(replica.id, None)
        self.emit(ReplicaRemoved(replica))

    def _remove(self, topic: TopicImage, numbers: Iterable[int]) -> None:
        changed = set[LogDirectory]()
        for number in numbers:
            name = TopicPartition(topic.name, number)
            self._offline.pop(name, None)
            self._missing.pop(name, None)
            if name in self._creating:
                continue  # a thread is creating it; `_add_created` will delete it
            replica, directory = self._all.get(name), self.directories.directory_of(name)
            self.directories.forget(name)
            if replica is not None:
                self._forget(replica)
                replica.close(clean=False)
                self._on_change(name)
            if directory is not None and directory.failure is None:
                delay_ms = replica.config.file_delete_delay_ms if replica is not None else 0
                self._delete_directory(name, directory, delay_ms)
                changed.add(directory)
        for directory in changed:
            self._tasks.spawn(f"sync {directory.path}", self._sync_names(directory))

    def _delete_directory(self, name: TopicPartition, directory: LogDirectory, delay_ms: int) -> None:
        try:
            if directory.holds(name):
                self._remove_directory(directory, directory.rename_deleted(name), delay_ms)
        except OSError as failure:
            _log.error("partition.remove_failed", partition=str(name), error=str(failure))

    def _on_deleted_directory(self, directory: LogDirectory, deleted: Path) -> None:
        """Called in any thread."""
        self._loop.call_soon_threadsafe(self._remove_directory, directory, deleted)

    def _remove_directory(self, directory: LogDirectory, deleted: Path, delay_ms: int = 0) -> None:
        self._tasks.spawn(f"remove {deleted.name}", directory.remove_later(deleted, delay_ms))

    async def _sync_names(self, directory: LogDirectory) -> None:
        with suppress(OSError):  # the log directory has handled it
            await directory.run(directory.sync_names)
