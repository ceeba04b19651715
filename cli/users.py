"""Requests of the `user` commands. Returns plain rows; the commands parse options and print."""

from collections.abc import Iterable, Sequence
from typing import Any

from tierlog.cli.client import KafkaClient, raise_for
from tierlog.cli.errors import CliError, ExitCode
from tierlog.cli.passwords import MECHANISMS, new_salt
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import alter_user_scram_credentials as alter
from tierlog.protocol.messages import describe_user_scram_credentials as describe
from tierlog.protocol.sasl.scram import HASHES, salted_password

Row = dict[str, Any]
_NAMES = {int(number): name for name, number in MECHANISMS.items()}


def rows(client: KafkaClient, users: Sequence[str] = ()) -> list[Row]:
    """All users, or these, each with its mechanisms. Raises CliError for an unknown user."""
    wanted = [describe.UserName(name=user) for user in users]
    response = client.call(describe.DescribeUserScramCredentialsRequest(users=wanted))
    raise_for(response.error_code, response.error_message, "users")
    for result in response.results:
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            raise unknown_user(result.user)
        raise_for(result.error_code, result.error_message, f"user {result.user}")
    found = [
        {
            "user": result.user,
            "mechanisms": [
                {"mechanism": _NAMES.get(one.mechanism, str(one.mechanism)), "iterations": one.iterations}
                for one in result.credential_infos
            ],
        }
        for result in response.results
    ]
    return sorted(found, key=lambda row: row["user"])


def exists(client: KafkaClient, user: str) -> bool:
    return any(row["user"] == user for row in rows(client))


def set_password(
    client: KafkaClient, user: str, password: str, mechanisms: Iterable[str], iterations: int
) -> None:
    """Set the credentials of these mechanisms. Only what follows from the password is sent."""
    upsertions = []
    for name in mechanisms:
        salt = new_salt()
        upsertions.append(
            alter.ScramCredentialUpsertion(
                name=user,
                mechanism=MECHANISMS[name],
                iterations=iterations,
                salt=salt,
                salted_password=salted_password(HASHES[name], password, salt, iterations),
            )
        )
    _alter(client, user, alter.AlterUserScramCredentialsRequest(upsertions=upsertions))


def delete(client: KafkaClient, user: str, mechanisms: Iterable[str]) -> None:
    """Remove the credentials of these mechanisms."""
    deletions = [alter.ScramCredentialDeletion(name=user, mechanism=MECHANISMS[name]) for name in mechanisms]
    _alter(client, user, alter.AlterUserScramCredentialsRequest(deletions=deletions))


def _alter(client: KafkaClient, user: str, request: alter.AlterUserScramCredentialsRequest) -> None:
    for result in client.call(request).results:
        raise_for(result.error_code, result.error_message, f"user {user}")


def unknown_user(user: str) -> CliError:
    return CliError(
        f"there is no user {user}", hint="List users with `tierlog user list`.", code=ExitCode.NOT_FOUND
    )
