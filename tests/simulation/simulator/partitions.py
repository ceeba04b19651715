"""Invariants of partitions across all nodes, checked whenever the state of a replica or the image changes."""

from collections import defaultdict
from collections.abc import Mapping
from uuid import UUID

from simulator.broker import SimBroker
from simulator.faults import Victim
from simulator.witness import Violation
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.image import ClusterImage, TopicImage
from tierlog.metadata.records import PartitionRecord

Key = tuple[UUID, int]
"""Topic id and partition."""

State = tuple[object, ...]


class PartitionWitness:
    """`least`: min.insync.replicas of the topic."""

    def __init__(self, topic: str, partitions: int, least: int, brokers: Mapping[int, SimBroker]) -> None:
        self._topic, self._partitions, self._least, self._brokers = topic, partitions, least, brokers
        self._image: ClusterImage | None = None  # the newest that any node has had
        self._unfenced_epochs: set[tuple[int, int]] = (
            set()
        )  # (broker, epoch) pairs that were unfenced at some time
        self._committed: defaultdict[Key, int] = defaultdict(int)  # the highest of all high watermarks
        self._leaders: dict[tuple[int, int], int] = {}  # (partition, epoch) -> broker
        self._high_watermarks: dict[tuple[int, int], int] = {}  # (partition, leader epoch) -> high watermark
        self._ends_below_min_isr: dict[tuple[int, int, int], int] = {}  # -> log end offset
        self._last_states: dict[tuple[int, int], State] = {}
        self._fenced: dict[
            tuple[int, int], int
        ] = {}  # (broker, epoch) -> lowest image index that has it fenced

    @property
    def image(self) -> ClusterImage | None:
        """The newest that any node has had."""
        return self._image

    def published(self, image: ClusterImage) -> None:
        """A node published this image. Raises Violation."""
        if self._image is None or image.index > self._image.index:
            before, self._image = self._image, image
            self._unfenced_epochs.update((one.broker_id, one.broker_epoch) for one in image.live_brokers())
            if before is not None and before.brokers is not image.brokers:
                self._record_fenced(before, image)
            if before is None or before.topics is not image.topics or before.brokers is not image.brokers:
                self._check_electable()
            if before is not None and image.index == before.index + 1:  # else the images between are unknown
                self._check_removed_replicas(before, image)

    def check(self) -> list[str]:
        """Returns the changes since the last call, one line each, for the trace. Raises Violation."""
        changes = []
        for number, broker in self._brokers.items():
            for partition in range(self._partitions):
                replica = _replica(broker, self._topic, partition)
                if replica is None:
                    continue
                state = _state(replica)
                if self._last_states.get((number, partition)) == state:
                    continue
                self._last_states[number, partition] = state
                replica.check()
                changes.append(f"{number} {partition} {(*state[:-1], sorted(replica.in_sync))}")
                if replica.is_leader:
                    self._check_leader(number, partition, replica)
        if changes:
            self._check_electable()
        return changes

    def has_reported(self, broker: SimBroker) -> bool:
        """Whether the broker has reported its lost records: it is unfenced, and all of its logs are open."""
        known = None if self._image is None else self._image.brokers.get(broker.node_id)
        return (
            known is not None
            and broker.broker_epoch == known.broker_epoch
            and not known.fenced
            and broker.replicas is not None
            and not broker.replicas.offline_count
        )

    def is_in_sync(self, victim: Victim) -> bool:
        """Whether the broker is in the ISR of all of its partitions."""
        image = self._image
        broker = next(broker for broker in self._brokers.values() if broker is victim)
        known = None if image is None else image.brokers.get(broker.node_id)
        return (
            image is not None
            and known is not None
            and broker.broker_epoch == known.broker_epoch
            and not known.fenced  # else it may not have reported lost records yet
            and all(
                broker.node_id in one.in_sync
                for topic in image.topics.values()
                for one in topic.partitions
                if broker.node_id in one.replicas
            )
        )

    def is_one_of_two(self, broker: SimBroker) -> bool:
        """The broker and another running one are in every ISR, and some ISR has no third member."""
        image = self._image
        if image is None or not self.is_in_sync(broker):
            return False
        partitions = [one for topic in image.topics.values() for one in topic.partitions]
        rows = [one for one in partitions if broker.node_id in one.replicas]
        others = [{n for n in one.in_sync if n != broker.node_id and self._brokers[n].is_up} for one in rows]
        return all(others) and any(len(one.in_sync) == 2 for one in rows)

    def is_fenced(self, broker: SimBroker) -> bool:
        known = None if self._image is None else self._image.brokers.get(broker.node_id)
        return known is not None and known.fenced

    def all_serve(self) -> bool:
        """All brokers are registered and unfenced."""
        return self._image is not None and len(self._image.live_brokers()) == len(self._brokers)

    def needs_unclean_election(self) -> list[str]:
        """Topics with a partition that only an unclean election can bring back, while all brokers serve.

        Its ISR is a single empty replica, and no other is eligible: power failed just after it was created,
        when some brokers had not created it yet, and others may have lost it. If anything was ever
        committed in the partition, a replica with the records must be found, so it does not count.
        """
        image = self._image
        if image is None or not self.all_serve():
            return []
        self._update_committed()
        return sorted(
            topic.name
            for topic in image.topics.values()
            if any(
                _is_empty_last_replica(one) and not self._committed[topic.topic_id, number]
                for number, one in enumerate(topic.partitions)
            )
        )

    def all_in_sync(self) -> bool:
        """All replicas of all topics are in the ISR, with one leader each and no reassignment in progress."""
        topics = [] if self._image is None else list(self._image.topics.values())
        return bool(topics) and all(
            self._is_fully_replicated(topic.name, number, partition)
            for topic in topics
            for number, partition in enumerate(topic.partitions)
        )

    def _is_fully_replicated(self, topic: str, number: int, partition: PartitionRecord) -> bool:
        serving = [broker.replicas for broker in self._brokers.values() if broker.replicas is not None]
        found = [replicas.get(topic, number) for replicas in serving]
        leaders = [one for one in found if one is not None and one.is_leader]
        wanted = len(partition.replicas)
        return (
            not partition.is_reassigned
            and len(partition.in_sync) == wanted
            and len(leaders) == 1
            and len(leaders[0].in_sync) == wanted
        )

    def check_placement(self) -> None:
        """At the end, each broker serves and has exactly the replicas assigned to it."""
        image = self._image
        for number, broker in self._brokers.items():
            if broker.replicas is None:
                raise Violation(f"{broker.name} does not serve")
            placed = {
                (topic.name, partition, topic.topic_id)
                for topic in (() if image is None else image.topics.values())
                for partition, one in enumerate(topic.partitions)
                if number in one.replicas
            }
            found = {(*one.name, one.topic_id) for one in broker.replicas}
            if found != placed:
                raise Violation(f"{broker.name} has {sorted(found)}, and should have {sorted(placed)}")

    def check_durable(self, partition: int, offset: int, kind: str) -> None:
        """Records up to `offset` were acknowledged or consumed: min.insync.replicas replicas must have
        them."""
        holders = [
            n for n, broker in self._brokers.items() if broker.durable_end(self._topic, partition) > offset
        ]
        if len(holders) < self._least:
            raise Violation(f"{kind}: only {holders} hold offset {offset} of partition {partition}")

    def serves(self, broker: SimBroker) -> None:
        """The broker believes that it holds a lease: it must not be fenced or replaced.

        Except at the end of a controlled shutdown: the controller fences a broker that leads nothing more
        that another could lead, and allows it to stop by the same answer.
        """
        known = None if self._image is None else self._image.brokers.get(broker.node_id)
        if known is not None and 0 <= broker.broker_epoch < known.broker_epoch:
            raise Violation(f"{broker.name} serves although another process is registered in its place")
        if known is not None and known.stopping:
            return
        if known is not None and known.fenced and broker.broker_epoch == known.broker_epoch:
            raise Violation(f"{broker.name} serves although it is fenced")
        fenced = self._fenced.get((broker.node_id, broker.broker_epoch), 0)
        if broker.metadata is not None and broker.metadata.image.index < fenced:
            index = broker.metadata.image.index
            raise Violation(f"{broker.name} serves as of {index}, and was fenced at {fenced} or later")

    def _record_fenced(self, before: ClusterImage, image: ClusterImage) -> None:
        for one in before.live_brokers():
            after = image.brokers.get(one.broker_id)
            if after is not None and after.fenced and after.broker_epoch == one.broker_epoch:
                self._fenced[one.broker_id, one.broker_epoch] = before.index + 1

    def _check_leader(self, number: int, partition: int, replica: Replica) -> None:
        epoch = (partition, replica.leader_epoch)
        if self._leaders.setdefault(epoch, number) != number:
            raise Violation(f"partition {partition} has two leaders in epoch {replica.leader_epoch}")
        before = self._high_watermarks.get(epoch, 0)
        if replica.high_watermark < before:
            raise Violation(f"the high watermark of partition {partition} went from {before} back")
        self._high_watermarks[epoch] = replica.high_watermark
        if len(replica.in_sync) < self._least:
            end = self._ends_below_min_isr.setdefault(
                (*epoch, replica.partition_epoch), replica.log_end_offset
            )
            if replica.log_end_offset > end:
                raise Violation(
                    f"partition {partition} took records in with {sorted(replica.in_sync)} in sync"
                )

    def _update_committed(self) -> None:
        for broker in self._brokers.values():
            for replica in broker.replicas or ():
                if replica.is_leader and replica.failed is None:
                    key = (replica.topic_id, replica.name.partition)
                    self._committed[key] = max(self._committed[key], replica.high_watermark)

    def _check_electable(self) -> None:
        """Every electable replica has all records that any leader committed.

        This includes replicas of unfenced brokers that no longer respond: leaders commit and count on the
        records that they hold (KIP-966).
        """
        self._update_committed()
        image = self._image
        for topic in () if image is None else image.topics.values():
            for number, partition in enumerate(topic.partitions):
                if committed := self._committed[topic.topic_id, number]:
                    for member in (*partition.in_sync, *partition.eligible):
                        self._check_holds(member, topic, number, committed)

    def _check_removed_replicas(self, before: ClusterImage, image: ClusterImage) -> None:
        """A reassignment that removes replicas leaves min.insync.replicas complete ones, or as many as
        before.

        With fewer, the loss of one disk could lose committed records.
        """
        for topic_id, topic in image.topics.items():
            old = before.topics.get(topic_id, topic)
            for was, now in zip(old.partitions, topic.partitions, strict=False):
                held, holders = {*was.in_sync, *was.eligible}, {*now.in_sync, *now.eligible}
                least = min(self._least, len(set(now.replicas).difference(now.removing)), len(held))
                if len(holders) < least and not set(was.replicas) <= set(now.replicas):
                    raise Violation(f"too few replicas of {topic.name} hold all records: {was} -> {now}")

    def _check_holds(self, member: int, topic: TopicImage, number: int, committed: int) -> None:
        partition, broker = topic.partitions[number], self._brokers[member]
        if partition.in_sync == (member,) and _is_empty_last_replica(partition):
            return  # the last replica, known to be empty: it is not elected
        known = None if self._image is None else self._image.brokers.get(member)
        if known is None or broker.broker_epoch != known.broker_epoch:
            return
        if (member, known.broker_epoch) not in self._unfenced_epochs:
            return  # a fenced broker is not elected, and reports lost records before it is unfenced
        replica = _replica(broker, topic.name, number)
        if replica is None or replica.topic_id != topic.topic_id or replica.log_end_offset >= committed:
            return
        raise Violation(
            f"node {member} may be elected for {topic.name}-{number} and ends at {replica.log_end_offset}, "
            f"but {committed} is committed: {partition}"
        )


def _is_empty_last_replica(partition: PartitionRecord) -> bool:
    return len(partition.in_sync) == 1 and partition.leader < 0 and partition.in_sync[0] in partition.emptied


def _replica(broker: SimBroker, topic: str, partition: int) -> Replica | None:
    replica = broker.replica(topic, partition)
    return None if replica is None or replica.failed is not None else replica


def _state(replica: Replica) -> State:
    return (
        replica.is_leader,
        replica.leader_epoch,
        replica.partition_epoch,
        replica.log_end_offset,
        replica.high_watermark,
        replica.in_sync,
    )
