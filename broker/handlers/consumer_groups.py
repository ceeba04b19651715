"""Consumer groups (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe.

Translates between messages and the group coordinator's events and responses. A heartbeat that waits for an
assignment or for durability is a future of the group shard; no task is created.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tierlog.broker.coordinators.core.effects import ErrorResponse
from tierlog.broker.groups.core.events import NO_MEMBER_ID, ConsumerHeartbeat, ConsumerHeartbeatResponse
from tierlog.broker.groups.group_service import GroupService
from tierlog.broker.handlers.committed_offsets import ask_coordinator, may_describe_group
from tierlog.broker.handlers.context import Handler, Pending, RawReply, Reply, RequestContext
from tierlog.broker.handlers.turns import ResponseEncoder, before_later_requests, weighted_slices
from tierlog.broker.security.authorizer import Access, authorized_operations
from tierlog.metadata.acls import AclOperation, ResourceType
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.codec import array_writer, nested_array_writer
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
)
from tierlog.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

MEMBER_GENERATES_ID_FROM = 1  # KIP-1082
PARTITIONS_PER_ENTRY = 10
"""Partitions of a member that take as long to encode as one entry of another response."""


def consumer_group_handlers(service: GroupService) -> dict[int, Handler]:
    """API key -> handler."""
    handlers = _Handlers(service)
    named: dict[str, Handler] = {
        "ConsumerGroupDescribe": handlers.describe,
        "ConsumerGroupHeartbeat": handlers.heartbeat,
    }
    return {BY_NAME[name].key: handler for name, handler in named.items()}


class _Handlers:
    def __init__(self, service: GroupService) -> None:
        self._service = service

    def heartbeat(self, context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> Reply | Pending:
        if not self._service.serves_consumer_protocol:
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, member_id=None)
        generated = NO_MEMBER_ID
        if context.version < MEMBER_GENERATES_ID_FROM and not request.member_id:
            generated = self._service.generate_consumer_id()
        topics, access = request.subscribed_topic_names, context.access
        owned = request.topic_partitions
        return ask_coordinator(
            self._service,
            request.group_id,
            lambda token: ConsumerHeartbeat(
                token=token,
                group_id=request.group_id,
                member_id=request.member_id,
                member_epoch=request.member_epoch,
                instance_id=request.instance_id,
                rack_id=request.rack_id,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                subscribed_topics=None if topics is None else tuple(topics),
                subscribed_regex=request.subscribed_topic_regex,
                server_assignor=request.server_assignor,
                owned=None
                if owned is None
                else tuple((each.topic_id, tuple(each.partitions)) for each in owned),
                client_id=context.client_id or "",
                client_host=f"/{context.connection.peer_host}",
                free_bytes=self._service.member_free_bytes,
                generated_member_id=generated,
                may_describe=None if access is None else partial(_may_describe, access, keep=False),
            ),
            _heartbeat_response,
        )

    def describe(self, context: RequestContext, request: ConsumerGroupDescribeRequest) -> Pending:
        return before_later_requests(self._describe_in_turns(context, request))

    async def _describe_in_turns(
        self, context: RequestContext, request: ConsumerGroupDescribeRequest
    ) -> RawReply:
        """The response, encoded a few members in each turn: a group may have a hundred thousand."""
        version, group_ids = context.version, list(dict.fromkeys(request.group_ids))
        response, encoding = ConsumerGroupDescribeResponse(), ResponseEncoder()
        groups = array_writer(ConsumerGroupDescribeResponse, version, "groups")
        members = nested_array_writer(ConsumerGroupDescribeResponse, version, DescribedGroup, "members")
        await encoding.add(groups.before(response, len(group_ids)))
        for group_id in group_ids:
            group = self._describe_permitted(context.access, group_id)
            if group.error_code:
                encoding.errors[group.error_code] += 1
            elif request.include_authorized_operations:
                operations = authorized_operations(context.access, ResourceType.GROUP, group_id)
                group.authorized_operations = operations
            await encoding.add(members.before(group, len(group.members)), entries=1)
            for some in weighted_slices(group.members, weigh=_weight):
                await encoding.add(members.elements(some), sum(map(_weight, some)))
            await encoding.add(members.after(group))
        await encoding.add(groups.after(response))
        return encoding.reply()

    def _describe_permitted(self, access: Access | None, group_id: str) -> DescribedGroup:
        """The group, if the client may describe it and the topics of its members."""
        if not may_describe_group(access, group_id):
            return DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        group = self._describe_one(group_id)
        if access is None:
            return group
        topics = {
            name
            for member in group.members
            for name in (
                *member.subscribed_topic_names,
                *(topic.topic_name for topic in member.assignment.topic_partitions),
                *(topic.topic_name for topic in member.target_assignment.topic_partitions),
            )
        }
        if all(_may_describe(access, name) for name in topics):
            return group
        return DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            error_message="The group has described topic(s) that the client is not authorized to describe.",
        )

    def _describe_one(self, group_id: str) -> DescribedGroup:
        if not self._service.serves_consumer_protocol:
            return DescribedGroup(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION)
        if not group_id:
            return DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
        found = self._service.describe_consumer(group_id)
        if not isinstance(found, ErrorCode):
            return found
        message = None
        if found is ErrorCode.GROUP_ID_NOT_FOUND:
            message = f"Consumer group {group_id} not found."
        return DescribedGroup(group_id=group_id, error_code=found, error_message=message)


def _may_describe(access: Access, topic: str, keep: bool = True) -> bool:
    return access.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, topic, keep)


def _heartbeat_response(response: Any) -> ConsumerGroupHeartbeatResponse:
    if not isinstance(response, ConsumerHeartbeatResponse):
        is_error = isinstance(response, ErrorResponse)
        error = response.error if is_error else ErrorCode.UNKNOWN_SERVER_ERROR
        return ConsumerGroupHeartbeatResponse(error_code=error, member_id=None)
    if response.error != ErrorCode.NONE:
        return ConsumerGroupHeartbeatResponse(
            error_code=response.error, error_message=response.error_message, member_id=None
        )
    assignment = None
    if response.assignment is not None:
        assignment = Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in response.assignment.items()
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        member_id=response.member_id,
        member_epoch=response.member_epoch,
        heartbeat_interval_ms=response.heartbeat_interval_ms,
        assignment=assignment,
    )


def _weight(member: Member) -> int:
    both: Sequence[Any] = (member.assignment, member.target_assignment)
    partitions = sum(len(topic.partitions) for each in both for topic in each.topic_partitions)
    return 1 + (partitions + len(member.subscribed_topic_names)) // PARTITIONS_PER_ENTRY
