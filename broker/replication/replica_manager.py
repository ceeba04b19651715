"""All replicas of this broker: made, led and removed as the cluster image says; recovered at start; given up
with their directory.

The image is the only authority: `follow` is called with each committed one, before any handler sees it. Logs
are opened in threads at start, and made there if they are many; small changes happen on the event loop, which
owns replicas.
Handlers look replicas up by name or by topic id; `moved` is told whenever one of them has something new.
A log that cannot be read is offline until the next start, and so are all those of a directory that failed;
`fatal` is told when no directory is left, or when the one with the metadata has failed.
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
from tierlog.broker.replication.closing import Closing
from tierlog.broker.replication.dynamic_settings import settings_of
from tierlog.broker.replication.partition_roles import PartitionRoles
from tierlog.broker.replication.postponed_leads import PostponedLeads
from tierlog.broker.replication.replica import NO_TRAFFIC, Replica, flush_at_once
from tierlog.broker.replication.replica_opening import Opened, ReplicaOpening
from tierlog.broker.replication.topic_configs import TopicConfigs
from tierlog.broker.storage.disk_threads import chunks
from tierlog.broker.storage.log_dir import DirectoryUnusable, LogDirectory
from tierlog.broker.storage.log_dirs import LogDirectories, holds
from tierlog.config.node import NodeSettings
from tierlog.metadata.image import ClusterImage, TopicImage, changed_topics

MADE_ON_LOOP = 64
"""New partitions of one image that are made before anybody sees the image; more of them are made in
threads.
"""

MADE_SIDE_BY_SIDE = 2
"""In each directory: they mostly wait for its journal, and must leave the interpreter to the loop."""

PROGRESS_EVERY = 1000
"""Logs opened between two progress lines."""

OPENED_AT_A_TIME = 20
"""Logs that a thread makes, or opens after a clean stop, before it tells the loop: telling takes longer."""

Opening = asyncio.Future[Opened]
TellEmpty = Callable[[Sequence[tuple[uuid.UUID, int]]], Awaitable[None]]
Fatal = Callable[[str, BaseException], None]
Moved = Callable[[TopicPartition], None]
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
        moved: Moved,
        fatal: Fatal = lambda what, failure: None,
        flusher: Callable[[Replica], None] = flush_at_once,
        roles: PartitionRoles | None = None,
    ) -> None:
        self.directories = directories
        self.went_offline: list[Callable[[], None]] = []
        """Called after partitions of this broker have gone offline."""
        self.gave_up: list[Callable[[], None]] = []
        """Called after partitions were given up until the next start, for whatever reason."""
        self.dropped: list[Callable[[Replica], None]] = []
        """Called as soon as a replica is here no more."""
        self.came: list[Callable[[], None]] = []
        """Called after partitions were made later than the image that has them."""
        self.tell_damaged: Callable[[Replica], Awaitable[None]] | None = None
        """Returns once it is known elsewhere that a log was damaged. None: of a broker that is alone."""
        self.suspected: Callable[[Replica, int, str], None] = lambda replica, offset, why: None
        """Told of an offset at which a log may be damaged, and why."""
        self.former_traffic = NO_TRAFFIC
        """Of replicas that are here no more, so that the broker's totals only grow."""
        self._settings = settings
        self._tasks = tasks
        self._moved = moved
        self._fatal = fatal
        self._flusher = flusher
        self._roles = roles or PartitionRoles(settings.node_id, clock)
        self._replicas: dict[tuple[str | uuid.UUID, int], Replica] = {}
        self._all: dict[TopicPartition, Replica] = {}
        self._image: ClusterImage | None = None
        self._making: dict[TopicPartition, TopicImage] = {}  # by threads
        self._something_made = asyncio.Event()
        self._configs = TopicConfigs(settings)
        self._opening = ReplicaOpening(
            settings, directories, self._configs, clock, rng, buried=self._buried_anywhere
        )
        self._offline: dict[TopicPartition, str] = {}  # until the next start; and why
        self._missing: dict[TopicPartition, bool] = {}  # not open for now (no room): whether one is at it
        self._postponed = PostponedLeads(tasks, self._lead_again)
        self.checkpoints = CheckpointWriter(directories, self._all, self._making, tasks)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Replica]:
        """A copy: replicas may come and go while the caller waits."""
        return iter(list(self._all.values()))

    def get(self, topic: str | uuid.UUID, partition: int) -> Replica | None:
        """The replica that leads the partition, by its topic's name or id; None if it is not here."""
        return self._replicas.get((topic, partition))

    def holds(self, replica: Replica) -> bool:
        """Whether the replica still serves; not so after its topic was deleted."""
        return self._all.get(replica.name) is replica

    def replicas_in(self, directory: LogDirectory) -> list[Replica]:
        return [replica for replica in self._all.values() if replica.room is directory]

    def is_offline(self, name: TopicPartition) -> bool:
        """Whether a replica of it is placed here and cannot serve: its log or its directory has failed."""
        return name in self._offline or name in self._missing

    @property
    def given_up(self) -> list[TopicPartition]:
        """Those that cannot serve before the next start."""
        return list(self._offline)

    @property
    def offline_count(self) -> int:
        return len(self._offline) + len(self._missing)

    # -- start and stop --

    async def open_all(self, image: ClusterImage, tell_empty: TellEmpty | None = None) -> None:
        """Opens what the image places here, in threads; sets aside what it does not know. Of what it places
        here nothing may be found, on directories that all serve: `tell_empty` returns once that is known
        elsewhere, and only then is any of it made; a later start finds an empty log, and has nothing to tell.
        None: of a broker that is alone.
        """
        self._loop = asyncio.get_running_loop()
        for directory in self.directories.all:
            directory.on_failure = self._failed_anywhere
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
        ids = {name: topic.topic_id for name, topic in wanted.items()}
        refused, aside = self.directories.find(ids, may_be_missing=tell_empty is not None)
        for target in aside:
            _log.warning("the cluster does not know this partition; kept aside", directory=str(target))
        for name, why in refused.items():
            self._give_up(name, why)
        empty = [
            (topic.topic_id, name.partition)
            for name, topic in wanted.items()
            if name not in refused and self.directories.directory_of(name) is None
        ]
        if tell_empty is not None:
            await tell_empty(empty)
        await self._open_in_threads(image, {name: wanted[name] for name in wanted if name not in refused})
        for directory in self.directories.all:
            directory.mark_unclean()
        self._image, self._opening.is_start = image, False
        for topic in image.topics.values():
            self._apply_topic(image, topic)
        for directory, leftover in self.directories.deleted_partitions():
            self._remove_grave(directory, leftover)

    async def _open_in_threads(self, image: ClusterImage, wanted: dict[TopicPartition, TopicImage]) -> None:
        if not wanted:
            return
        loop = asyncio.get_running_loop()
        threads = settings_of(image, self._settings).num_recovery_threads_per_data_dir
        pools = {directory: ThreadPoolExecutor(threads, "recovery") for directory in self.directories.all}
        places = {
            name: self.directories.directory_of(name) or self.directories.choose(name) for name in wanted
        }
        opening = [
            loop.run_in_executor(pool, self._opening.try_all, image, wanted, names)
            for directory, pool in pools.items()
            for names in chunks(
                [name for name in wanted if places[name] is directory],
                OPENED_AT_A_TIME if directory.checkpoints.clean else 1,
            )
        ]
        try:
            await self._take_opened(opening, len(wanted))
        except (Exception, asyncio.CancelledError):
            # The start ends here, once threads are through with the logs that they are at; the loop, on which
            # this node votes, goes on meanwhile.
            for pool in pools.values():
                pool.shutdown(wait=False, cancel_futures=True)
            await asyncio.wait(opening)
            raise
        finally:
            for pool in pools.values():
                pool.shutdown(wait=False)

    async def _take_opened(self, opening: Sequence[Opening], count: int) -> None:
        opened = logged = 0
        for future in asyncio.as_completed(opening):
            for name, replica in await future:
                self._take(name, replica)
                opened += 1
            if opened - logged >= PROGRESS_EVERY or opened == count:
                _log.info("logs opened", opened=opened, of=count)
                logged = opened

    def _take(self, name: TopicPartition, opened: Replica | Exception) -> None:
        """A replica comes in, or what kept it from that: want of room passes, the rest does not."""
        self._missing.pop(name, None)
        directory = self.directories.directory_of(name)
        if directory is not None and isinstance(opened, OSError):
            directory.on_error(opened)
        if directory is not None and directory.failure is not None:
            if isinstance(opened, Replica):
                opened.close(clean=False)
            self._give_up(name, directory.refusal or directory.failure)
        elif isinstance(opened, Replica):
            self._adopt(opened)
        elif isinstance(opened, OSError):
            _log.error("cannot open a log for now", partition=str(name), error=str(opened))
            self._missing[name] = False
        else:
            self._give_up(name, str(opened))

    async def close(self, *, clean: bool) -> None:
        """Closes every log, in the threads of its directory; a directory whose logs all closed clean needs no
        recovery. One that hangs is left as it is.
        """
        replicas = dict(self._all)
        self._all.clear()
        self._replicas.clear()
        closing = Closing(
            self.directories,
            self.checkpoints,
            replicas,
            frozenset({*self._offline, *self._missing}),
            self._settings.log_dirs_stop_timeout_ms / 1000,
        )
        await asyncio.gather(*(closing.close_in(one, clean=clean) for one in self.directories.online))

    # -- trouble --

    def fetch_anew(self, replica: Replica) -> None:
        """Of a follower: what was asked for its log holds no more."""
        if self._image is not None and (topic := self._image.topics.get(replica.topic_id)) is not None:
            self._roles.remove(replica)
            self._lead(topic, replica.name)

    def fail(self, replica: Replica, why: OSError) -> None:
        """The disk under a replica has failed (a thread found out, or a flush): its directory goes."""
        directory = self.directories.directory_of(replica.name)
        if directory is not None:
            directory.on_sync_error(why)

    def _failed_anywhere(self, directory: LogDirectory) -> None:
        """In whatever thread; also on the loop it must not run inside the operation that failed."""
        self._loop.call_soon_threadsafe(self._lose, directory)

    def _lose(self, directory: LogDirectory) -> None:
        """Takes the partitions of a directory that has failed offline; on the loop."""
        why = directory.refusal or "offline"
        names = self.directories.partitions_in(directory)
        for name in names:
            replica = self._all.get(name)
            if replica is not None:
                self._drop(replica)
                replica.failed = why
                self._tasks.spawn(f"close {name}", directory.run(partial(replica.close, clean=False)))
            self._missing.pop(name, None)
            self._offline[name] = why
        for name in names:
            self._moved(name)  # who waits for it is told
        _log.error(
            "a log directory went offline", directory=str(directory.path), why=why, partitions=len(names)
        )
        for listener in (*self.went_offline, *self.gave_up):
            listener()
        if not self.directories.online:
            self._fatal("the last log directory", OSError(why))
        elif holds(directory, self._settings.metadata_directory):
            self._fatal("the log directory with the metadata", OSError(why))

    def _give_up(self, name: TopicPartition, why: str) -> None:
        _log.error("a partition is offline", partition=str(name), why=why)
        self._offline[name] = why
        for listener in self.gave_up:
            listener()

    # -- following the image --

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """Carries out what changed between two images. Called on the event loop, in order."""
        self._image = new
        gone, changed = changed_topics(old, new)
        for topic in gone:
            self._remove(topic, range(len(topic.partitions)))
        for topic in changed:
            self._remove(topic, [n for n in range(len(topic.partitions)) if self._has_left(topic, n)])
        if old.brokers is not new.brokers:
            self._roles.brokers_changed(new, self)
        if old.configs is not new.configs:  # before the roles: min.insync.replicas goes with an in-sync set
            changed_config = self._configs.changed(old, new)
            for replica in self:
                if changed_config(replica.name.topic):
                    replica.update_config(self._configs.of(new, replica.name.topic))
        self._make(new, {name: topic for topic in changed for name in self._lead_topic(topic)})

    async def make_missing(self) -> None:
        """Tries again what found no room: to open or make logs (in threads: some are large), and to lead."""
        if all(directory.is_full for directory in self.directories.online):
            return
        self._postponed.try_again()
        for name in [name for name, at_it in self._missing.items() if not at_it]:
            image = self._image
            topic = image.topic(name.topic) if image is not None else None
            if image is None or topic is None or self._missing.get(name) is not False:
                continue  # gone, or another call is at it
            self._missing[name] = True
            directory = self.directories.choose(name)
            _, opened = await directory.run(partial(self._opening.try_one, image, topic, name))
            taking = self._take_late(directory, topic, name, opened)
            if isinstance(opened, Replica) and opened.log.was_damaged:
                self._tasks.spawn(f"take {name}", taking)  # a quorum may long be away: others do not wait
            else:
                await taking

    async def _take_late(
        self, directory: LogDirectory, topic: TopicImage, name: TopicPartition, opened: Replica | Exception
    ) -> None:
        """The broker may serve by now: what is damaged gets no role before that is known elsewhere."""
        if isinstance(opened, Replica) and opened.log.was_damaged and self.tell_damaged is not None:
            await self.tell_damaged(opened)
        image = self._image
        now = image.topics.get(topic.topic_id) if image is not None else None
        if image is not None and now is not None and name in self._missing:
            self._take(name, opened)
            self._apply_topic(image, now)
            return
        if isinstance(opened, Replica):  # deleted meanwhile, or its directory failed
            await directory.run(partial(opened.close, clean=False))
        if name in self._missing:
            self._missing[name] = False  # that of a topic made anew

    async def made(self) -> None:
        """Returns once all partitions of the images so far are made, or given up."""
        while self._making:
            await self._something_made.wait()

    def _make(self, image: ClusterImage, fresh: dict[TopicPartition, TopicImage]) -> None:
        """Few of them at once; of those that had a namesake, the disk is first to forget what it knows."""
        slow = fresh
        if len(fresh) <= MADE_ON_LOOP:
            slow = {name: topic for name, topic in fresh.items() if self.directories.has_checkpoint(name)}
            for name, topic in fresh.items():
                if name not in slow:
                    self._make_now(image, topic, name)
        if slow:
            self._making.update(slow)
            self._tasks.spawn("make partitions", self._make_in_threads(image, slow))

    async def _make_in_threads(self, image: ClusterImage, topics: dict[TopicPartition, TopicImage]) -> None:
        """Many at once, in the threads of their directories: the disk takes its time over each."""
        by_directory = defaultdict[LogDirectory, list[TopicPartition]](list)
        try:
            for name in topics:
                try:
                    by_directory[self.directories.choose(name)].append(name)
                except DirectoryUnusable as failure:
                    self._give_up(name, str(failure))

            async def lane(directory: LogDirectory, left: Iterator[Sequence[TopicPartition]]) -> None:
                for names in left:
                    made = await directory.run(partial(self._opening.try_all, image, topics, names))
                    taken = [self._take_made(topics[name], name, opened) for name, opened in made]
                    if not all(taken):
                        await self._sync_names(directory)

            lanes: list[Coroutine[None, None, None]] = []
            for directory, names in by_directory.items():
                left = chunks(names, OPENED_AT_A_TIME)
                lanes += [lane(directory, left) for _ in range(MADE_SIDE_BY_SIDE)]
            await asyncio.gather(*lanes)
        finally:
            for name, topic in topics.items():
                if self._making.get(name) is topic:
                    del self._making[name]
            self._something_made.set()
            self._something_made = asyncio.Event()
        for listener in self.came:
            listener()

    def _take_made(self, topic: TopicImage, name: TopicPartition, opened: Replica | Exception) -> bool:
        """Back on the loop, where its topic may be deleted by now, and made anew under the same name; then it
        goes, and this is False.
        """
        self._making.pop(name, None)
        now = self._image.topic(name.topic) if self._image is not None else None
        if now is not None and now.topic_id == topic.topic_id:
            self._take(name, opened)
            self._lead(now, name)
            return True
        directory = self.directories.directory_of(name)
        self.directories.forget(name)
        if isinstance(opened, Replica):
            opened.close(clean=False)
        if directory is not None and directory.failure is None:
            self._bury(name, directory, 0)
        if now is not None and self._image is not None and self._is_placed_here(now, name.partition):
            self._make(self._image, {name: now})
        return False

    def _apply_topic(self, image: ClusterImage, topic: TopicImage) -> None:
        self._make(image, dict.fromkeys(self._lead_topic(topic), topic))

    def _lead_topic(self, topic: TopicImage) -> list[TopicPartition]:
        """Leads what stands; returns those that are placed here and have yet to be made."""
        fresh = []
        for number in range(len(topic.partitions)):
            if self._is_placed_here(topic, number):
                name = TopicPartition(topic.name, number)
                if name in self._all:
                    self._lead(topic, name)
                elif not self.is_offline(name) and name not in self._making:
                    fresh.append(name)
        return fresh

    def _is_placed_here(self, topic: TopicImage, number: int) -> bool:
        at = topic.partitions[number : number + 1]
        return any(self._settings.node_id in partition.replicas for partition in at)

    def _has_left(self, topic: TopicImage, number: int) -> bool:
        """Whether a replica is here that has been moved elsewhere (KIP-455)."""
        replica = self._replicas.get((topic.topic_id, number))
        return replica is not None and not self._is_placed_here(topic, number)

    def _make_now(self, image: ClusterImage, topic: TopicImage, name: TopicPartition) -> None:
        try:
            self.directories.choose(name)
            self._take(*self._opening.try_one(image, topic, name))
        except DirectoryUnusable as failure:
            self._give_up(name, str(failure))
        self._lead(topic, name)

    def _lead(self, topic: TopicImage, name: TopicPartition) -> None:
        replica = self._all.get(name)
        if replica is None:
            return
        partition = topic.partitions[name.partition]
        is_new = partition.leader_epoch > replica.leader_epoch
        if self._image is not None and partition.leader == self._settings.node_id and is_new:
            try:
                self._opening.skip_remote(self._image, replica)
            except OSError as failure:
                self._postponed.postpone(replica, failure)
                return
        self._postponed.settled(replica)
        self._roles.apply(replica, partition)

    def _lead_again(self, name: TopicPartition) -> None:
        if self._image is not None and (topic := self._image.topic(name.topic)) is not None:
            self._lead(topic, name)

    def _adopt(self, replica: Replica) -> None:
        if self._image is not None:  # settings may have changed while a thread opened it
            replica.update_config(self._configs.of(self._image, replica.name.topic))
        self._all[replica.name] = replica
        self._replicas[replica.name] = replica
        self._replicas[replica.topic_id, replica.name.partition] = replica
        replica.listeners.append(self._on_moved)
        replica.flusher = self._flusher
        replica.suspect = partial(self._on_suspicion, replica)
        if replica.owes_checkpoint:  # the power went, and the end of the log with it
            self.checkpoints.lower(replica)

    def _on_moved(self, replica: Replica) -> None:
        self._moved(replica.name)

    def _on_suspicion(self, replica: Replica, offset: int, why: str) -> None:
        self.suspected(replica, offset, why)

    def _drop(self, replica: Replica) -> None:
        self.former_traffic += replica.traffic
        self._roles.remove(replica)
        self._postponed.settled(replica)
        self._all.pop(replica.name, None)
        self._replicas.pop(replica.name, None)
        self._replicas.pop((replica.topic_id, replica.name.partition), None)
        for listener in self.dropped:
            listener(replica)

    def _remove(self, topic: TopicImage, numbers: Iterable[int]) -> None:
        touched = set[LogDirectory]()
        for number in numbers:
            name = TopicPartition(topic.name, number)
            self._offline.pop(name, None)
            self._missing.pop(name, None)
            if name in self._making:
                continue  # a thread is at it, and goes through with it
            replica, directory = self._all.get(name), self.directories.directory_of(name)
            self.directories.forget(name)
            if replica is not None:
                self._drop(replica)
                replica.close(clean=False)
                self._moved(name)
            if directory is not None and directory.failure is None:
                delay_ms = replica.config.file_delete_delay_ms if replica is not None else 0
                self._bury(name, directory, delay_ms)
                touched.add(directory)
        for directory in touched:
            self._tasks.spawn(f"sync {directory.path}", self._sync_names(directory))

    def _bury(self, name: TopicPartition, directory: LogDirectory, delay_ms: int) -> None:
        try:
            if directory.holds(name):
                self._remove_grave(directory, directory.rename_deleted(name), delay_ms)
        except OSError as failure:
            _log.error("cannot remove a deleted partition", partition=str(name), error=str(failure))

    def _buried_anywhere(self, directory: LogDirectory, grave: Path) -> None:
        """In whatever thread."""
        self._loop.call_soon_threadsafe(self._remove_grave, directory, grave)

    def _remove_grave(self, directory: LogDirectory, grave: Path, delay_ms: int = 0) -> None:
        self._tasks.spawn(f"remove {grave.name}", directory.remove_later(grave, delay_ms))

    async def _sync_names(self, directory: LogDirectory) -> None:
        with suppress(OSError):  # the directory has noted it
            await directory.run(directory.sync_names)
