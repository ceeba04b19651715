"""One replica, opened or made in its directory, with what its checkpoints and the image say of its log.

May run in a thread: the node's start opens many side by side, and later makes many so. Called by the replica
manager, which takes in what comes of it on the event loop.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from tierlog.base.clock import Clock
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.topic_configs import TopicConfigs
from tierlog.broker.storage.log_dir import NO_CHECKPOINTS, DirectoryUnusable, LogDirectory
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.broker.storage.segment import CorruptLog
from tierlog.config.node import NodeSettings
from tierlog.metadata.image import ClusterImage, TopicImage
from tierlog.records.errors import RecordsError

UNREADABLE = (CorruptLog, RecordsError, ValueError)
"""What opening a log raises that no disk and no waiting will change."""

Opened = list[tuple[TopicPartition, Replica | Exception]]
_log = structlog.get_logger("tierlog.replicas")


class ReplicaOpening:
    def __init__(
        self,
        settings: NodeSettings,
        directories: LogDirectories,
        configs: TopicConfigs,
        clock: Clock,
        rng: random.Random,
        *,
        buried: Callable[[LogDirectory, Path], object],
    ) -> None:
        """`buried`: told, in any thread, of a grave that made way."""
        self.is_start = True
        """`LogDirectories.find` has looked who lies where, and set aside what is another topic's."""
        self._settings = settings
        self._directories = directories
        self._configs = configs
        self._clock = clock
        self._rng = rng
        self._buried = buried

    def try_all(
        self,
        image: ClusterImage,
        topics: Mapping[TopicPartition, TopicImage],
        names: Sequence[TopicPartition],
    ) -> Opened:
        return [self.try_one(image, topics[name], name) for name in names]

    def try_one(
        self, image: ClusterImage, topic: TopicImage, name: TopicPartition
    ) -> tuple[TopicPartition, Replica | Exception]:
        try:
            return name, self._open(image, topic, name)
        except (OSError, *UNREADABLE) as failure:
            return name, failure

    def _open(self, image: ClusterImage, topic: TopicImage, name: TopicPartition) -> Replica:
        """In the place that it was given."""
        directory = self._directories.directory_of(name)
        if directory is None or directory.failure is not None:
            raise DirectoryUnusable(None, "the log directory is offline", str(name))
        remote = image.remote_partition(topic.topic_id, name.partition)
        if not self.is_start and (grave := directory.remove_other_topic(name, topic.topic_id)):
            self._buried(directory, grave)
        is_new = not directory.holds(name)
        known = NO_CHECKPOINTS if is_new else directory.checkpoints
        replica = Replica.open(
            name,
            topic.topic_id,
            self._settings.node_id,
            directory.create(name, topic.topic_id) if is_new else directory.directory(name),
            self._configs.of(image, topic.name),
            directory.files,
            self._clock.now_ms(),
            log_start_offset=max(known.log_starts.get(name, 0), remote.log_start_offset),
            recovery_point=known.recovery_point(name),
            clean=known.clean,
            may_have_lost=self._directories.may_have_lost,
            cleaned_to=known.cleaned_to(name),
            rng=self._rng,
            producer_expiration_ms=self._settings.producer_id_expiration_ms,
            high_watermark=known.high_watermarks.get(name, 0),
        )
        replica.room = directory
        if topic.partitions[name.partition].leader == self._settings.node_id:
            self.skip_remote(image, replica)
        cut, dropped = replica.log.recovered_truncated_bytes, replica.log.recovered_dropped_segments
        if cut or dropped:
            _log.warning("cut a damaged end off a log", partition=str(name), bytes=cut, segments=dropped)
        if replica.log.missing_end:
            _log.error(
                "a log ends before the end that its checkpoints record: files were lost or put back to an "
                "older copy; this replica leaves the in-sync set and fetches from the leader; if no other "
                "replica has its records, stop the broker at once and put the newer files back",
                partition=str(name),
                directory=str(replica.log.directory),
                log_end_offset=replica.log_end_offset,
                expected_end_offset=replica.log.missing_end,
            )
        return replica

    def skip_remote(self, image: ClusterImage, replica: Replica) -> None:
        """Who is to lead with a disk that is new or has lost its end must use no offset of what is remote
        again; a follower learns from its leader where to go on. Raises OSError, above all BlockingIOError
        while a flush is under way.
        """
        remote = image.remote_partition(replica.topic_id, replica.name.partition)
        used_end = remote.end_offset or remote.copied_end_offset or 0
        if replica.log_end_offset < used_end and not replica.is_elected:
            replica.start_at(used_end, self._clock.now_ms())
