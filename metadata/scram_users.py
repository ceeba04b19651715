"""SCRAM credentials of all users in the image. Called by evolve, the controller and the brokers' logins."""

from immutables import Map

from tierlog.metadata.scram import ScramMechanism, ScramVerifier

ScramUsers = Map[str, Map[ScramMechanism, ScramVerifier]]
"""The credentials of each user. A user without any is not in it."""


def with_credential(
    users: ScramUsers, user: str, mechanism: ScramMechanism, verifier: ScramVerifier | None
) -> ScramUsers:
    """The users with this credential, or without it (None)."""
    credentials = users.get(user, Map())
    if verifier is not None:
        return users.set(user, credentials.set(mechanism, verifier))
    if mechanism not in credentials:
        return users
    credentials = credentials.delete(mechanism)
    return users.set(user, credentials) if credentials else users.delete(user)
