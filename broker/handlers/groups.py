"""Classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups,
DeleteGroups. Committed offsets are in committed_offsets.py.

Translates between messages and the group coordinator's events and responses. A response that waits for the
join phase, an assignment or durability is a future of the group shard; no task is created.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import compress
from typing import Any

from tierlog.broker.coordinators.core.effects import ErrorResponse
from tierlog.broker.groups.core.events import (
    DeleteGroup,
    Heartbeat,
    Join,
    JoinResponse,
    Leave,
    Leaver,
    LeaveResponse,
    Response,
    Sync,
    SyncResponse,
)
from tierlog.broker.groups.group_service import GroupService
from tierlog.broker.handlers.cluster import CHECKS_PER_TURN
from tierlog.broker.handlers.committed_offsets import ask_coordinator, may_describe_group, offset_handlers
from tierlog.broker.handlers.context import Handler, Pending, RawReply, Reply, RequestContext
from tierlog.broker.handlers.turns import (
    ResponseEncoder,
    before_later_requests,
    in_turns,
    respond_in_turns,
    weighted_slices,
)
from tierlog.broker.security.authorizer import Access, authorized_operations
from tierlog.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.codec import array_writer, nested_array_writer
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from tierlog.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tierlog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tierlog.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from tierlog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from tierlog.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from tierlog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


def group_handlers(service: GroupService) -> dict[int, Handler]:
    """API key -> handler of the APIs of classic groups and committed offsets."""
    handlers = _Handlers(service)
    named: dict[str, Handler] = {
        "JoinGroup": handlers.join,
        "SyncGroup": handlers.sync,
        "Heartbeat": handlers.heartbeat,
        "LeaveGroup": handlers.leave,
        "DescribeGroups": handlers.describe,
        "ListGroups": handlers.list_groups,
        "DeleteGroups": handlers.delete,
    }
    return {BY_NAME[name].key: handler for name, handler in named.items()} | offset_handlers(service)


class _Handlers:
    def __init__(self, service: GroupService) -> None:
        self._service = service

    # ---- membership ----

    def join(self, context: RequestContext, request: JoinGroupRequest) -> Reply | Pending:
        version = context.version
        # version 0 has no rebalance timeout (KIP-62): members rejoin within their session timeout
        rebalance_timeout_ms = request.rebalance_timeout_ms if version >= 1 else -1
        if rebalance_timeout_ms < 0:
            rebalance_timeout_ms = request.session_timeout_ms
        generated = self._service.generate_member_id(request.group_instance_id or context.client_id or "")

        def to_message(response: Response) -> JoinGroupResponse:
            if not isinstance(response, JoinResponse):
                response = JoinResponse(error=_error(response), member_id=request.member_id)
            nothing = None if version >= 7 else ""
            return JoinGroupResponse(
                error_code=response.error,
                generation_id=response.generation,
                protocol_type=response.protocol_type,
                protocol_name=nothing if response.protocol_name is None else response.protocol_name,
                leader=response.leader,
                skip_assignment=response.skip_assignment,
                member_id=response.member_id,
                members=[
                    JoinGroupResponseMember(member_id=name, group_instance_id=instance, metadata=metadata)
                    for name, instance, metadata in response.members
                ],
            )

        return ask_coordinator(
            self._service,
            request.group_id,
            lambda token: Join(
                token=token,
                group_id=request.group_id,
                member_id=request.member_id,
                generated_member_id=generated,
                group_instance_id=request.group_instance_id,
                client_id=context.client_id or "",
                client_host=f"/{context.connection.peer_host}",
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_ms,
                protocol_type=request.protocol_type,
                protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
                member_id_required=version >= 4,
                may_skip_assignment=version >= 9,
                reason=request.reason or "",
                free_bytes=self._service.member_free_bytes,
            ),
            to_message,
        )

    def sync(self, context: RequestContext, request: SyncGroupRequest) -> Reply | Pending:
        if context.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
            return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)  # KIP-559

        def to_message(response: Response) -> SyncGroupResponse:
            if not isinstance(response, SyncResponse):
                return SyncGroupResponse(error_code=_error(response))
            return SyncGroupResponse(
                error_code=response.error,
                protocol_type=response.protocol_type,
                protocol_name=response.protocol_name,
                assignment=response.assignment,
            )

        return ask_coordinator(
            self._service,
            request.group_id,
            lambda token: Sync(
                token=token,
                group_id=request.group_id,
                generation=request.generation_id,
                member_id=request.member_id,
                group_instance_id=request.group_instance_id,
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
                assignments=tuple((each.member_id, bytes(each.assignment)) for each in request.assignments),
                free_bytes=self._service.member_free_bytes,
            ),
            to_message,
        )

    def heartbeat(self, context: RequestContext, request: HeartbeatRequest) -> Reply | Pending:
        return ask_coordinator(
            self._service,
            request.group_id,
            lambda token: Heartbeat(
                token=token,
                group_id=request.group_id,
                generation=request.generation_id,
                member_id=request.member_id,
                group_instance_id=request.group_instance_id,
            ),
            lambda response: HeartbeatResponse(error_code=_error(response)),
        )

    def leave(self, context: RequestContext, request: LeaveGroupRequest) -> Reply | Pending:
        batched = context.version >= 3
        if not request.group_id:
            return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        leavers = tuple(
            Leaver(each.member_id, each.group_instance_id, each.reason or "") for each in request.members
        )

        def to_message(response: Response) -> LeaveGroupResponse:
            if not isinstance(response, LeaveResponse):
                return LeaveGroupResponse(error_code=_error(response))
            if not batched:
                return LeaveGroupResponse(error_code=response.members[0][1])
            return LeaveGroupResponse(
                members=[
                    MemberResponse(
                        member_id=leaver.member_id,
                        group_instance_id=leaver.group_instance_id,
                        error_code=error,
                    )
                    for leaver, error in response.members
                ]
            )

        return ask_coordinator(
            self._service,
            request.group_id,
            lambda token: Leave(
                token=token,
                group_id=request.group_id,
                leavers=leavers if batched else (Leaver(request.member_id),),
            ),
            to_message,
        )

    # ---- administration ----

    def describe(self, context: RequestContext, request: DescribeGroupsRequest) -> Pending:
        def described(group_id: str) -> DescribedGroup:
            if not may_describe_group(context.access, group_id):
                return DescribedGroup(
                    error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, error_message=None, group_id=group_id
                )
            group = self._describe_one(group_id, context.version)
            if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
                operations = authorized_operations(context.access, ResourceType.GROUP, group_id)
                group.authorized_operations = operations
            return group

        unique_ids = list(dict.fromkeys(request.groups))
        return before_later_requests(_describe_in_turns(context.version, unique_ids, described))

    def _describe_one(self, group_id: str, version: int) -> DescribedGroup:
        found = self._service.describe(group_id)
        if found is ErrorCode.GROUP_ID_NOT_FOUND:
            if version < 6:  # before KIP-1043 a missing group counts as dead
                return DescribedGroup(group_id=group_id, group_state="Dead")
            message = f"Group {group_id} not found."
            return DescribedGroup(
                error_code=found, error_message=message, group_id=group_id, group_state="Dead"
            )
        return DescribedGroup(error_code=found, group_id=group_id) if isinstance(found, ErrorCode) else found

    def list_groups(self, context: RequestContext, request: ListGroupsRequest) -> Reply | Pending:
        error, groups = self._service.list_groups()
        states = {state.lower() for state in request.states_filter}  # KIP-518
        types = {name.lower() for name in request.types_filter}  # KIP-848
        listed = [
            ListedGroup(group_id=group_id, protocol_type=kind, group_state=state, group_type=group_type)
            for group_id, kind, state, group_type in groups
            if (not states or state.lower() in states) and (not types or group_type in types)
        ]
        response, access = ListGroupsResponse(error_code=error), context.access
        if access is not None and not access.allows(
            AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
        ):
            return before_later_requests(_list_permitted(context.version, response, listed, access))
        response.groups = listed
        return response

    def delete(self, context: RequestContext, request: DeleteGroupsRequest) -> Pending:
        return Pending(self._delete(context, request))

    async def _delete(self, context: RequestContext, request: DeleteGroupsRequest) -> Reply:
        results: list[DeletableGroupResult] = []
        for some in weighted_slices(dict.fromkeys(request.groups_names)):
            begun = [self._delete_one(group_id) for group_id in some]
            results += [each if isinstance(each, DeletableGroupResult) else await each for each in begun]
            await asyncio.sleep(0)
        return await respond_in_turns(
            DeleteGroupsResponse(), context.version, "results", len(results), results
        )

    def _delete_one(self, group_id: str) -> DeletableGroupResult | Awaitable[DeletableGroupResult]:
        return self._service.ask(
            group_id,
            lambda token: DeleteGroup(token=token, group_id=group_id),
            lambda response: DeletableGroupResult(group_id=group_id, error_code=_error(response)),
        )


async def _list_permitted(
    version: int, response: ListGroupsResponse, groups: list[ListedGroup], access: Access
) -> Reply:
    """The response with the groups that the client may describe."""
    permitted = await in_turns(
        groups,
        lambda group: access.allows(AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id, keep=False),
        CHECKS_PER_TURN,
    )
    found = list(compress(groups, permitted))
    return await respond_in_turns(response, version, "groups", len(found), found)


async def _describe_in_turns(
    version: int, group_ids: Sequence[str], describe: Callable[[str], DescribedGroup]
) -> RawReply:
    """The response, encoded a few members in each turn: a group may have a hundred thousand."""
    response, encoding = DescribeGroupsResponse(), ResponseEncoder()
    groups = array_writer(DescribeGroupsResponse, version, "groups")
    members = nested_array_writer(DescribeGroupsResponse, version, DescribedGroup, "members")
    await encoding.add(groups.before(response, len(group_ids)))
    for group_id in group_ids:
        group = describe(group_id)
        if group.error_code:
            encoding.errors[group.error_code] += 1
        await encoding.add(members.before(group, len(group.members)), entries=1)
        for some in weighted_slices(group.members):
            await encoding.add(members.elements(some), len(some))
        await encoding.add(members.after(group))
    await encoding.add(groups.after(response))
    return encoding.reply()


def _error(response: Any) -> ErrorCode:
    return response.error if isinstance(response, ErrorResponse) else ErrorCode.UNKNOWN_SERVER_ERROR
