"""Current leaders and their endpoints, for error responses (KIP-951)."""

import uuid
from collections.abc import Callable, Iterable
from typing import Any

from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode

LEADER_ERRORS = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def add_current_leaders(
    image: ClusterImage,
    listener: str,
    response: Any,
    results: Iterable[tuple[str | uuid.UUID, int, Any]],
    leader_class: Callable[..., Any],
    endpoint_class: Callable[..., Any],
) -> None:
    """Add the current leaders to a response, so that clients need no Metadata request to find them.

    `listener`: of the client, which gets the leaders' addresses there. `results`: topic name or id,
    partition number, and the partition's result in the response.
    `leader_class`, `endpoint_class`: the API's classes for a leader and for a node endpoint.
    """
    named = set[int]()
    for topic, number, result in results:
        if result.error_code not in LEADER_ERRORS:
            continue
        found = image.find_topic(topic)
        if found is not None and 0 <= number < len(found.partitions):
            leader, epoch = found.partitions[number].leader, found.partitions[number].leader_epoch
            result.current_leader = leader_class(leader_id=leader, leader_epoch=epoch)
            named.add(leader)
    brokers = [image.brokers[broker_id] for broker_id in sorted(named) if broker_id in image.brokers]
    response.node_endpoints = [
        endpoint_class(node_id=broker.broker_id, host=address[0], port=address[1], rack=broker.rack)
        for broker in brokers
        if (address := broker.address_of(listener)) is not None
    ]
