"""Views of the cluster, its brokers and its partitions as JSON. Pure functions of an image.

The admin routes call those that count partitions in a thread: an image may hold 100,000 of them.
"""

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from tierlog.base.types import NO_LEADER
from tierlog.metadata.controller.rules import election_rules, is_under_min_isr
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import PartitionRecord


class Condition(StrEnum):
    """Conditions of a partition that an operator looks for."""

    OFFLINE = "offline"  # no leader: it cannot be read or written
    BELOW_MIN = "below-min-in-sync"  # fewer in sync than min.insync.replicas: acks=all fails
    UNDER_REPLICATED = "under-replicated"  # a replica is not in sync
    MOVING = "moving"  # a reassignment is running (KIP-455)


UNHEALTHY = frozenset({Condition.OFFLINE, Condition.BELOW_MIN, Condition.UNDER_REPLICATED})


def conditions(partition: PartitionRecord, min_in_sync: int) -> list[Condition]:
    """The partition's conditions, the most serious first. Replicas that are being added need not be in
    sync."""
    required = set(partition.replicas) - set(partition.adding)
    applies = {
        Condition.OFFLINE: partition.leader == NO_LEADER,
        Condition.BELOW_MIN: is_under_min_isr(partition, min_in_sync),
        Condition.UNDER_REPLICATED: not required <= set(partition.in_sync),
        Condition.MOVING: partition.is_reassigned,
    }
    return [condition for condition, is_met in applies.items() if is_met]


def cluster_view(image: ClusterImage, node_id: int) -> dict[str, Any]:
    """The cluster as JSON: brokers, topics, partitions."""
    return {
        "cluster_id": image.cluster_id,
        "node_id": node_id,
        "image_index": image.index,
        "brokers": [
            {
                "id": broker.broker_id,
                "host": broker.host,
                "port": broker.port,
                "admin_url": broker.admin_url,
                "rack": broker.rack,
                "fenced": broker.fenced,
            }
            for _, broker in sorted(image.brokers.items())
        ],
        "topics": [
            {
                "name": topic.name,
                "id": str(topic.topic_id),
                "configs": dict(sorted(image.topic_overrides(topic.name).items())),
                "partitions": [
                    {
                        "partition": number,
                        "leader": partition.leader,
                        "leader_epoch": partition.leader_epoch,
                        "replicas": list(partition.replicas),
                        "in_sync": list(partition.in_sync),
                    }
                    for number, partition in enumerate(topic.partitions)
                ],
            }
            for topic in sorted(image.topics.values(), key=lambda topic: topic.name)
        ],
    }


def brokers_view(image: ClusterImage) -> dict[str, Any]:
    """Every registered broker with its leaderships and replicas, and the number of partitions by condition.

    `out_of_sync`: the broker's replicas that are not in sync. `assigned`: brokers with replicas, registered
    or not.
    """
    leads: Counter[int] = Counter()
    replica_counts: Counter[int] = Counter()
    out_of_sync: Counter[int] = Counter()
    states: Counter[Condition] = Counter()
    total = 0
    for _, _, partition, _, found in _partitions(image):
        total += 1
        states.update(found)
        leads[partition.leader] += 1
        replica_counts.update(partition.replicas)
        if len(partition.in_sync) < len(partition.replicas):
            out_of_sync.update(set(partition.replicas) - set(partition.in_sync))
    return {
        "cluster_id": image.cluster_id,
        "image_index": image.index,
        "brokers": [
            {
                "id": broker_id,
                "host": broker.host,
                "port": broker.port,
                "admin_url": broker.admin_url,
                "rack": broker.rack,
                "epoch": broker.broker_epoch,
                "fenced": broker.fenced,
                "stopping": broker.stopping,
                "leads": leads[broker_id],
                "replicas": replica_counts[broker_id],
                "out_of_sync": out_of_sync[broker_id],
            }
            for broker_id, broker in sorted(image.brokers.items())
        ],
        "assigned": sorted(replica_counts),
        "partitions": {"total": total, **{condition.value: states[condition] for condition in Condition}},
    }


def partitions_view(
    image: ClusterImage,
    *,
    topic: str | None = None,
    wanted: frozenset[Condition] = frozenset(),
    limit: int | None = None,
) -> dict[str, Any]:
    """Partitions in order, of one topic or all. `wanted`: only with one of these conditions. `total` counts
    partitions beyond `limit` too."""
    rows: list[dict[str, Any]] = []
    total = 0
    for name, number, partition, min_in_sync, found in _partitions(image, topic):
        topic_id = image.topic_ids[name]
        if wanted and wanted.isdisjoint(found):
            continue
        total += 1
        if limit is None or len(rows) < limit:
            rows.append(
                {
                    "topic": name,
                    "partition": number,
                    "leader": partition.leader,
                    "leader_epoch": partition.leader_epoch,
                    "replicas": list(partition.replicas),
                    "in_sync": list(partition.in_sync),
                    "min_in_sync": min_in_sync,
                    "eligible": list(partition.eligible),
                    "failed": list(partition.offline),
                    "emptied": list(partition.emptied),
                    "full": list(partition.full),
                    "adding": list(partition.adding),
                    "removing": list(partition.removing),
                    "has_remote_data": image.remote_partition(topic_id, number).first_offset is not None,
                    "conditions": [condition.value for condition in found],
                }
            )
    return {"image_index": image.index, "total": total, "partitions": rows}


def _partitions(
    image: ClusterImage, topic: str | None = None
) -> Iterator[tuple[str, int, PartitionRecord, int, list[Condition]]]:
    """Topic, number, partition, its min.insync.replicas and its conditions."""
    rules = election_rules(image)
    for name in sorted(image.topic_ids) if topic is None else [topic] * (topic in image.topic_ids):
        min_in_sync = rules(name).min_in_sync
        for number, partition in enumerate(image.topics[image.topic_ids[name]].partitions):
            yield name, number, partition, min_in_sync, conditions(partition, min_in_sync)
