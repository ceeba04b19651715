"""Changes and descriptions of users have the answers of Apache Kafka 4.3.1, except where the comment says why
not."""

from collections.abc import Iterator
from typing import Any

import pytest
from wire_client import Client, message

from tierlog.protocol.errors import ErrorCode as E
from tierlog.testing import TierlogBroker

Answer = list[tuple[str, int, str | None]]
TWICE = "A user credential cannot be altered twice in the same request"
NO_SALT = "the salt has 0 bytes; 1 to 256 are allowed"
NOT_THERE = "Attempt to delete a user credential that does not exist"


@pytest.fixture
def client(tierlog_session_broker: TierlogBroker) -> Iterator[Client]:
    connection = Client(tierlog_session_broker.bootstrap)
    yield connection
    connection.close()


def put(name: str, mechanism: int = 1, iterations: int = 4096, **changes: Any) -> dict[str, Any]:
    values = {"name": name, "mechanism": mechanism, "iterations": iterations}
    return {**values, "salt": b"salt", "salted_password": b"x" * 32, **changes}


def drop(name: str, mechanism: int = 1) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


def alter(client: Client, *changes: dict[str, Any]) -> Answer:
    request = {
        "deletions": [change for change in changes if "salt" not in change],
        "upsertions": [change for change in changes if "salt" in change],
    }
    answer = client.send("AlterUserScramCredentials", 0, message("AlterUserScramCredentials", request))
    return [(one.user, one.error_code, one.error_message) for one in answer.results]


def describe(client: Client, *names: str) -> Any:
    request = {"users": [{"name": name} for name in names]}
    answer = client.send("DescribeUserScramCredentials", 0, message("DescribeUserScramCredentials", request))
    assert (answer.error_code, answer.error_message) == (0, "")
    return [
        (
            one.user,
            one.error_code,
            one.error_message,
            [(info.mechanism, info.iterations) for info in one.credential_infos],
        )
        for one in answer.results
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([put("")], ("", E.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")),
        ([put("a", 0)], ("a", E.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")),
        ([put("a", 3)], ("a", E.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")),
        ([put("a", iterations=4095)], ("a", E.UNACCEPTABLE_CREDENTIAL, "Too few iterations")),
        ([put("a", iterations=16385)], ("a", E.UNACCEPTABLE_CREDENTIAL, "Too many iterations")),
        ([drop("a")], ("a", E.RESOURCE_NOT_FOUND, NOT_THERE)),
        ([drop("")], ("", E.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")),
        ([put("a"), put("a")], ("a", E.DUPLICATE_RESOURCE, TWICE)),
        ([drop("a"), put("a")], ("a", E.RESOURCE_NOT_FOUND, NOT_THERE)),
        # Kafka accepts an empty salt, and fails with UNKNOWN_SERVER_ERROR at an empty salted password
        (
            [put("a", salt=b"")],
            ("a", E.UNACCEPTABLE_CREDENTIAL, "the salt has 0 bytes; 1 to 256 are allowed"),
        ),
        (
            [put("a", salted_password=b"")],
            ("a", E.UNACCEPTABLE_CREDENTIAL, "a key of SCRAM-SHA-256 has 32 bytes"),
        ),
    ],
)
def test_refused_changes(
    client: Client, changes: list[dict[str, Any]], expected: tuple[str, int, str]
) -> None:
    assert alter(client, *changes) == [expected]


def test_changes_and_descriptions(client: Client) -> None:
    # Kafka refuses two mechanisms of a user in one request, which `tierlog user create` needs
    assert alter(client, put("two"), put("two", 2, 8192)) == [("two", 0, None)]
    assert describe(client, "two") == [("two", 0, "", [(1, 4096), (2, 8192)])]
    missing = "Attempt to describe a user credential that does not exist: none"
    assert describe(client, "none") == [("none", E.RESOURCE_NOT_FOUND, missing, [])]
    repeated = "Cannot describe SCRAM credentials for the same user twice in a single request: two"
    assert describe(client, "two", "two") == [("two", E.DUPLICATE_RESOURCE, repeated, [])]
    assert ("two", 0, "", [(1, 4096), (2, 8192)]) in describe(client)
    assert alter(client, drop("two"), put("three"), drop("two", 2)) == [("two", 0, None), ("three", 0, None)]
    assert describe(client, "two")[0][1] == E.RESOURCE_NOT_FOUND
