"""Requests of the `group` commands. Returns plain rows; the commands parse options and print.

A group is described by ConsumerGroupDescribe if it uses the consumer protocol (KIP-848), and otherwise by
DescribeGroups. Requests go to the group's coordinator; while it moves or loads, they are sent again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tierlog.base.types import TopicPartition, numbers_by_topic
from tierlog.cli.client import KafkaClient, of_each_broker, raise_for, until_final
from tierlog.cli.errors import CliError, ExitCode
from tierlog.cli.output import counted, listed
from tierlog.protocol.consumer_protocol import assigned_partitions
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import (
    consumer_group_describe,
    delete_groups,
    describe_groups,
    find_coordinator,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
)

CLASSIC, CONSUMER = "classic", "consumer"
CONSUMER_PROTOCOL = "consumer"
"""Protocol type of the members of a classic group that are consumers, and not for example Connect workers."""

COMMITS_PER_REQUEST = 1_000
DEAD = "Dead"
IN_USE = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.REBALANCE_IN_PROGRESS,
)
"""Errors of a commit by a client that is not a member, if the group has members."""

MEMBERS_HINT = (
    "Stop its consumers first: `tierlog group describe {} --members` shows them. A member that has died "
    "leaves when its session times out."
)
LIST_HINT = "List the groups with `tierlog group list`."

Row = dict[str, Any]
T = TypeVar("T")


class Committed(NamedTuple):
    """The committed offset of a partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


Offsets = Mapping[TopicPartition, Committed]


def rows(client: KafkaClient, *, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[Row]:
    """The groups of all coordinators that match, by id."""
    request = list_groups.ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    found: list[Row] = []
    for broker, response in of_each_broker(client, request, "groups"):
        found += [
            {
                "group": each.group_id,
                "type": each.group_type or None,
                "state": each.group_state or None,
                "protocol_type": each.protocol_type,
                "coordinator": broker,
            }
            for each in response.groups
        ]
    return sorted(found, key=lambda row: row["group"])


def describe(client: KafkaClient, group: str) -> Row:
    """State and members of a group. Raises CliError if it does not exist."""
    found = find(client, group)
    if found is None:
        raise unknown_group(group)
    return found


def find(client: KafkaClient, group: str) -> Row | None:
    """State and members of a group; None if it does not exist."""
    return _describe_consumer(client, group) or _describe_classic(client, group)


def _describe_consumer(client: KafkaClient, group: str) -> Row | None:
    coordinator = _coordinator(client, group)
    if not client.supports("ConsumerGroupDescribe", coordinator):
        return None
    request = consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=[group])
    node, response = _at_coordinator(client, group, request, lambda response: response.groups[0].error_code)
    found = response.groups[0]
    if found.error_code == ErrorCode.UNSUPPORTED_VERSION:
        _require_classic(client, group)
        return None
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    raise_for(found.error_code, found.error_message, f"group {group}")
    return {
        "group": group,
        "type": CONSUMER,
        "state": found.group_state,
        "coordinator": node,
        "protocol_type": CONSUMER_PROTOCOL,
        "assignor": found.assignor_name,
        "epoch": found.group_epoch,
        "assignment_epoch": found.assignment_epoch,
        "members": [
            {
                "member_id": each.member_id,
                "instance_id": each.instance_id,
                "client_id": each.client_id,
                "host": each.client_host.lstrip("/"),
                "rack": each.rack_id,
                "epoch": each.member_epoch,
                "topics": list(each.subscribed_topic_names),
                "regex": each.subscribed_topic_regex or None,
                "partitions": _assigned(each.assignment),
                "target_partitions": _assigned(each.target_assignment),
            }
            for each in found.members
        ],
    }


def _require_classic(client: KafkaClient, group: str) -> None:
    """Raises CliError for a consumer group. With group.version 0 brokers describe only classic groups."""
    if any((row["group"], row["type"]) == (group, CONSUMER) for row in rows(client)):
        raise CliError(
            f"group {group} uses the consumer protocol, which the cluster does not serve now",
            hint="Set the feature group.version to 1.",
        )


def _assigned(assignment: consumer_group_describe.Assignment) -> list[TopicPartition]:
    return sorted(
        TopicPartition(topic.topic_name, number)
        for topic in assignment.topic_partitions
        for number in topic.partitions
    )


def _describe_classic(client: KafkaClient, group: str) -> Row | None:
    request = describe_groups.DescribeGroupsRequest(groups=[group])
    node, response = _at_coordinator(client, group, request, lambda response: response.groups[0].error_code)
    found = response.groups[0]
    # before version 6 (KIP-1043) a missing group is Dead
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND or (
        found.group_state == DEAD and not found.error_code
    ):
        return None
    raise_for(found.error_code, found.error_message, f"group {group}")
    is_consumer = found.protocol_type == CONSUMER_PROTOCOL
    return {
        "group": group,
        "type": CLASSIC,
        "state": found.group_state,
        "coordinator": node,
        "protocol_type": found.protocol_type,
        "assignor": found.protocol_data,
        "epoch": None,
        "assignment_epoch": None,
        "members": [
            {
                "member_id": each.member_id,
                "instance_id": each.group_instance_id,
                "client_id": each.client_id,
                "host": each.client_host.lstrip("/"),
                "rack": None,
                "epoch": None,
                "topics": None,
                "regex": None,
                "partitions": assigned_partitions(each.member_assignment) if is_consumer else [],
                "target_partitions": None,
            }
            for each in found.members
        ],
    }


# ---- offsets ----


def committed(client: KafkaClient, group: str) -> dict[TopicPartition, Committed]:
    """All committed offsets of a group."""
    request = offset_fetch.OffsetFetchRequest(
        group_id=group,
        topics=None,
        groups=[offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=None)],
    )
    _, response = _at_coordinator(client, group, request, lambda one: _only_group(one).error_code)
    found = _only_group(response)
    raise_for(found.error_code, None, f"group {group}")
    return {
        TopicPartition(topic.name, one.partition_index): Committed(
            one.committed_offset, one.committed_leader_epoch, one.metadata or ""
        )
        for topic in found.topics
        for one in topic.partitions
        if one.committed_offset >= 0
    }


def _only_group(response: Any) -> Any:
    """The group of an OffsetFetch response, or the response itself before version 8."""
    return response.groups[0] if response.groups else response


def commit(client: KafkaClient, group: str, offsets: Offsets) -> None:
    """Commit offsets for a group without members. Raises CliError if it has members."""
    items = sorted(offsets.items())
    for first in range(0, len(items), COMMITS_PER_REQUEST):
        some = dict(items[first : first + COMMITS_PER_REQUEST])
        topics = [
            offset_commit.OffsetCommitRequestTopic(
                name=topic, partitions=[_to_commit(some, TopicPartition(topic, number)) for number in numbers]
            )
            for topic, numbers in numbers_by_topic(some).items()
        ]
        request = offset_commit.OffsetCommitRequest(group_id=group, topics=topics)
        _, response = _at_coordinator(client, group, request, _first_error)
        for topic in response.topics:
            for each in topic.partitions:
                if each.error_code in IN_USE:
                    raise has_members(group, "its offsets can only be set by them")
                raise_for(each.error_code, None, f"offset of {topic.name}-{each.partition_index}")


def _to_commit(offsets: Offsets, partition: TopicPartition) -> offset_commit.OffsetCommitRequestPartition:
    found = offsets[partition]
    return offset_commit.OffsetCommitRequestPartition(
        partition_index=partition.partition,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        committed_metadata=found.metadata,
    )


def _first_error(response: Any) -> int:
    """The first error of an OffsetCommit or OffsetDelete response."""
    codes = (each.error_code for topic in response.topics for each in topic.partitions)
    return next((code for code in codes if code), 0)


def delete_offsets(client: KafkaClient, group: str, partitions: Sequence[TopicPartition]) -> None:
    """Delete committed offsets. Raises CliError if a member of the group subscribes to the topic."""
    topics = [
        offset_delete.OffsetDeleteRequestTopic(
            name=topic,
            partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=one) for one in numbers],
        )
        for topic, numbers in numbers_by_topic(partitions).items()
    ]
    request = offset_delete.OffsetDeleteRequest(group_id=group, topics=topics)
    _, response = _at_coordinator(client, group, request, lambda one: one.error_code or _first_error(one))
    _raise_for_group(response.error_code, group, "its offsets cannot be deleted")
    for topic in response.topics:
        for each in topic.partitions:
            name = f"{topic.name}-{each.partition_index}"
            if each.error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
                what = f"members of group {group} subscribe to topic {topic.name}"
                raise CliError(what, hint=MEMBERS_HINT.format(group))
            raise_for(each.error_code, None, f"offset of {name}")


def delete(client: KafkaClient, group: str) -> None:
    """Delete a group with its offsets. Raises CliError if it has members, or does not exist."""
    request = delete_groups.DeleteGroupsRequest(groups_names=[group])
    _, response = _at_coordinator(client, group, request, lambda one: one.results[0].error_code)
    _raise_for_group(response.results[0].error_code, group, "it cannot be deleted")


# ---- coordinator and errors ----


def _at_coordinator(
    client: KafkaClient, group: str, request: Any, error: Callable[[Any], int]
) -> tuple[int, Any]:
    """Send a request to the group's coordinator. Returns its node id and response, whose error is final."""

    def send() -> tuple[int, Any]:
        node = _coordinator(client, group)
        return node, client.call(request, node)

    return until_final(client, send, lambda sent: error(sent[1]))


def _coordinator(client: KafkaClient, group: str) -> int:
    """The coordinator of a group; waits while there is none."""
    request = find_coordinator.FindCoordinatorRequest(key=group, coordinator_keys=[group])

    def send() -> Any:
        response = client.call(request)
        return response.coordinators[0] if response.coordinators else response

    client.metadata([])
    found = until_final(client, send, lambda found: found.error_code)
    raise_for(found.error_code, found.error_message, f"coordinator of group {group}")
    if not client.is_live(found.node_id):
        client.metadata([])
    return int(found.node_id)


def unknown_group(group: str) -> CliError:
    return CliError(f"group {group!r} does not exist", hint=LIST_HINT, code=ExitCode.NOT_FOUND)


def has_members(group: str, consequence: str, members: Sequence[Row] = ()) -> CliError:
    """A refused change of a group that is in use."""
    clients = sorted({one["client_id"] or one["member_id"] for one in members})
    count = f"{counted(len(members), 'member')} ({listed(clients)})" if members else "members"
    return CliError(f"group {group} has {count}: {consequence}", hint=MEMBERS_HINT.format(group))


def _raise_for_group(code: int, group: str, consequence: str) -> None:
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise unknown_group(group)
    if code == ErrorCode.NON_EMPTY_GROUP:
        raise has_members(group, consequence)
    raise_for(code, None, f"group {group}")
