"""Quorum recovery: makes a stopped node a quorum of one, after a majority of the voters lost its disks.

The lost majority may have committed entries beyond this node's log. Identifiers that those entries may have
used must not be used again, so these continue after a wide gap: the term, leader and partition epochs,
producer ids, and indexes. Indexes serve as broker epochs, and the gap makes a broker that had read further
take the snapshot.

The manifests in the bucket may be newer than the recovered ones. Each tiered partition is marked, so that its
next leader reads the bucket's manifest before it leads (docs/adr/0035). Objects that the lost majority's
manifests may list leave the delete queue: announced pages, and objects that entries dropped which are not
known to be committed.

The directory gets a new id. If a lost voter returns, this node rejects its requests and it rejects this
node's. Voters are usually brokers too, so the lost ones are fenced. Otherwise the first broker to restart
would drop out of its in-sync replica sets and leave only lost brokers there.

Called by the command line, which ensures that the node does not run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from immutables import Map
from msgspec.structs import replace

from tierlog.base.files import Files
from tierlog.base.types import Rng, TopicIdPartition, random_uuid
from tierlog.metadata.controller.commands import FenceBroker
from tierlog.metadata.controller.decide import decide
from tierlog.metadata.controller.remote import is_tiered
from tierlog.metadata.delete_queue import QueuedDelete
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage, TopicImage
from tierlog.metadata.image_codec import encode_image
from tierlog.metadata.quorum.replay import image_of, replay
from tierlog.metadata.quorum.storage import LoadedMetadata, MetadataStorage, read_owner
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.membership import Configuration, Member
from tierlog.metadata.raft.messages import NO_NODE, HardState, Snapshot
from tierlog.metadata.records import PartitionRecord

INDEX_GAP = 1_000_000
"""Assumed maximum of entries that the lost majority had beyond this log: hours of them."""
TERM_GAP = 1_000_000
"""Assumed maximum of elections that it held: days of nothing else."""
EPOCH_GAP = 1_000
"""Assumed maximum of leader elections, or ISR changes, of one partition among those entries."""
PRODUCER_ID_GAP = 100_000_000
"""Assumed maximum of producer ids allocated by those entries."""


class NotRecoverable(Exception):
    """The directory holds no metadata to recover, or needs no recovery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySummary:
    """Summary of the node's snapshot and log. `committed`: last index known to be committed."""

    cluster_id: str
    node_id: int
    term: int
    last_index: int
    committed: int
    voters: tuple[int, ...]
    topics: int
    partitions: int


class Recovery:
    """Opening truncates a torn tail, and releases the disk reserve until the next start. Then call `apply`,
    or not, and `close`. Raises NotRecoverable, DamagedLog, ForeignDirectory, OSError."""

    def __init__(self, files: Files, directory: Path, rng: Rng) -> None:
        owner = read_owner(files, directory)
        if owner is None:
            raise NotRecoverable(f"{directory} contains no quorum metadata")
        self._cluster_id, self._node_id = owner
        self._rng, self._new_directory_id = rng, random_uuid(rng)
        self._storage = MetadataStorage(
            files,
            directory,
            cluster_id=self._cluster_id,
            node_id=self._node_id,
            new_directory_id=self._new_directory_id,
        )
        try:
            self._loaded = self._storage.open()
            self._image = _image(self._cluster_id, self._loaded)
            self._configuration = self._newest_configuration()
        except BaseException:
            self._storage.close()
            raise

    def close(self) -> None:
        self._storage.close()

    @property
    def summary(self) -> RecoverySummary:
        topics, state = self._image.topics.values(), self._loaded.hard_state
        return RecoverySummary(
            cluster_id=self._cluster_id,
            node_id=self._node_id,
            term=state.term,
            last_index=self._image.index,
            committed=min(max(state.commit, self._loaded.snapshot.index), self._image.index),
            voters=tuple(self._configuration.voters),
            topics=len(topics),
            partitions=sum(len(topic.partitions) for topic in topics),
        )

    def apply(self) -> None:
        """Replace the log with one snapshot. After a crash in between, run the recovery again."""
        term = self._loaded.hard_state.term + TERM_GAP
        lost = self._configuration.voters.keys() - {self._node_id}
        committed = _image(self._cluster_id, self._loaded, self.summary.committed)
        image = with_unread_manifests(self._image, committed)
        image = _with_gaps(_fenced(image, sorted(lost), self._rng))
        url = self._configuration.members.get(self._node_id, Member()).url
        single = Configuration({self._node_id: Member(url, self._new_directory_id)})
        self._storage.set_directory_id(self._new_directory_id)
        snapshot = Snapshot(image.index, term, encode_image(image), single)
        self._storage.save(snapshot, (), HardState(term, NO_NODE, image.index))

    def _newest_configuration(self) -> Configuration:
        """Raises NotRecoverable if the node is the only voter, or there is no entry at all."""
        if self._image.index == 0:
            raise NotRecoverable("the node's log is empty: it has never received any metadata")
        log = RaftLog(self._loaded.snapshot, self._loaded.entries, self._loaded.hard_state.commit)
        if log.configuration is None:
            return Configuration(
                {}
            )  # the voters are in the node's settings, which are not available here: fence none
        _, newest = log.configuration
        if newest.voters.keys() == {self._node_id}:
            raise NotRecoverable("the node is already the only voter: start it")
        return newest


def _image(cluster_id: str, loaded: LoadedMetadata, until: int | None = None) -> ClusterImage:
    """The image after the entries up to an index. None: after all of them, also uncommitted ones, since the
    nodes that know whether they were committed are lost."""
    image = ClusterImage(cluster_id=cluster_id)
    if loaded.snapshot.index:
        image = image_of(loaded.snapshot.data)
    for entry in loaded.entries:
        if until is not None and entry.index > until:
            break
        image = replay(image, entry)
    return image


def _fenced(image: ClusterImage, broker_ids: Iterable[int], rng: Rng) -> ClusterImage:
    """Fences the brokers as the controller does."""
    for broker_id in broker_ids:
        if (broker := image.brokers.get(broker_id)) is not None:
            command = FenceBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch, fenced=True)
            decision = decide(image, command, 0, rng)
            image = apply_entry(image, image.index + 1, decision.records)
    return image


def with_unread_manifests(image: ClusterImage, committed: ClusterImage) -> ClusterImage:
    """Mark the tiered partitions. `committed`: the image after the last entry that is known to be committed.

    Later entries may be others than those of the lost majority, whose manifests may still list what they
    dropped, perhaps in a page, which nothing here reads. So only what was queued before is deleted."""
    tiered = (
        TopicIdPartition(topic_id, number)
        for topic_id, topic in image.topics.items()
        if is_tiered(image, topic_id)
        for number in range(len(topic.partitions))
    )
    index, before = committed.index, image.unread_manifests
    unread = {key: min(index, before.get(key, index)) for key in (*image.remote, *tiered)}
    doubtful = [
        line.uuid
        for line in image.delete_queue.values()
        if isinstance(line, QueuedDelete) and _is_doubtful(line, image, committed)
    ]
    return replace(
        image,
        unread_manifests=Map(unread),
        delete_queue=image.delete_queue.without(doubtful),
        deleting=image.deleting.difference(doubtful),
    )


def _is_doubtful(line: QueuedDelete, image: ClusterImage, committed: ClusterImage) -> bool:
    """Whether the lost majority's manifest may list the object, above the log start."""
    if line.is_unfinished_page:
        return line.uuid not in image.deleting
    remote = image.remote.get(TopicIdPartition(line.topic_id, line.partition))
    is_certain = committed.delete_queue.get(line.uuid) == line
    return not is_certain and remote is not None and line.last_offset >= remote.log_start_offset


def _with_gaps(image: ClusterImage) -> ClusterImage:
    topics: Mapping[UUID, TopicImage] = image.topics
    return replace(
        image,
        index=image.index + INDEX_GAP,
        topics=image.topics.update(
            {
                topic_id: replace(topic, partitions=tuple(map(_with_epoch_gaps, topic.partitions)))
                for topic_id, topic in topics.items()
            }
        ),
        next_producer_id=image.next_producer_id + PRODUCER_ID_GAP,
    )


def _with_epoch_gaps(partition: PartitionRecord) -> PartitionRecord:
    return replace(
        partition,
        leader_epoch=partition.leader_epoch + EPOCH_GAP,
        partition_epoch=partition.partition_epoch + EPOCH_GAP,
    )
