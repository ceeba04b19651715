"""All replicas of this broker: made, led and removed as the cluster image says; recovered at start.

The image is the only authority: `follow` is called with each committed one, before any handler sees it. Logs
are opened in threads at start; later changes, which are small, happen on the event loop, which owns replicas.
Handlers look replicas up by name or by topic id; `moved` is told whenever one of them has something new.
"""

import asyncio
import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import structlog

from tierlog.broker.ports.clock import Clock
from tierlog.broker.ports.files import Files
from tierlog.broker.ports.tasks import TaskGroup
from tierlog.broker.ports.types import TopicPartition
from tierlog.broker.runtime.data_directory import CheckpointRow, Checkpoints, DataDirectory
from tierlog.broker.runtime.replica import Replica, flush_at_once
from tierlog.broker.settings.node import NodeSettings
from tierlog.broker.settings.topic import TopicConfig
from tierlog.metadata.image import ClusterImage, PartitionImage, TopicImage

PROGRESS_EVERY = 100
"""Logs recovered between two progress lines."""

NO_CHECKPOINTS = Checkpoints(clean=False, recovery_points={}, log_starts={}, cleaned={})

Moved = Callable[[TopicPartition], None]
_log = structlog.get_logger("tierlog.replicas")


class ReplicaManager:
    def __init__(
        self,
        settings: NodeSettings,
        directory: DataDirectory,
        files: Files,
        clock: Clock,
        tasks: TaskGroup,
        rng: random.Random,
        *,
        moved: Moved,
        flusher: Callable[[Replica], None] = flush_at_once,
    ) -> None:
        self.directory = directory
        self._settings = settings
        self._files = files
        self._clock = clock
        self._tasks = tasks
        self._rng = rng
        self._moved = moved
        self._flusher = flusher
        self._replicas: dict[tuple[str | uuid.UUID, int], Replica] = {}
        self._all: dict[TopicPartition, Replica] = {}
        self._image: ClusterImage | None = None
        self._missing = False  # a log could not be made: the disk was full

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

    # -- start and stop --

    async def open_all(self, image: ClusterImage) -> None:
        """Opens what the image places here, in threads; sets aside what it does not know."""
        checkpoints = self.directory.take_checkpoints()
        present = self.directory.partitions()
        wanted = {
            TopicPartition(topic.name, number): topic
            for topic in image.topics.values()
            for number, partition in enumerate(topic.partitions)
            if self._settings.node_id in partition.replicas
        }
        for name, topic_id in present.items():
            if name not in wanted or (topic_id is not None and topic_id != wanted[name].topic_id):
                target = self.directory.set_aside(name)
                _log.warning("the cluster does not know this partition; kept aside", directory=str(target))
        await self._open_in_threads(image, wanted, checkpoints)
        self._image = image
        for topic in image.topics.values():
            self._apply_topic(image, topic)
        for leftover in self.directory.deleted():
            self._tasks.spawn(f"remove {leftover.name}", asyncio.to_thread(self.directory.remove, leftover))

    async def _open_in_threads(
        self, image: ClusterImage, wanted: dict[TopicPartition, TopicImage], checkpoints: Checkpoints
    ) -> None:
        if not wanted:
            return
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(self._settings.num_recovery_threads_per_data_dir, "recovery") as pool:
            opening = [
                loop.run_in_executor(pool, partial(self._open, image, topic, name.partition, checkpoints))
                for name, topic in wanted.items()
            ]
            for number, future in enumerate(asyncio.as_completed(opening), 1):
                self._adopt(await future)
                if number % PROGRESS_EVERY == 0 or number == len(opening):
                    _log.info("logs opened", opened=number, of=len(opening), clean=checkpoints.clean)

    def _open(
        self, image: ClusterImage, topic: TopicImage, number: int, checkpoints: Checkpoints | None = None
    ) -> Replica:
        """Opens or creates a log; may run in a thread."""
        name = TopicPartition(topic.name, number)
        config = self._config(image, topic.name)
        remote = image.remote_partition(topic.topic_id, number)
        is_new = not self.directory.holds(name)
        known = checkpoints if checkpoints is not None and not is_new else NO_CHECKPOINTS
        replica = Replica.open(
            name,
            topic.topic_id,
            self._settings.node_id,
            self.directory.create(name, topic.topic_id) if is_new else self.directory.directory(name),
            config,
            self._files,
            self._clock.now_ms(),
            log_start_offset=max(known.log_starts.get(name, 0), remote.log_start_offset),
            recovery_point=known.recovery_points.get(name, 0),
            clean=known.clean,
            cleaned_to=known.cleaned.get(name),
            rng=self._rng,
            producer_expiration_ms=self._settings.producer_id_expiration_ms,
        )
        used_end = remote.end_offset or remote.copied_end_offset or 0
        if replica.log_end_offset < used_end:
            # The disk is new or lost its end, the history is remote: no offset of it is used twice.
            replica.start_at(used_end, self._clock.now_ms())
        cut = replica.log.recovered_cut_bytes
        if cut or replica.log.recovered_dropped_segments:
            dropped = replica.log.recovered_dropped_segments
            _log.warning("cut a damaged end off a log", partition=str(name), bytes=cut, segments=dropped)
        return replica

    async def close(self, *, clean: bool) -> None:
        """Closes every log, in threads; after a clean close the next start needs no recovery."""
        replicas = list(self._all.values())
        self._all.clear()
        self._replicas.clear()
        with ThreadPoolExecutor(self._settings.num_recovery_threads_per_data_dir, "closing") as pool:
            loop = asyncio.get_running_loop()
            await asyncio.gather(
                *(loop.run_in_executor(pool, partial(replica.close, clean=clean)) for replica in replicas)
            )
        if clean:
            self.directory.write_checkpoints(lambda: _rows(replicas))
            self.directory.mark_clean()

    async def write_checkpoints(self) -> None:
        """Recovery points and log starts as they are now, durable when this returns. Raises OSError."""
        await asyncio.to_thread(self.directory.write_checkpoints, lambda: _rows(self))

    async def write_cleaned(self) -> None:
        """Up to where each log is compacted, durable when this returns. Raises OSError."""
        await asyncio.to_thread(self.directory.write_cleaned, lambda: _cleaned(self))

    # -- following the image --

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """Carries out what changed between two images. Called on the event loop, in order."""
        self._image = new
        if old.topics is not new.topics:
            for topic_id, topic in old.topics.items():
                if topic_id not in new.topics:
                    self._remove_topic(topic)
            for topic_id, topic in new.topics.items():
                if old.topics.get(topic_id) is not topic:
                    self._apply_topic(new, topic)
        if old.configs is not new.configs:
            for replica in self:
                name = replica.name.topic
                if old.topic_overrides(name) is not new.topic_overrides(name):
                    replica.update_config(self._config(new, name))

    def make_missing(self) -> None:
        """Tries again to make the logs for which there was no room."""
        if self._missing and self._image is not None:
            self._missing = False
            for topic in self._image.topics.values():
                self._apply_topic(self._image, topic)

    def _apply_topic(self, image: ClusterImage, topic: TopicImage) -> None:
        for number, partition in enumerate(topic.partitions):
            if self._settings.node_id in partition.replicas:
                self._apply_partition(image, topic, number, partition)

    def _apply_partition(
        self, image: ClusterImage, topic: TopicImage, number: int, partition: PartitionImage
    ) -> None:
        replica = self._all.get(TopicPartition(topic.name, number))
        if replica is None:
            try:
                replica = self._open(image, topic, number)
            except OSError as failure:
                _log.error("cannot create a log", partition=f"{topic.name}-{number}", error=str(failure))
                self._missing = True
                return
            self._adopt(replica)
        if partition.leader == self._settings.node_id:
            replica.become_leader(partition.leader_epoch, partition.partition_epoch, partition.in_sync)

    def _adopt(self, replica: Replica) -> None:
        self._all[replica.name] = replica
        self._replicas[replica.name] = replica
        self._replicas[replica.topic_id, replica.name.partition] = replica
        replica.listeners.append(self._on_moved)
        replica.flusher = self._flusher

    def _on_moved(self, replica: Replica) -> None:
        self._moved(replica.name)

    def _remove_topic(self, topic: TopicImage) -> None:
        for number in range(len(topic.partitions)):
            replica = self._all.pop(TopicPartition(topic.name, number), None)
            if replica is None:
                continue
            self._replicas.pop(replica.name, None)
            self._replicas.pop((replica.topic_id, number), None)
            replica.close(clean=False)
            self._moved(replica.name)
            self._bury(replica)

    def _bury(self, replica: Replica) -> None:
        try:
            directory = self.directory.bury(replica.name)
        except OSError as failure:
            _log.error("cannot remove a deleted partition", partition=str(replica.name), error=str(failure))
            return
        delay_s = replica.config.file_delete_delay_ms / 1000
        self._tasks.spawn(f"remove {directory.name}", self._remove_later(directory, delay_s))

    async def _remove_later(self, directory: Path, delay_s: float) -> None:
        await asyncio.sleep(delay_s)  # fetches that are being answered still read the files
        await asyncio.to_thread(self.directory.remove, directory)

    def _config(self, image: ClusterImage, topic: str) -> TopicConfig:
        return self._settings.topic_config(image.topic_overrides(topic))


def _rows(replicas: Iterable[Replica]) -> list[CheckpointRow]:
    return [(replica.name, replica.recovery_point, replica.log_start_offset) for replica in replicas]


def _cleaned(replicas: Iterable[Replica]) -> dict[TopicPartition, int]:
    return {
        replica.name: replica.log.cleaned_to for replica in replicas if replica.log.cleaned_to is not None
    }
