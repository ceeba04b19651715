"""Changes of SCRAM credentials (KIP-554), with Kafka's refusals and messages.

The broker that got the request has derived the keys: neither a password nor what could replace one reaches
the quorum.
"""

from collections import Counter

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decision import Decision, Refusal, check_format
from tierlog.metadata.evolve import evolve
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import AnyRecord, ScramCredential
from tierlog.metadata.scram import (
    MECHANISMS,
    SALT_MAX,
    USER_NAME_MAX,
    USERS_MAX,
    ScramMechanism,
    ScramVerifier,
)
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.sasl.scram import MAX_ITERATIONS, MIN_ITERATIONS

USERS_FORMAT = 3
"""The format version with users."""


def alter(image: ClusterImage, command: c.AlterUsers) -> Decision[c.UsersAltered]:
    """Each user changes completely or not at all."""
    records: list[AnyRecord] = []
    outcomes: list[c.UserOutcome] = []
    changes_of: dict[str, list[c.CredentialChange]] = {}
    for change in command.changes:
        changes_of.setdefault(change.user, []).append(change)
    for user, changes in changes_of.items():
        try:
            made = _alter(image, user, changes)
        except Refusal as refusal:
            outcomes.append(c.UserOutcome(user=user, error=refusal.error, message=refusal.message))
            continue
        for record in made:
            image = evolve(image, record)
        records += made
        outcomes.append(c.UserOutcome(user=user))
    return Decision(tuple(records), c.UsersAltered(users=tuple(outcomes)))


def _alter(image: ClusterImage, user: str, changes: list[c.CredentialChange]) -> list[ScramCredential]:
    check_format(image, USERS_FORMAT)
    for change in changes:
        _check(image, change)
    if max(Counter(change.mechanism for change in changes).values()) > 1:
        message = "A user credential cannot be altered twice in the same request"
        raise Refusal(ErrorCode.DUPLICATE_RESOURCE, message)
    return [
        ScramCredential(user=user, mechanism=ScramMechanism(change.mechanism), verifier=change.verifier)
        for change in changes
    ]


def _check(image: ClusterImage, change: c.CredentialChange) -> None:
    user, verifier = change.user, change.verifier
    if not user:
        raise _unacceptable("Username must not be empty")
    if change.mechanism not in MECHANISMS:
        raise Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    mechanism = ScramMechanism(change.mechanism)
    known = image.scram_users.get(user)
    if verifier is None:
        if known is None or mechanism not in known:
            message = "Attempt to delete a user credential that does not exist"
            raise Refusal(ErrorCode.RESOURCE_NOT_FOUND, message)
        return
    _check_verifier(mechanism, verifier)
    if known is not None:
        return
    if len(user) > USER_NAME_MAX:
        raise _unacceptable(f"the user name has {len(user)} characters; {USER_NAME_MAX} are allowed")
    if len(image.scram_users) >= USERS_MAX:
        raise Refusal(ErrorCode.POLICY_VIOLATION, f"there are {USERS_MAX} users already")


def _check_verifier(mechanism: ScramMechanism, verifier: ScramVerifier) -> None:
    if verifier.iterations < MIN_ITERATIONS:
        raise _unacceptable("Too few iterations")
    if verifier.iterations > MAX_ITERATIONS:
        raise _unacceptable("Too many iterations")
    if not 0 < len(verifier.salt) <= SALT_MAX:
        raise _unacceptable(f"the salt has {len(verifier.salt)} bytes; 1 to {SALT_MAX} are allowed")
    if {len(verifier.stored_key), len(verifier.server_key)} != {mechanism.key_size}:
        raise _unacceptable(f"a key of {mechanism.sasl_name} has {mechanism.key_size} bytes")


def _unacceptable(message: str) -> Refusal:
    return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
