"""Current leaders and their endpoints, for error responses (KIP-951)."""

import uuid
from collections.abc import Iterable

from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode

LEADER_ERRORS = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def leader_of(image: ClusterImage, topic: str | uuid.UUID, partition: int) -> tuple[int, int] | None:
    """(broker id, leader epoch), None if there is no such partition."""
    found = image.topic(topic) if isinstance(topic, str) else image.topics.get(topic)
    if found is None or not 0 <= partition < len(found.partitions):
        return None
    return found.partitions[partition].leader, found.partitions[partition].leader_epoch


def node_endpoints(image: ClusterImage, broker_ids: Iterable[int]) -> list[tuple[int, str, int, str | None]]:
    """(id, host, port, rack) of the registered ones."""
    brokers = [image.brokers[broker_id] for broker_id in sorted(broker_ids) if broker_id in image.brokers]
    return [(broker.broker_id, broker.host, broker.port, broker.rack) for broker in brokers]
