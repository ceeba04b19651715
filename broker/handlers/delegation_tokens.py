"""CreateDelegationToken (v1-3), RenewDelegationToken (v1-2), ExpireDelegationToken (v1-2) and
DescribeDelegationToken (v1-3): delegation tokens (KIP-48, KIP-373), with Kafka's refusals in Kafka's order.

A client whose connection has no authentication, or that logged in by a token, may send none of them. Anyone
else may create tokens of its own; owner, requester and renewers may change a token. Other than in Kafka, a
super user may expire each: a stolen token, or one of a removed user, must not need its owner. Other access is
in `handlers.access`. Times are those of this broker's wall clock.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from tierlog.broker.handlers.context import ANONYMOUS, Handler, Pending, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.turns import before_later_requests, respond_in_turns
from tierlog.broker.security.authorizer import Access
from tierlog.metadata.acls import USER, AclOperation, ResourceType
from tierlog.metadata.controller.commands import AlterToken, CreateToken
from tierlog.metadata.delegation_tokens import DelegationToken
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import create_delegation_token as create
from tierlog.protocol.messages import describe_delegation_token as describe
from tierlog.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from tierlog.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
DISABLED = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
NO_TIMESTAMP = -1
INT64_MAX = 2**63 - 1
TOKENS_PER_TURN = 500
"""Tokens whose access is checked in one turn of the event loop, up to 10 ms."""

Allowed = Callable[[RequestContext], bool]


def token_handlers(deps: Dependencies) -> dict[str, Handler]:
    authenticates = {
        listener.name: (listener.protocol.has_sasl, listener.protocol.has_tls)
        for listener in deps.settings.client_listeners
    }

    def is_allowed(context: RequestContext) -> bool:
        """As in Kafka: not over PLAINTEXT, without a client certificate, or by a token."""
        connection = context.connection
        has_sasl, has_tls = authenticates.get(connection.listener, (False, False))
        has_certificate = has_tls and connection.principal != ANONYMOUS
        return not connection.by_token and (has_sasl or has_certificate)

    return {
        "CreateDelegationToken": _create_handler(deps, is_allowed),
        "RenewDelegationToken": _renew_handler(deps, is_allowed),
        "ExpireDelegationToken": _expire_handler(deps, is_allowed),
        "DescribeDelegationToken": _describe_handler(deps, is_allowed),
    }


# ---- CreateDelegationToken ------------------------------------------------------------------------


def _create_handler(deps: Dependencies, is_allowed: Allowed) -> Handler:
    def handle(context: RequestContext, request: create.CreateDelegationTokenRequest) -> Reply | Pending:
        requester = context.connection.principal
        owner = requester
        if request.owner_principal_name:
            owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
        if not is_allowed(context):
            return _not_created(NOT_ALLOWED, owner, requester)
        may_create = owner == requester or _allows(
            context.access, AclOperation.CREATE_TOKENS, ResourceType.USER, owner
        )
        if not may_create:
            return _not_created(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, owner, requester)
        if any(f"{one.principal_type}:" != USER for one in request.renewers):
            return _not_created(ErrorCode.INVALID_PRINCIPAL_TYPE, owner, requester)
        if not deps.delegation_tokens.enabled:
            return _not_created(DISABLED, owner, requester, timestamp_ms=0)
        return Pending(_create(deps, context, request, owner, requester))

    return handle


async def _create(
    deps: Dependencies,
    context: RequestContext,
    request: create.CreateDelegationTokenRequest,
    owner: str,
    requester: str,
) -> Reply:
    settings, now = deps.settings, deps.clock.now_ms()
    lifetime_ms = settings.delegation_token_max_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    token = DelegationToken(
        token_id=deps.delegation_tokens.new_id(),
        owner=owner,
        requester=requester,
        renewers=tuple(f"{one.principal_type}:{one.principal_name}" for one in request.renewers),
        issued_ms=now,
        expires_ms=now + min(lifetime_ms, settings.delegation_token_expiry_time_ms),
        max_ms=now + lifetime_ms,
    )
    context.token_id = token.token_id
    reply = await deps.metadata.submit(CreateToken(token=token))
    if reply.error:
        return _not_created(reply.error, owner, requester)
    response = _created(owner, requester)
    response.issue_timestamp_ms = token.issued_ms
    response.expiry_timestamp_ms = token.expires_ms
    response.max_timestamp_ms = token.max_ms
    response.token_id = token.token_id
    response.hmac = deps.delegation_tokens.hmac_of(token.token_id)
    return response


def _created(owner: str, requester: str) -> create.CreateDelegationTokenResponse:
    kind, _, name = owner.partition(":")
    requester_kind, _, requester_name = requester.partition(":")
    return create.CreateDelegationTokenResponse(
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=requester_kind,
        token_requester_principal_name=requester_name,
    )


def _not_created(error: ErrorCode, owner: str, requester: str, *, timestamp_ms: int = NO_TIMESTAMP) -> Reply:
    response = _created(owner, requester)
    response.error_code = error
    response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = timestamp_ms
    return response


# ---- RenewDelegationToken, ExpireDelegationToken --------------------------------------------------


def _renew_handler(deps: Dependencies, is_allowed: Allowed) -> Handler:
    def handle(context: RequestContext, request: RenewDelegationTokenRequest) -> Reply | Pending:
        refusal = _refusal(deps, is_allowed, context)
        if refusal:
            return RenewDelegationTokenResponse(error_code=refusal, expiry_timestamp_ms=_no_expiry(refusal))
        return Pending(_renew(deps, context, request))

    return handle


async def _renew(deps: Dependencies, context: RequestContext, request: RenewDelegationTokenRequest) -> Reply:
    now, period_ms = deps.clock.now_ms(), deps.settings.delegation_token_expiry_time_ms
    if request.renew_period_ms > 0:
        period_ms = min(period_ms, request.renew_period_ms)
    error, expires_ms = await _alter(deps, context, request.hmac, now, now + period_ms, renews=True)
    return RenewDelegationTokenResponse(error_code=error, expiry_timestamp_ms=expires_ms)


def _expire_handler(deps: Dependencies, is_allowed: Allowed) -> Handler:
    def handle(context: RequestContext, request: ExpireDelegationTokenRequest) -> Reply | Pending:
        refusal = _refusal(deps, is_allowed, context)
        if refusal:
            return ExpireDelegationTokenResponse(error_code=refusal, expiry_timestamp_ms=_no_expiry(refusal))
        return Pending(_expire(deps, context, request))

    return handle


async def _expire(
    deps: Dependencies, context: RequestContext, request: ExpireDelegationTokenRequest
) -> Reply:
    now, period_ms = deps.clock.now_ms(), request.expiry_time_period_ms
    expires_ms = None if period_ms < 0 else min(now + period_ms, INT64_MAX)
    error, ends_ms = await _alter(deps, context, request.hmac, now, expires_ms, renews=False)
    return ExpireDelegationTokenResponse(error_code=error, expiry_timestamp_ms=ends_ms)


async def _alter(
    deps: Dependencies, context: RequestContext, hmac: Any, now: int, expires_ms: int | None, *, renews: bool
) -> tuple[ErrorCode, int]:
    """Have the token with this HMAC expire at this time, or now for None. Returns the time, at most the
    token's maximum; 0 with an error."""
    tokens, value = deps.delegation_tokens, bytes(hmac)
    token = await tokens.find(value)
    if token is None:  # another broker may have created it just now
        await deps.metadata.current()
        token = await tokens.find(value)
    if token is None:
        return ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0
    context.token_id, principal = token.token_id, context.connection.principal
    if not renews and deps.authorizer is not None and deps.authorizer.is_super_user(principal):
        principal = token.owner
    command = AlterToken(
        token_id=token.token_id, principal=principal, now_ms=now, expires_ms=expires_ms, renews=renews
    )
    reply = await deps.metadata.submit(command)
    if reply.error:
        return reply.error, 0
    return ErrorCode.NONE, now if expires_ms is None else min(expires_ms, token.max_ms)


def _refusal(deps: Dependencies, is_allowed: Allowed, context: RequestContext) -> ErrorCode:
    """Why no token may be changed or described; NONE if it may."""
    if not is_allowed(context):
        return NOT_ALLOWED
    return ErrorCode.NONE if deps.delegation_tokens.enabled else DISABLED


def _no_expiry(refusal: ErrorCode) -> int:
    """As in Kafka, whose controller leaves the time out of other refusals."""
    return NO_TIMESTAMP if refusal is NOT_ALLOWED else 0


# ---- DescribeDelegationToken ----------------------------------------------------------------------


def _describe_handler(deps: Dependencies, is_allowed: Allowed) -> Handler:
    def handle(context: RequestContext, request: describe.DescribeDelegationTokenRequest) -> Reply | Pending:
        refusal = _refusal(deps, is_allowed, context)
        if refusal:
            return describe.DescribeDelegationTokenResponse(error_code=refusal)
        if request.owners is None:
            return before_later_requests(_describe(deps, context, None))
        owners = frozenset(f"{one.principal_type}:{one.principal_name}" for one in request.owners)
        return before_later_requests(_describe(deps, context, owners))

    return handle


async def _describe(deps: Dependencies, context: RequestContext, owners: frozenset[str] | None) -> Reply:
    """Tokens that these principals own, created or may renew, or all for None, without those that the client
    may not see."""
    found: list[DelegationToken] = []
    for number, token in enumerate(deps.metadata.image.tokens.values(), 1):
        if number % TOKENS_PER_TURN == 0:
            await asyncio.sleep(0)
        is_wanted = owners is None or not owners.isdisjoint((token.owner, token.requester, *token.renewers))
        if is_wanted and _may_see(context, token):
            found.append(token)
    hmac_of = deps.delegation_tokens.hmac_of
    described = (_described(token, hmac_of(token.token_id)) for token in found)
    response = describe.DescribeDelegationTokenResponse()
    return await respond_in_turns(response, context.version, "tokens", len(found), described)


def _may_see(context: RequestContext, token: DelegationToken) -> bool:
    access = context.access
    return (
        token.is_of(context.connection.principal)
        or _allows(access, AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
        or _allows(access, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
    )


def _described(token: DelegationToken, hmac: bytes) -> describe.DescribedDelegationToken:
    kind, _, name = token.owner.partition(":")
    requester_kind, _, requester_name = token.requester.partition(":")
    renewers = [one.partition(":") for one in token.renewers]
    return describe.DescribedDelegationToken(
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=requester_kind,
        token_requester_principal_name=requester_name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=hmac,
        renewers=[
            describe.DescribedDelegationTokenRenewer(principal_type=one, principal_name=other)
            for one, _, other in renewers
        ],
    )


def _allows(access: Access | None, operation: AclOperation, kind: ResourceType, name: str) -> bool:
    return access is None or access.allows(operation, kind, name, keep=False)
