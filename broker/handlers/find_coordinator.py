"""FindCoordinator (v0-6): the broker that coordinates a group or a transactional id.

The first request creates the internal topic of its kind.
"""

from collections.abc import Mapping
from typing import Any

from tierlog.broker.coordinators.shards import Shards
from tierlog.broker.handlers.context import Handler, Pending, Reply, RequestContext
from tierlog.broker.handlers.turns import ENTRIES_PER_TURN, respond_in_turns
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GROUP_KEY_TYPE, TRANSACTION_KEY_TYPE, SHARE_KEY_TYPE = 0, 1, 2
KEYS_FROM = 4  # KIP-699
NO_NODE = -1


def find_coordinator_handler(shards: Mapping[int, Shards[Any]]) -> Handler:
    """`shards`: by key type."""

    def handle(context: RequestContext, request: FindCoordinatorRequest) -> Reply | Pending:
        kind = shards.get(request.key_type)
        if kind is not None and not kind.has_topic:
            return Pending(find_after_creation(kind, context, request))
        return found(context, request)

    async def find_after_creation(
        kind: Shards[Any], context: RequestContext, request: FindCoordinatorRequest
    ) -> Reply:
        await kind.create_topic()  # if that fails, nothing has a coordinator
        reply = found(context, request)
        return await reply if isinstance(reply, Pending) else reply

    def found(context: RequestContext, request: FindCoordinatorRequest) -> Reply | Pending:
        if context.version < KEYS_FROM:
            one = coordinator(context, request.key, request.key_type)
            return FindCoordinatorResponse(
                error_code=one.error_code,
                error_message=one.error_message,
                node_id=one.node_id,
                host=one.host,
                port=one.port,
            )
        keys, response = request.coordinator_keys, FindCoordinatorResponse()
        all_found = (coordinator(context, key, request.key_type) for key in keys)
        if len(keys) > ENTRIES_PER_TURN:
            return Pending(respond_in_turns(response, context.version, "coordinators", len(keys), all_found))
        response.coordinators = list(all_found)
        return response

    def coordinator(context: RequestContext, key: str, key_type: int) -> Coordinator:
        kind = shards.get(key_type)
        if kind is None:
            name = "share groups" if key_type == SHARE_KEY_TYPE else f"keys of type {key_type}"
            message = f"This broker does not coordinate {name}."
            return _without_coordinator(key, ErrorCode.INVALID_REQUEST, message)
        broker = kind.coordinator_of(key)
        address = None if broker is None else broker.address_of(context.connection.listener)
        if broker is None or address is None:
            return _without_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        host, port = address
        return Coordinator(key=key, node_id=broker.broker_id, host=host, port=port, error_message=None)

    return handle


def _without_coordinator(key: str, error: ErrorCode, message: str | None = None) -> Coordinator:
    return Coordinator(key=key, node_id=NO_NODE, port=NO_NODE, error_code=error, error_message=message)
