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
    """`min_in_sync`: min.insync.replicas of the topic."""

    def __init__(
        self, topic: str, partitions: int, min_in_sync: int, brokers: Mapping[int, SimBroker]
    ) -> None:
        self._topic, self._partitions, self._brokers = topic, partitions, brokers
        self._min_in_sync = min_in_sync
        self._image: ClusterImage | None = None
        self._unfenced_epochs: set[tuple[int, int]] = set()
        """Pairs of broker and broker epoch that were unfenced at some time."""
        self._committed: defaultdict[Key, int] = defaultdict(int)  # the highest of all high watermarks
        self._leaders: dict[tuple[int, int], int] = {}  # (partition, epoch) -> broker
        self._high_watermarks: dict[tuple[int, int], int] = {}  # (partition, leader epoch) -> high watermark
        self._ends_below_min_isr: dict[tuple[int, int, int], int] = {}  # -> log end offset
        self._last_states: dict[tuple[int, int], State] = {}
        self._fenced: dict[tuple[int, int], int] = {}
        """Broker and broker epoch -> the lowest index of an image in which it may be fenced."""

    @property
    def image(self) -> ClusterImage | None:
        """The newest image that any node has published."""
        return self._image

    def on_published(self, image: ClusterImage) -> None:
        """A node published this image. Raises Violation."""
        if self._image is None or image.index > self._image.index:
            before, self._image = self._image, image
            self._unfenced_epochs.update((live.broker_id, live.broker_epoch) for live in image.live_brokers())
            if before is not None and before.brokers is not image.brokers:
                self._record_fenced(before, image)
            if before is None or before.topics is not image.topics or before.brokers is not image.brokers:
                self._check_electable()
            if before is not None and image.index == before.index + 1:  # else the images between are unknown
                self._check_removed_replicas(before, image)

    def check(self) -> list[str]:
        """Check every replica that changed. Returns the changes, one line each, for the trace. Raises
        Violation."""
        changes = []
        for broker_id, broker in self._brokers.items():
            for partition in range(self._partitions):
                replica = _replica(broker, self._topic, partition)
                if replica is None:
                    continue
                state = _state(replica)
                if self._last_states.get((broker_id, partition)) == state:
                    continue
                self._last_states[broker_id, partition] = state
                replica.check()
                changes.append(f"{broker_id} {partition} {(*state[:-1], sorted(replica.in_sync))}")
                if replica.is_leader:
                    self._check_leader(broker_id, partition, replica)
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
                broker.node_id in partition.in_sync
                for topic in image.topics.values()
                for partition in topic.partitions
                if broker.node_id in partition.replicas
            )
        )

    def is_one_of_two(self, broker: SimBroker) -> bool:
        """Whether each ISR has the broker and another running one, and at least one ISR has no third
        member."""
        image = self._image
        if image is None or not self.is_in_sync(broker):
            return False
        partitions = [
            partition
            for topic in image.topics.values()
            for partition in topic.partitions
            if broker.node_id in partition.replicas
        ]
        others = [
            {
                member
                for member in partition.in_sync
                if member != broker.node_id and self._brokers[member].is_up
            }
            for partition in partitions
        ]
        return all(others) and any(len(partition.in_sync) == 2 for partition in partitions)

    def is_fenced(self, broker: SimBroker) -> bool:
        known = None if self._image is None else self._image.brokers.get(broker.node_id)
        return known is not None and known.fenced

    def all_serve(self) -> bool:
        """Whether all brokers are registered and unfenced."""
        return self._image is not None and len(self._image.live_brokers()) == len(self._brokers)

    def needs_unclean_election(self) -> list[str]:
        """Topics with a partition that needs an unclean election although all brokers serve.

        The ISR of such a partition is a single empty replica, and no other replica is eligible: power failed
        just after the partition was created, before all brokers had durable replicas. A partition in which
        records were committed does not count, because a replica with these records must become leader.
        """
        image = self._image
        if image is None or not self.all_serve():
            return []
        self._update_committed()
        return sorted(
            topic.name
            for topic in image.topics.values()
            if any(
                _is_empty_last_replica(partition) and not self._committed[topic.topic_id, number]
                for number, partition in enumerate(topic.partitions)
            )
        )

    def all_in_sync(self) -> bool:
        """Whether each partition has one leader, all replicas in the ISR, and no reassignment in progress."""
        topics = [] if self._image is None else list(self._image.topics.values())
        return bool(topics) and all(
            self._is_fully_replicated(topic.name, number, partition)
            for topic in topics
            for number, partition in enumerate(topic.partitions)
        )

    def _is_fully_replicated(self, topic: str, number: int, partition: PartitionRecord) -> bool:
        serving = [broker.replicas for broker in self._brokers.values() if broker.replicas is not None]
        found = [replicas.get(topic, number) for replicas in serving]
        leaders = [replica for replica in found if replica is not None and replica.is_leader]
        wanted = len(partition.replicas)
        return (
            not partition.is_reassigned
            and len(partition.in_sync) == wanted
            and len(leaders) == 1
            and len(leaders[0].in_sync) == wanted
        )

    def status(self) -> str:
        """For the message of a violation."""
        lines = []
        for number, broker in sorted(self._brokers.items()):
            replicas = broker.replicas
            rows = [] if replicas is None else [
                (r.is_leader, r.leader_epoch, r.log_end_offset, r.high_watermark, sorted(r.in_sync))
                for r in (replicas.get(self._topic, n) for n in range(self._partitions)) if r is not None
            ]  # fmt: skip
            fenced = None if broker.lifecycle is None else broker.lifecycle.fenced
            lines.append(f"node {number}: up {broker.is_up}, fenced {fenced}, {rows}")
        return "; ".join(lines)

    def check_flushed(self) -> None:
        """Called before all nodes may lose power: a topic without flush.messages=1 could lose records then.
        Raises Violation."""
        image = self._image
        if image is None:
            return
        for topic in image.topics.values():
            if image.topic_overrides(topic.name).get("flush.messages") != "1":
                raise Violation(f"the run creates {topic.name} without flush.messages=1")

    def check_placement(self) -> None:
        """Called at the end: each broker must serve and have exactly the replicas assigned to it."""
        image = self._image
        for broker_id, broker in self._brokers.items():
            if broker.replicas is None:
                raise Violation(f"{broker.name} does not serve")
            placed = {
                (topic.name, number, topic.topic_id)
                for topic in (() if image is None else image.topics.values())
                for number, partition in enumerate(topic.partitions)
                if broker_id in partition.replicas
            }
            found = {(*replica.name, replica.topic_id) for replica in broker.replicas}
            if found != placed:
                raise Violation(f"{broker.name} has {sorted(found)}, but should have {sorted(placed)}")

    def check_durable(self, partition: int, offset: int, kind: str) -> None:
        """Records up to `offset` were acknowledged or consumed: min.insync.replicas replicas must have
        them, or the bucket, if a bulk load has added them."""
        if self._is_loaded(partition, offset):
            return
        holders = [
            broker_id
            for broker_id, broker in self._brokers.items()
            if broker.durable_end(self._topic, partition) > offset
        ]
        if len(holders) < self._min_in_sync:
            raise Violation(f"{kind}: only {holders} hold offset {offset} of partition {partition}")

    def _is_loaded(self, partition: int, offset: int) -> bool:
        image = self._image
        topic = None if image is None else image.topic(self._topic)
        if image is None or topic is None:
            return False
        loads = image.remote_partition(topic.topic_id, partition).loads
        return any(load.base_offset <= offset < load.end_offset for load in loads)

    def on_serving(self, broker: SimBroker) -> None:
        """The broker believes that it holds a lease: it must not be fenced or replaced.

        A broker at the end of a controlled shutdown may be fenced: the controller fences it once no other
        broker can take over a leadership from it, and allows it to stop in the same response.
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
            raise Violation(
                f"{broker.name} serves with image {index}, but was fenced in image {fenced} or later"
            )

    def _record_fenced(self, before: ClusterImage, image: ClusterImage) -> None:
        for live in before.live_brokers():
            after = image.brokers.get(live.broker_id)
            if after is not None and after.fenced and after.broker_epoch == live.broker_epoch:
                self._fenced[live.broker_id, live.broker_epoch] = before.index + 1

    def _check_leader(self, broker_id: int, partition: int, replica: Replica) -> None:
        epoch = (partition, replica.leader_epoch)
        if self._leaders.setdefault(epoch, broker_id) != broker_id:
            raise Violation(f"partition {partition} has two leaders in epoch {replica.leader_epoch}")
        before = self._high_watermarks.get(epoch, 0)
        if replica.high_watermark < before:
            raise Violation(f"the high watermark of partition {partition} fell below {before}")
        self._high_watermarks[epoch] = replica.high_watermark
        if len(replica.in_sync) < self._min_in_sync:
            end = self._ends_below_min_isr.setdefault(
                (*epoch, replica.partition_epoch), replica.log_end_offset
            )
            if replica.log_end_offset > end:
                raise Violation(
                    f"partition {partition} appended records with only {sorted(replica.in_sync)} in sync"
                )

    def _update_committed(self) -> None:
        for broker in self._brokers.values():
            for replica in broker.replicas or ():
                if replica.is_leader and replica.failed is None:
                    key = (replica.topic_id, replica.name.partition)
                    self._committed[key] = max(self._committed[key], replica.high_watermark)

    def _check_electable(self) -> None:
        """Every electable replica must have all records that any leader committed.

        This includes replicas of unfenced brokers that no longer respond, because their records count for the
        high watermark (KIP-966).
        """
        self._update_committed()
        image = self._image
        for topic in () if image is None else image.topics.values():
            for number, partition in enumerate(topic.partitions):
                if committed := self._committed[topic.topic_id, number]:
                    for member in (*partition.in_sync, *partition.eligible):
                        self._check_holds(member, topic, number, committed)

    def _check_removed_replicas(self, before: ClusterImage, image: ClusterImage) -> None:
        """A reassignment must keep min.insync.replicas replicas with all records, or as many as there were.

        With fewer, the loss of one disk could lose committed records.
        """
        for topic_id, topic in image.topics.items():
            old = before.topics.get(topic_id, topic)
            for was, now in zip(old.partitions, topic.partitions, strict=False):
                held, holders = {*was.in_sync, *was.eligible}, {*now.in_sync, *now.eligible}
                least = min(self._min_in_sync, len(set(now.replicas).difference(now.removing)), len(held))
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
        if replica is None or replica.topic_id != topic.topic_id:
            return
        loads = {} if self._image is None else {
            load.base_offset: load.end_offset
            for load in self._image.remote_partition(topic.topic_id, number).loads
        }  # fmt: skip
        end = replica.log_end_offset
        # before it leads, it continues at the end of the bulk loads that begin where its log ends
        while end in loads:
            end = loads[end]
        if end >= committed:
            return
        raise Violation(
            f"node {member} may be elected for {topic.name}-{number}, log end at {replica.log_end_offset},"
            f" but {committed} is committed: {partition}"
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
