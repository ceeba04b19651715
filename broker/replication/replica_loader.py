"""Replica loader: opens or creates a replica in its log directory, according to its checkpoints and the
image.

Runs in several threads when the broker starts or creates many partitions. Called by the replica manager,
which adds the results on the event loop.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from tierlog.base.clock import Clock
from tierlog.base.leader_epochs import earliest_starts
from tierlog.base.safeguards import safeguard
from tierlog.base.types import TopicIdPartition, TopicPartition
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_events import ManifestUnread, RemoteLogDiverges
from tierlog.broker.replication.topic_configs import TopicConfigs
from tierlog.broker.storage.damage import is_known
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.log_dir import NO_CHECKPOINTS, DirectoryUnusable, LogDirectory
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.broker.storage.segment import CorruptLog
from tierlog.config.node import NodeSettings
from tierlog.metadata.image import ClusterImage, RemotePartition, TopicImage
from tierlog.records.errors import RecordsError
from tierlog.tiering.lineage import Divergence, find_divergence

UNREADABLE = (CorruptLog, RecordsError, ValueError)
"""Exceptions from opening a log that a retry would raise again."""

LoadedReplicas = list[tuple[TopicPartition, Replica | Exception]]
_log = structlog.get_logger("tierlog.replicas")


class ReplicaLoader:
    def __init__(
        self,
        settings: NodeSettings,
        directories: LogDirectories,
        configs: TopicConfigs,
        clock: Clock,
        rng: random.Random,
        *,
        on_renamed: Callable[[LogDirectory, Path], object],
    ) -> None:
        """`on_renamed`: called, in any thread, with the renamed directory of an earlier topic of the same
        name."""
        self._is_starting = True
        """While the broker starts, `LogDirectories.find` has renamed the directories of other topics."""
        self._settings = settings
        self._directories = directories
        self._configs = configs
        self._clock = clock
        self._rng = rng
        self._on_renamed = on_renamed

    def finish_start(self) -> None:
        """Call this once all replicas of the start are loaded."""
        self._is_starting = False

    def load_all(
        self,
        image: ClusterImage,
        topics: Mapping[TopicPartition, TopicImage],
        names: Sequence[TopicPartition],
    ) -> LoadedReplicas:
        return [self.load(image, topics[name], name) for name in names]

    def load(
        self, image: ClusterImage, topic: TopicImage, name: TopicPartition
    ) -> tuple[TopicPartition, Replica | Exception]:
        try:
            return name, self._open(image, topic, name)
        except (OSError, *UNREADABLE) as failure:
            return name, failure

    def _open(self, image: ClusterImage, topic: TopicImage, name: TopicPartition) -> Replica:
        directory = self._directories.directory_of(name)
        if directory is None or directory.failure is not None:
            raise DirectoryUnusable(None, "the log directory is offline", str(name))
        remote = image.remote_partition(topic.topic_id, name.partition)
        if not self._is_starting and (renamed := directory.remove_other_topic(name, topic.topic_id)):
            self._on_renamed(directory, renamed)
        is_new = not directory.holds(name)
        checkpoints = NO_CHECKPOINTS if is_new else directory.checkpoints
        high_watermark = checkpoints.high_watermarks.get(name, 0)
        log = PartitionLog.open(
            directory.create(name, topic.topic_id) if is_new else directory.directory(name),
            self._configs.of(image, topic.name),
            directory.files,
            self._clock.now_ms(),
            log_start_offset=max(checkpoints.log_starts.get(name, 0), remote.log_start_offset),
            recovery_point=checkpoints.recovery_point(name),
            high_watermark=high_watermark,
            clean=checkpoints.clean,
            may_have_lost=self._directories.may_have_lost,
            same_boot=self._directories.same_boot,
            cleaned_to=checkpoints.cleaned_to(name),
            has_been_tiered=TopicIdPartition(topic.topic_id, name.partition) in image.remote,
            rng=self._rng,
        )
        replica = Replica(name, topic.topic_id, self._settings.node_id, log, high_watermark)
        replica.log_dir = directory
        if replica.wants_flush():
            # A killed process may leave unflushed records. Flush them now: a retry of such a batch is
            # acknowledged at once as a duplicate.
            replica.flush()
        if topic.partitions[name.partition].leader == self._settings.node_id:
            advance_to_remote_end(image, replica, self._clock.now_ms())
        truncated, dropped = replica.log.recovered_truncated_bytes, replica.log.recovered_dropped_segments
        if truncated or dropped:
            _log.warning("log.truncated.start", partition=str(name), bytes=truncated, segments=dropped)
        if replica.log.missing_end:
            _log.error(
                "log.shorter_than_checkpoint",
                partition=str(name),
                directory=str(replica.log.directory),
                log_end_offset=replica.log_end_offset,
                expected_end_offset=replica.log.missing_end,
            )
        return replica

    def prepare_leader(
        self, image: ClusterImage, replica: Replica, leader_epoch: int, *, is_unclean: bool
    ) -> ManifestUnread | RemoteLogDiverges | None:
        """Returns what must happen to the manifest before the replica leads; None if it may lead. Raises
        OSError if the log is not ready."""
        if replica.id in image.unread_manifests:
            return ManifestUnread(replica, leader_epoch)
        advance_to_remote_end(image, replica, self._clock.now_ms(), is_unclean=is_unclean)
        diverged = self.resolve_divergence(image, replica) if is_unclean else None
        return None if diverged is None else RemoteLogDiverges(replica, leader_epoch, diverged)

    def resolve_divergence(self, image: ClusterImage, replica: Replica) -> int | None:
        """Check a future leader's log against the manifest, from which it differs only after an unclean
        election (docs/adr/0027).

        Returns the base offset of the first manifest entry with other records, which must be removed before
        the replica leads; None if nothing has to be removed. If the local log starts after that entry, the
        manifest is kept and the local log is discarded. Raises OSError as `advance_to_remote_end` does, and
        if the local batch cannot be read: its log may differ, so it must not lead before a repair.
        """
        remote, log = image.remote_partition(*replica.id), replica.log
        if replica.is_elected or log.log_end_offset <= log.local_log_start_offset:
            return None
        found = find_divergence(remote, log.epochs, log.local_log_start_offset, log.log_end_offset)
        if found is None:
            return None
        what: dict[str, object] = {
            "partition": str(replica.name),
            "remote_epoch": found.remote_epoch,
            "from_offset": found.first_offset,
            "remote_end_offset": found.last_offset + 1,
            "local_log_start_offset": log.local_log_start_offset,
            "log_end_offset": log.log_end_offset,
        }
        try:
            differs = _differs_at(log, found)
        except (CorruptLog, RecordsError) as damage:
            replica.suspect(found.last_offset, str(damage))
            at = found.last_offset
            why = f"the log is damaged at offset {at} and may differ from its manifest there"
            raise OSError(f"{why}: {damage}") from damage
        if not differs:
            _log.error(
                "replica.tier_epochs.differ",
                **what,
            )
            return None
        if found.is_covered:
            _log.error(
                "replica.unclean.remote_dropped",
                **what,
            )
            return found.first_offset
        _log.error(
            "replica.unclean.local_dropped",
            **what,
        )
        replica.as_follower.start_at(found.last_offset + 1, self._clock.now_ms())
        return None


def advance_to_remote_end(
    image: ClusterImage, replica: Replica, now_ms: int, *, is_unclean: bool = False
) -> None:
    """Move a future leader's log end to the end of the remote log, so that no offset is used twice.

    Needed after a bulk load, also for the leader of the epoch before, or if the disk is new or the log has
    lost its end. A follower gets its log end from its leader instead. `is_unclean`: the replica may never
    have been in sync. Raises OSError, in particular BlockingIOError during a flush.
    """
    remote, log = image.remote_partition(*replica.id), replica.log
    if not _lacks_offsets(replica, remote):
        return
    used_end = remote.used_end_offset
    if replica.is_elected:
        if replica.failed is not None:
            return
        replica.resign()
    load = remote.loads[-1] if remote.loads else None
    if is_unclean or load is None or (load.base_offset, load.end_offset) != (log.log_end_offset, used_end):
        replica.as_follower.start_at(used_end, now_ms)
        return
    # The log has everything before the load, so its producer state is that of the load's end.
    epochs = earliest_starts(log.epochs.entries, [(load.leader_epoch, load.base_offset)])
    snapshot = log.producers.encode()
    replica.as_follower.start_at(used_end, now_ms, epochs=epochs, producer_snapshot=snapshot)
    replica.flush()
    log.active.create()


@safeguard("a leader's log does not end before the remote log")
def _lacks_offsets(replica: Replica, remote: RemotePartition) -> bool:
    return replica.log_end_offset < remote.used_end_offset


def _differs_at(log: PartitionLog, found: Divergence) -> bool:
    """Whether the local batch at the offset has another leader epoch than the remote record there.

    The epoch cache alone does not prove this. If its file is missing, it is rebuilt from the batches, and
    compaction may have removed some of them. Raises CorruptLog, also if the batch has an epoch that neither
    of the two has, and RecordsError.
    """
    segment = next(one for one in log.segment_files if one.end_offset > found.last_offset)
    if is_known(segment.damage, found.last_offset):
        raise CorruptLog(f"{segment.path()} is damaged")
    at = segment.find(found.last_offset)
    if at is None or not at.header.base_offset <= found.last_offset <= at.header.last_offset:
        return False
    epoch = at.header.leader_epoch
    if epoch != found.remote_epoch and not log.epochs.allows(epoch, found.last_offset):
        raise CorruptLog(f"{segment.path()}: leader epoch {epoch}")
    return epoch != found.remote_epoch
