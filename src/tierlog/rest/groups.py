"""Consumer groups as the gateway shows them: members, committed offsets and lags.

A group is described by ConsumerGroupDescribe if it uses the consumer protocol (KIP-848), and otherwise by
DescribeGroups, as the command line does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tierlog.base.types import TopicPartition, numbers_by_topic
from tierlog.client.errors import UnknownTopic, raise_for
from tierlog.protocol.consumer_protocol import assigned_partitions
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import consumer_group_describe, describe_groups, list_groups, offset_fetch
from tierlog.rest.cluster import Cluster, of_each
from tierlog.rest.errors import NO_GROUP, RestError
from tierlog.rest.reader import LATEST, READ_UNCOMMITTED, offsets_at

CLASSIC, CONSUMER = "CLASSIC", "CONSUMER"
DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`state`: as Confluent writes it, for example PREPARING_REBALANCE."""

    group_id: str
    kind: str
    state: str
    assignor: str
    protocol_type: str
    coordinator: int
    members: Sequence[GroupMember]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    partition: TopicPartition
    committed: int
    end: int
    member: GroupMember | None

    @property
    def lag(self) -> int:
        return max(0, self.end - self.committed)


async def group_ids(cluster: Cluster) -> list[str]:
    """Ids of the groups that the principal may see, from all coordinators."""

    async def of_broker(node_id: int) -> list[str]:
        response = await cluster.call(list_groups.ListGroupsRequest(), node_id)
        raise_for(response.error_code, None, f"groups of broker {node_id}")
        return [each.group_id for each in response.groups]

    brokers = [broker.node_id for broker in (await cluster.metadata([])).brokers]
    return sorted({group for found in await of_each(brokers, of_broker) for group in found})


async def describe(cluster: Cluster, group: str) -> Group:
    """Raises RestError if it does not exist, and ClientError."""
    found = await _describe_consumer(cluster, group) or await _describe_classic(cluster, group)
    if found is None:
        raise RestError(NO_GROUP, f"consumer group {group!r} does not exist")
    return found


async def lags(cluster: Cluster, group: Group) -> list[PartitionLag]:
    """Lags of all partitions with a committed offset. Those of deleted topics are left out."""
    committed = await _committed(cluster, group.group_id)
    owners = {partition: member for member in group.members for partition in member.partitions}

    async def of_topic(item: tuple[str, list[int]]) -> dict[TopicPartition, int]:
        topic, numbers = item
        try:
            ends = await offsets_at(cluster, topic, numbers, LATEST, READ_UNCOMMITTED)
        except UnknownTopic:
            return {}
        return {TopicPartition(topic, number): end for number, end in ends.items()}

    ends: dict[TopicPartition, int] = {}
    for found in await of_each(list(numbers_by_topic(committed).items()), of_topic):
        ends |= found
    return [
        PartitionLag(partition=one, committed=committed[one], end=end, member=owners.get(one))
        for one, end in sorted(ends.items())
    ]


async def _committed(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    request = offset_fetch.OffsetFetchRequest(
        group_id=group,
        topics=None,
        groups=[offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=None)],
    )
    _, response = await cluster.at_coordinator(group, request, lambda one: _only(one).error_code)
    found = _only(response)
    raise_for(found.error_code, None, f"group {group}")
    return {
        TopicPartition(topic.name, one.partition_index): one.committed_offset
        for topic in found.topics
        for one in topic.partitions
        if one.committed_offset >= 0
    }


def _only(response: Any) -> Any:
    """The group of an OffsetFetch response, or the response itself before version 8."""
    return response.groups[0] if response.groups else response


async def _describe_consumer(cluster: Cluster, group: str) -> Group | None:
    if (await cluster.shared()).version("ConsumerGroupDescribe") is None:
        return None
    request = consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=[group])
    node, response = await cluster.at_coordinator(group, request, lambda one: one.groups[0].error_code)
    found = response.groups[0]
    if found.error_code in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.GROUP_ID_NOT_FOUND):
        return None
    raise_for(found.error_code, found.error_message, f"group {group}")
    return Group(
        group_id=group,
        kind=CONSUMER,
        state=_state(found.group_state),
        assignor=found.assignor_name,
        protocol_type="consumer",
        coordinator=node,
        members=[
            GroupMember(
                member_id=each.member_id,
                instance_id=each.instance_id,
                client_id=each.client_id,
                partitions=[
                    TopicPartition(topic.topic_name, number)
                    for topic in each.assignment.topic_partitions
                    for number in topic.partitions
                ],
            )
            for each in found.members
        ],
    )


async def _describe_classic(cluster: Cluster, group: str) -> Group | None:
    request = describe_groups.DescribeGroupsRequest(groups=[group])
    node, response = await cluster.at_coordinator(group, request, lambda one: one.groups[0].error_code)
    found = response.groups[0]
    # before version 6 (KIP-1043) a missing group is Dead
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND or (
        found.group_state == DEAD and not found.error_code
    ):
        return None
    raise_for(found.error_code, found.error_message, f"group {group}")
    is_consumer = found.protocol_type == "consumer"
    return Group(
        group_id=group,
        kind=CLASSIC,
        state=_state(found.group_state),
        assignor=found.protocol_data,
        protocol_type=found.protocol_type,
        coordinator=node,
        members=[
            GroupMember(
                member_id=each.member_id,
                instance_id=each.group_instance_id,
                client_id=each.client_id,
                partitions=assigned_partitions(each.member_assignment) if is_consumer else [],
            )
            for each in found.members
        ],
    )


def _state(text: str) -> str:
    """PreparingRebalance -> PREPARING_REBALANCE."""
    return "".join(f"_{one}" if one.isupper() and at else one for at, one in enumerate(text)).upper()
