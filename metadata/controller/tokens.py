"""Changes of delegation tokens (KIP-48), with Kafka's refusals in Kafka's order.

Brokers choose the id of a new token and find tokens by their HMAC. The times are those of the wall clock of
the broker that got the request: the quorum's time stops while there is no leader, so a token would outlive
its date. Refuses more tokens than the bounds of `metadata.delegation_tokens`, which every node would keep in
memory.
"""

from msgspec.structs import replace

from tierlog.metadata import records as r
from tierlog.metadata.acls import TEXT_MAX, USER
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decision import Decision, Refusal, check_format, done
from tierlog.metadata.delegation_tokens import (
    NAMES_CHARACTERS_MAX,
    RENEWERS_MAX,
    TOKEN_ID_MAX,
    TOKENS_MAX,
    TOKENS_OF_REQUESTER_MAX,
    DelegationToken,
)
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode

TOKENS_FORMAT = 3
"""The format version with tokens."""

REMOVED_PER_COMMAND = 1_000
"""A command is decided and applied in one turn of the event loop."""


def create(image: ClusterImage, command: c.CreateToken) -> Decision[c.Acknowledged]:
    """The same command again changes nothing."""
    check_format(image, TOKENS_FORMAT)
    token = replace(command.token, expires_ms=min(command.token.expires_ms, command.token.max_ms))
    if image.tokens.get(token.token_id) == token:
        return done()
    _check_names(token)
    _check_count(image, token)
    return done(r.TokenRecord(token=token))


def alter(image: ClusterImage, command: c.AlterToken) -> Decision[c.Acknowledged]:
    token = image.tokens.get(command.token_id)
    if token is None:
        raise Refusal(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "there is no such token")
    if command.renews:
        _check_not_expired(token, command.now_ms)
    if not token.is_of(command.principal):
        message = f"{command.principal} is neither the owner nor a renewer of the token"
        raise Refusal(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, message)
    if command.expires_ms is None:
        return done(r.TokenRemoved(token_id=token.token_id))
    _check_not_expired(token, command.now_ms)
    expires_ms = min(command.expires_ms, token.max_ms)
    return done(r.TokenRecord(token=replace(token, expires_ms=expires_ms)))


def remove_expired(image: ClusterImage, command: c.RemoveExpiredTokens) -> Decision[c.Acknowledged]:
    """Remove up to REMOVED_PER_COMMAND of the tokens that have expired."""
    expired = [token_id for token_id, token in image.tokens.items() if token.is_expired(command.now_ms)]
    return done(*(r.TokenRemoved(token_id=token_id) for token_id in sorted(expired)[:REMOVED_PER_COMMAND]))


def _check_not_expired(token: DelegationToken, now_ms: int) -> None:
    if token.is_expired(now_ms):
        raise Refusal(ErrorCode.DELEGATION_TOKEN_EXPIRED, "the token has expired")


def _check_names(token: DelegationToken) -> None:
    """Kafka refuses renewers of other types than User as well; an owner of another type could log in as the
    user of that name there."""
    names = (token.owner, token.requester, *token.renewers)
    for name in names:
        if not name.startswith(USER):
            message = f"{name[:TEXT_MAX]} is not of type User, the only type that clients have"
            raise Refusal(ErrorCode.INVALID_PRINCIPAL_TYPE, message)
    too_long = max(map(len, names)) > TEXT_MAX or len(token.token_id) > TOKEN_ID_MAX
    too_many = len(token.renewers) > RENEWERS_MAX or sum(map(len, names)) > NAMES_CHARACTERS_MAX
    if too_long or too_many:
        message = (
            f"a token may have {RENEWERS_MAX} renewers, each name {TEXT_MAX} characters, and all names "
            f"together {NAMES_CHARACTERS_MAX}"
        )
        raise Refusal(ErrorCode.POLICY_VIOLATION, message)


def _check_count(image: ClusterImage, token: DelegationToken) -> None:
    if token.token_id in image.tokens:
        raise Refusal(ErrorCode.DUPLICATE_RESOURCE, "there is another token with this id")
    if len(image.tokens) >= TOKENS_MAX:
        raise Refusal(ErrorCode.POLICY_VIOLATION, f"there are {TOKENS_MAX} delegation tokens already")
    if len(image.tokens) < TOKENS_OF_REQUESTER_MAX:
        return
    own = sum(one.requester == token.requester for one in image.tokens.values())
    if own >= TOKENS_OF_REQUESTER_MAX:
        message = f"{token.requester} has created {own} delegation tokens that have not expired"
        raise Refusal(ErrorCode.POLICY_VIOLATION, message)
