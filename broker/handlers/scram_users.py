"""DescribeUserScramCredentials and AlterUserScramCredentials (v0, KIP-554).

Descriptions come from this broker's image and show no keys. For a change this broker derives the keys from
the SaltedPassword, which could replace the password, so that it does not reach the metadata log.
"""

from collections import Counter
from collections.abc import Mapping

from tierlog.broker.handlers.context import Handler, Reply, RequestContext, pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.turns import in_turns, respond_in_turns
from tierlog.metadata.controller.commands import AlterUsers, CredentialChange, UserOutcome
from tierlog.metadata.scram import (
    MECHANISMS,
    SALT_MAX,
    ScramMechanism,
    ScramVerifier,
)
from tierlog.metadata.scram_users import (
    ScramUsers,
)
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import alter_user_scram_credentials as alter
from tierlog.protocol.messages import describe_user_scram_credentials as describe
from tierlog.protocol.sasl.scram import Keys, keys_of

CHANGES_MAX = 10_000
"""Maximum changes of one request, as in Kafka (MAX_RECORDS_PER_USER_OP)."""

NO_KEYS = Keys(b"", b"", b"")
Described = describe.DescribeUserScramCredentialsResult


def describe_users_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: describe.DescribeUserScramCredentialsRequest) -> Reply:
        users = deps.metadata.image.scram_users
        named: Mapping[str, int] = Counter(one.name for one in request.users or ())
        if not request.users:
            named = dict.fromkeys(sorted(users), 1)
        results = (_described(users, user, times) for user, times in named.items())
        response = describe.DescribeUserScramCredentialsResponse(error_message="")
        return await respond_in_turns(response, context.version, "results", len(named), results)

    return handle


def _described(users: ScramUsers, user: str, times: int = 1) -> Described:
    if times > 1:
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        return Described(user=user, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=message)
    credentials = users.get(user)
    if credentials is None:
        message = f"Attempt to describe a user credential that does not exist: {user}"
        return Described(user=user, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=message)
    infos = [
        describe.CredentialInfo(mechanism=mechanism, iterations=verifier.iterations)
        for mechanism, verifier in sorted(credentials.items())
    ]
    return Described(user=user, error_message="", credential_infos=infos)


def alter_users_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: alter.AlterUserScramCredentialsRequest) -> Reply:
        if len(request.deletions) + len(request.upsertions) > CHANGES_MAX:
            return _refused(request, f"at most {CHANGES_MAX} credentials can be altered in a request")
        changes = [
            CredentialChange(user=one.name, mechanism=one.mechanism, verifier=None)
            for one in request.deletions
        ]
        changes += await in_turns(
            request.upsertions,
            lambda one: CredentialChange(user=one.name, mechanism=one.mechanism, verifier=_verifier(one)),
        )
        reply = await deps.metadata.submit(AlterUsers(changes=tuple(changes)))
        return alter.AlterUserScramCredentialsResponse(results=[_result(outcome) for outcome in reply.users])

    return handle


def _verifier(wanted: alter.ScramCredentialUpsertion) -> ScramVerifier:
    """The controller refuses a mechanism that is not known, and keys of the wrong size. Without a
    SaltedPassword there are no keys: everybody could log in with those that follow from it."""
    known = wanted.mechanism in MECHANISMS
    mechanism = ScramMechanism(wanted.mechanism) if known else ScramMechanism.SHA_256
    salted = bytes(wanted.salted_password)
    keys = keys_of(mechanism.hash_name, salted) if salted else NO_KEYS
    return ScramVerifier(
        salt=bytes(wanted.salt[: SALT_MAX + 1]),
        stored_key=keys.stored_key,
        server_key=keys.server_key,
        iterations=wanted.iterations,
    )


def _result(outcome: UserOutcome) -> alter.AlterUserScramCredentialsResult:
    return alter.AlterUserScramCredentialsResult(
        user=outcome.user, error_code=outcome.error, error_message=outcome.message
    )


def _refused(request: alter.AlterUserScramCredentialsRequest, message: str) -> Reply:
    named = [one.name for one in request.deletions] + [one.name for one in request.upsertions]
    return alter.AlterUserScramCredentialsResponse(
        results=[
            alter.AlterUserScramCredentialsResult(
                user=user, error_code=ErrorCode.POLICY_VIOLATION, error_message=message
            )
            for user in dict.fromkeys(named)
        ]
    )
