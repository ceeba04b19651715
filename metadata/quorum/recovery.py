"""A quorum of one, made offline of what a stopped node holds: the disks of a majority of the voters are lost.

Nothing tells what that majority had committed beyond this log. So what lost entries may have given out is not
given out again: the term, the indexes (broker epochs are such, and a broker that had followed further must
take the snapshot), leader and partition epochs, and producer ids go on far beyond. The directory gets a new
id: should an old voter turn up after all, its calls are refused, and this node's by it. Voters are mostly
brokers too: the lost ones are fenced, lest the first broker that starts leaves its in-sync sets to them.

Called by the command line. The node must not run: who calls sees to that.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from msgspec.structs import replace

from tierlog.base.files import Files
from tierlog.base.types import Rng, random_uuid
from tierlog.metadata.controller.commands import FenceBroker
from tierlog.metadata.controller.decide import decide
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage, PartitionImage, TopicImage
from tierlog.metadata.image_codec import decode_image, encode_image
from tierlog.metadata.quorum.storage import Loaded, MetadataStorage, read_owner
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.membership import Configuration, Member
from tierlog.metadata.raft.messages import CONFIGURATION, NO_NODE, HardState, Snapshot
from tierlog.metadata.records import decode_records

INDEX_GAP = 1_000_000
"""Entries that the lost majority may have had beyond this log: hours of them."""
TERM_GAP = 1_000_000
"""Elections that they may have held: days of nothing else."""
EPOCH_GAP = 1_000
"""Elections, or changes of an in-sync set, of one partition among them."""
PRODUCER_ID_GAP = 100_000_000
"""Producer ids that were handed out by them."""


class NotRecoverable(Exception):
    """The directory holds nothing to go on from, or needs no recovery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySummary:
    """What the node's log and snapshot add up to. `committed`: known to be; more may."""

    cluster_id: str
    node_id: int
    term: int
    last_index: int
    committed: int
    voters: tuple[int, ...]
    topics: int
    partitions: int


class Recovery:
    """Opens the files, which cuts the torn tail of a crash and gives up the reserve until the next start;
    then `apply`, or not; then `close`. Raises NotRecoverable, DamagedLog, ForeignDirectory, OSError."""

    def __init__(self, files: Files, directory: Path, rng: Rng) -> None:
        owner = read_owner(files, directory)
        if owner is None:
            raise NotRecoverable(f"{directory} holds no metadata of a quorum")
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
        """One snapshot takes the place of the log. Done again from the start if a crash comes in between."""
        term = self._loaded.hard_state.term + TERM_GAP
        lost = self._configuration.voters.keys() - {self._node_id}
        image = _beyond(_fenced(self._image, sorted(lost), self._rng))
        url = self._configuration.members.get(self._node_id, Member()).url
        alone = Configuration({self._node_id: Member(url, self._new_directory_id)})
        self._storage.rename(self._new_directory_id)
        snapshot = Snapshot(image.index, term, encode_image(image), alone)
        self._storage.save(snapshot, (), HardState(term, NO_NODE, image.index))

    def _newest_configuration(self) -> Configuration:
        """Raises NotRecoverable if the node is the only voter, or there is no entry at all."""
        if self._image.index == 0:
            raise NotRecoverable("the node's log is empty: it has never been told anything")
        log = RaftLog(self._loaded.snapshot, self._loaded.entries, self._loaded.hard_state.commit)
        if log.configuration is None:
            return Configuration({})  # those of its settings, which are not here: nobody is fenced
        _, newest = log.configuration
        if newest.voters.keys() == {self._node_id}:
            raise NotRecoverable("the node is the only voter already: start it")
        return newest


def _image(cluster_id: str, loaded: Loaded) -> ClusterImage:
    """With all entries, committed or not: who could say that they were not is lost."""
    image = ClusterImage(cluster_id=cluster_id)
    if loaded.snapshot.index:
        image = decode_image(loaded.snapshot.data)
    for entry in loaded.entries:
        records = () if entry.kind == CONFIGURATION else decode_records(entry.payload)
        image = apply_entry(image, entry.index, records)
    return image


def _fenced(image: ClusterImage, broker_ids: Iterable[int], rng: Rng) -> ClusterImage:
    """As the controller would have done it."""
    for broker_id in broker_ids:
        if (broker := image.brokers.get(broker_id)) is not None:
            command = FenceBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch, fenced=True)
            decision = decide(image, command, 0, rng)
            image = apply_entry(image, image.index + 1, decision.records)
    return image


def _beyond(image: ClusterImage) -> ClusterImage:
    topics: Mapping[UUID, TopicImage] = image.topics
    return replace(
        image,
        index=image.index + INDEX_GAP,
        topics=image.topics.update(
            {
                topic_id: replace(topic, partitions=tuple(map(_partition_beyond, topic.partitions)))
                for topic_id, topic in topics.items()
            }
        ),
        next_producer_id=image.next_producer_id + PRODUCER_ID_GAP,
    )


def _partition_beyond(partition: PartitionImage) -> PartitionImage:
    return replace(
        partition,
        leader_epoch=partition.leader_epoch + EPOCH_GAP,
        partition_epoch=partition.partition_epoch + EPOCH_GAP,
    )
