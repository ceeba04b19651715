"""ACLs (v1-3, KIP-140) and delegation tokens (v1-3, KIP-48) of a node that has no authorizer and no TLS.

Each request gets the error that Kafka answers in that case, so that clients stop at once with its message.
If these APIs were not advertised, clients would report that the broker is too old.
"""

from typing import Any

from tierlog.broker.handlers.context import Handler, Reply, RequestContext
from tierlog.broker.handlers.errors import error_reply
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.create_delegation_token import CreateDelegationTokenResponse

NO_AUTHORIZER = "No Authorizer is configured."  # as in Kafka's AclApis
NO_TIME = -1


def security_handlers() -> dict[str, Handler]:
    """API name -> handler."""
    return {
        "DescribeAcls": _without_authorizer(f"{NO_AUTHORIZER[:-1]} on the broker"),
        "CreateAcls": _without_authorizer(NO_AUTHORIZER),
        "DeleteAcls": _without_authorizer(NO_AUTHORIZER),
        "CreateDelegationToken": _create_token,
        "RenewDelegationToken": _without_tokens,
        "ExpireDelegationToken": _without_tokens,
        "DescribeDelegationToken": _without_tokens,
    }


_NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
"""Kafka checks the listener first: over PLAINTEXT it issues no tokens, whether they are enabled or not."""


def _without_authorizer(message: str) -> Handler:
    return lambda context, request: error_reply(context, request, ErrorCode.SECURITY_DISABLED, message)


def _without_tokens(context: RequestContext, request: Any) -> Reply:
    return error_reply(context, request, _NOT_ALLOWED, None)


def _create_token(context: RequestContext, request: Any) -> Reply:
    kind, _, name = context.connection.principal.partition(":")
    return CreateDelegationTokenResponse(
        error_code=_NOT_ALLOWED,
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=kind,
        token_requester_principal_name=name,
        issue_timestamp_ms=NO_TIME,
        expiry_timestamp_ms=NO_TIME,
        max_timestamp_ms=NO_TIME,
    )
