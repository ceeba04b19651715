"""Leader election after a change of a broker or of settings, and on request (ElectLeaders, KIP-460).

Each function looks at every partition once and returns a record for each that changes. The change of a single
partition is derived by the partition change builder. Called by the handlers of commands.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar
from uuid import UUID

from msgspec.structs import replace

from tierlog.base.types import NO_LEADER
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decision import Decision, Refusal
from tierlog.metadata.controller.partition_change import NO_BROKERS, build_partition_change
from tierlog.metadata.controller.rules import ElectionRules, election_rules
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage, TopicImage
from tierlog.metadata.records import AnyRecord, ConfigScope, PartitionRecord
from tierlog.protocol.errors import ErrorCode

T = TypeVar("T")
NextState = Callable[[PartitionRecord, ElectionRules], PartitionRecord]


def broker_lost(image: ClusterImage, broker_id: int, *, for_good: bool = False) -> list[PartitionRecord]:
    """The broker was fenced or unregistered (in `image` already): it leads no partition, and leaves every
    in-sync set that has another member. `for_good`: it will not return, so it is not eligible either."""
    ineligible = frozenset({broker_id}) if for_good else NO_BROKERS

    def lost(partition: PartitionRecord, rules: ElectionRules) -> PartitionRecord:
        return build_partition_change(
            partition, without_in_sync(partition, broker_id), rules, ineligible=ineligible
        )

    return _each(image, lambda partition: _is_affected(partition, broker_id), lost)


def broker_restarted(image: ClusterImage, broker_id: int, *, may_have_lost: bool) -> list[PartitionRecord]:
    """A new process of the broker registered; the image already says whether it is fenced.

    The broker leaves in-sync sets that have another member. If it is the only member, it leads again once it
    is unfenced, under a new leader epoch, so that divergence from before the stop is detected (KIP-101). A
    replica whose disk had failed must first catch up.
    """

    def restarted(partition: PartitionRecord, rules: ElectionRules) -> PartitionRecord:
        complete, online = not may_have_lost, partition
        if broker_id in partition.offline:
            complete = False
            online = replace(partition, offline=tuple(one for one in partition.offline if one != broker_id))
        wanted = without_in_sync(online, broker_id)
        if not wanted.in_sync and complete and broker_id in rules.may_lead:
            wanted = online  # the broker is the only member, and unfenced: it stays in sync
        ineligible = NO_BROKERS if complete else frozenset({broker_id})
        return build_partition_change(
            partition, wanted, rules, ineligible=ineligible, restarted_broker=broker_id
        )

    return _each(image, lambda partition: broker_id in partition.replicas, restarted)


def broker_unfenced(image: ClusterImage, broker_id: int) -> list[PartitionRecord]:
    """The broker was unfenced: it becomes the leader of partitions that have none, if it may lead them."""
    return _each(
        image,
        lambda partition: partition.leader == NO_LEADER and broker_id in partition.replicas,
        lambda partition, rules: build_partition_change(partition, partition, rules),
    )


def broker_stopping(image: ClusterImage, broker_id: int) -> list[PartitionRecord]:
    """Controlled shutdown began (in `image` already): the broker leaves in-sync sets where another member can
    lead. It stays the leader of the other partitions, which would otherwise go offline early."""

    def leave(partition: PartitionRecord, rules: ElectionRules) -> PartitionRecord:
        wanted = without_in_sync(partition, broker_id)
        if rules.may_lead.isdisjoint(wanted.in_sync):
            return partition
        return build_partition_change(partition, wanted, rules)

    return _each(image, lambda partition: broker_id in partition.in_sync, leave)


def count_transferable_leaderships(image: ClusterImage, broker_id: int) -> int:
    """Number of the broker's leaderships for which another active broker has a replica that can catch up. A
    controlled shutdown waits until it is 0. A replica on a failed or full disk cannot catch up."""
    others = {broker.broker_id for broker in image.brokers.values() if broker.may_lead} - {broker_id}
    return sum(
        partition.leader == broker_id
        and not others.isdisjoint(one for one in partition.replicas if _may_catch_up(partition, one))
        for topic in image.topics.values()
        for partition in topic.partitions
    )


def _may_catch_up(partition: PartitionRecord, broker_id: int) -> bool:
    stuck = broker_id in partition.full and broker_id not in partition.in_sync
    return broker_id not in partition.offline and not stuck


def election_settings_changed(before: ClusterImage, after: ClusterImage) -> list[PartitionRecord]:
    """Changes of partitions that follow from changed settings, for the same log entry.

    After a lower min.insync.replicas, replicas stop being eligible where the in-sync set is now large enough
    to commit without them. After unclean election is allowed, partitions without a leader get one.
    """
    was, now = election_rules(before), election_rules(after)
    if _is_relaxed(was(""), now("")):
        topics = _by_id(after.topics.values())
    else:
        topics = [topic for name in _reconfigured(before, after) if (topic := after.topic(name)) is not None]
    return [
        state
        for topic in topics
        if _is_relaxed(was(topic.name), rules := now(topic.name))
        for partition in topic.partitions
        if (partition.eligible or partition.leader == NO_LEADER)
        and (state := build_partition_change(partition, partition, rules)) is not partition
    ]


def _is_relaxed(old: ElectionRules, new: ElectionRules) -> bool:
    return new.min_in_sync < old.min_in_sync or new.unclean > old.unclean


def _reconfigured(before: ClusterImage, after: ClusterImage) -> list[str]:
    """Names of topics whose own settings changed."""
    if before.configs is after.configs:
        return []
    return sorted(
        name
        for scope, name in {*before.configs, *after.configs}
        if scope is ConfigScope.TOPIC
        and before.configs.get((scope, name)) is not after.configs.get((scope, name))
    )


def elect_leaders(image: ClusterImage, command: c.ElectLeaders) -> Decision[c.LeadersElected]:
    """ElectLeaders (KIP-460). An unclean election also needs unclean.leader.election.enable."""
    requested = ((name, number, command.kind) for name, number in _requested(image, command))
    records, outcomes = change_named_partitions(image, requested, _elected)
    return Decision(records, c.LeadersElected(partitions=outcomes))


def change_named_partitions(
    image: ClusterImage,
    requested: Iterable[tuple[str, int, T]],
    change: Callable[[PartitionRecord, ElectionRules, T], PartitionRecord],
) -> tuple[tuple[PartitionRecord, ...], tuple[c.NamedOutcome, ...]]:
    """Change partitions that a command names: (topic, partition number, wanted change).

    Each is changed by itself, after the ones before it in the command. `change` may raise Refusal. Returns a
    record for each partition that changes, and an outcome for each that was named.
    """
    rules = election_rules(image)
    pending: dict[tuple[UUID, int], PartitionRecord] = {}
    outcomes: list[c.NamedOutcome] = []
    for name, number, wanted in requested:
        try:
            topic = image.topic(name)
            if topic is None or not 0 <= number < len(topic.partitions):
                raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{number}")
            key = topic.topic_id, number
            before = pending.get(key, topic.partitions[number])
            after = change(before, rules(name), wanted)
        except Refusal as refusal:
            outcomes.append(
                c.NamedOutcome(topic=name, partition=number, error=refusal.error, message=refusal.message)
            )
            continue
        if after is not before:
            pending[key] = after
        outcomes.append(c.NamedOutcome(topic=name, partition=number))
    return tuple(pending.values()), tuple(outcomes)


def _requested(image: ClusterImage, command: c.ElectLeaders) -> Iterable[tuple[str, int]]:
    """The partitions that the command names, or all that need an election."""
    if command.partitions is not None:
        return command.partitions
    preferred = command.kind is c.ElectionKind.PREFERRED
    return (
        (topic.name, number)
        for topic in _by_id(image.topics.values())
        for number, partition in enumerate(topic.partitions)
        if partition.leader == NO_LEADER or (preferred and partition.leader != partition.replicas[0])
    )


def _elected(partition: PartitionRecord, rules: ElectionRules, kind: c.ElectionKind) -> PartitionRecord:
    preferred = partition.replicas[0]
    if kind is c.ElectionKind.PREFERRED:
        if partition.leader == preferred:
            raise Refusal(ErrorCode.ELECTION_NOT_NEEDED, f"broker {preferred} is already the leader")
        after = build_partition_change(partition, partition, rules, elect_preferred=True)
        if after.leader != preferred:
            message = f"broker {preferred} is not in sync, or is fenced"
            raise Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)
        return after
    if partition.leader != NO_LEADER:
        raise Refusal(ErrorCode.ELECTION_NOT_NEEDED, f"broker {partition.leader} is the leader")
    after = build_partition_change(partition, partition, rules)
    if after.leader == NO_LEADER:
        reason = "all replicas are fenced" if rules.unclean else "unclean.leader.election.enable is false"
        raise Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"no replica can be elected: {reason}")
    return after


def with_partition_changes(
    image: ClusterImage,
    records: Iterable[AnyRecord],
    changes: Callable[[ClusterImage], list[PartitionRecord]],
) -> tuple[AnyRecord, ...]:
    """The records, followed by the partition changes that result from them."""
    first = tuple(records)
    return (*first, *changes(evolve_all(image, first)))


def _each(
    image: ClusterImage, affected: Callable[[PartitionRecord], bool], next_state: NextState
) -> list[PartitionRecord]:
    """A record for each partition that `next_state` changes, by topic id. Only topics with a partition that
    `affected` selects are sorted: there may be 100,000 others."""
    rules = election_rules(image)
    touched: list[tuple[TopicImage, list[PartitionRecord]]] = []
    for topic in image.topics.values():
        partitions = [partition for partition in topic.partitions if affected(partition)]
        if partitions:
            touched.append((topic, partitions))
    touched.sort(key=lambda each: each[0].topic_id.int)
    return [
        after
        for topic, partitions in touched
        for before in partitions
        if (after := next_state(before, rules(topic.name))) is not before
    ]


def _by_id(topics: Iterable[TopicImage]) -> list[TopicImage]:
    return sorted(topics, key=lambda topic: topic.topic_id.int)


def _is_affected(partition: PartitionRecord, broker_id: int) -> bool:
    return broker_id in partition.in_sync or broker_id == partition.leader or broker_id in partition.eligible


def without_in_sync(partition: PartitionRecord, broker_id: int) -> PartitionRecord:
    """The partition without the broker in its in-sync set."""
    if broker_id not in partition.in_sync:
        return partition
    return replace(partition, in_sync=tuple(one for one in partition.in_sync if one != broker_id))
