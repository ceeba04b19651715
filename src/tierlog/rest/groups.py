"""Consumer groups as the gateway shows them: members, committed offsets and lags.

A group is described by ConsumerGroupDescribe if it uses the consumer protocol (KIP-848), and otherwise by
DescribeGroups, as the command line does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
GROUPS_AT_ONCE = 100
"""Groups in one request: the members of a group, with their assignments, may have megabytes."""


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
    """`end`: None if the leader does not know it after an election (KIP-207)."""

    partition: TopicPartition
    committed: int
    end: int | None
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.committed)

    @property
    def member_id(self) -> str:
        """The id of the member that owns the partition; empty without one."""
        return "" if self.member is None else self.member.member_id

    @property
    def client_id(self) -> str:
        return "" if self.member is None else self.member.client_id

    @property
    def instance_id(self) -> str | None:
        return None if self.member is None else self.member.instance_id


class Listed(NamedTuple):
    """A group in a coordinator's list: that broker, and whether it uses the consumer protocol."""

    coordinator: int
    is_consumer: bool


async def listed(cluster: Cluster) -> dict[str, Listed]:
    """The groups that the principal may see, by id, from all coordinators."""

    async def of_broker(node_id: int) -> dict[str, Listed]:
        response = await cluster.call(list_groups.ListGroupsRequest(), node_id)
        raise_for(response.error_code, None, f"groups of broker {node_id}")
        return {
            each.group_id: Listed(node_id, each.group_type.upper() == CONSUMER) for each in response.groups
        }

    brokers = [broker.node_id for broker in (await cluster.metadata([])).brokers]
    return {group: one for found in await of_each(brokers, of_broker) for group, one in found.items()}


async def describe_all(cluster: Cluster, wanted: Mapping[str, Listed]) -> list[Group]:
    """The groups that still exist, by id. One request has up to GROUPS_AT_ONCE groups of a coordinator; those
    that have moved or changed since they were listed are described one by one. Raises ClientError."""
    by_place: dict[Listed, list[str]] = {}
    for group, place in sorted(wanted.items()):
        by_place.setdefault(place, []).append(group)

    async def described(chunk: tuple[Listed, Sequence[str]]) -> list[Group | None]:
        (node, is_consumer), names = chunk
        request: Any = describe_groups.DescribeGroupsRequest(groups=list(names))
        if is_consumer:
            request = consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=list(names))
        rows = {row.group_id: row for row in (await cluster.call(request, node)).groups}
        found: list[Group | None] = []
        for name in names:
            row = rows.get(name)
            if row is None or row.error_code or (not is_consumer and row.group_state == DEAD):
                found.append(await _describe(cluster, name))
            else:
                found.append((_consumer if is_consumer else _classic)(row, node))
        return found

    chunks = [
        (place, names[first : first + GROUPS_AT_ONCE])
        for place, names in by_place.items()
        for first in range(0, len(names), GROUPS_AT_ONCE)
    ]
    found = [group for groups in await of_each(chunks, described) for group in groups if group is not None]
    return sorted(found, key=lambda group: group.group_id)


async def describe(cluster: Cluster, group: str) -> Group:
    """Raises RestError if it does not exist, and ClientError."""
    found = await _describe(cluster, group)
    if found is None:
        raise RestError(NO_GROUP, f"consumer group {group!r} does not exist")
    return found


async def _describe(cluster: Cluster, group: str) -> Group | None:
    return await _describe_consumer(cluster, group) or await _describe_classic(cluster, group)


async def lags(cluster: Cluster, group: Group) -> list[PartitionLag]:
    """Lags of all partitions with a committed offset. Those of deleted topics are left out."""
    committed = await _committed(cluster, group.group_id)
    owners = {partition: member for member in group.members for partition in member.partitions}

    async def of_topic(item: tuple[str, list[int]]) -> dict[TopicPartition, int | None]:
        topic, numbers = item
        try:
            ends = await offsets_at(cluster, topic, numbers, LATEST, READ_UNCOMMITTED)
        except UnknownTopic:
            return {}
        return {TopicPartition(topic, number): ends.get(number) for number in numbers}

    ends: dict[TopicPartition, int | None] = {}
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
    return _consumer(found, node)


def _consumer(found: consumer_group_describe.DescribedGroup, node: int) -> Group:
    return Group(
        group_id=found.group_id,
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
    return _classic(found, node)


def _classic(found: describe_groups.DescribedGroup, node: int) -> Group:
    is_consumer = found.protocol_type == "consumer"
    return Group(
        group_id=found.group_id,
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
