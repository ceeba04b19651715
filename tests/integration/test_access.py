"""Access of every API, in every version, decided by ACLs: the matrix of `handlers.access`."""

from collections.abc import Iterator
from typing import Any

import pytest
from access_cases import (
    AUTHORIZATION_ERRORS,
    HOST,
    SETTINGS,
    Acls,
    permissions_of,
    rows_of,
    send,
)
from every_request import errors_in, place_for
from wire_client import Client

from tierlog.broker.handlers.access import DENIED, Row, missing_rows
from tierlog.broker.handlers.table import SERVED
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode as E
from tierlog.testing import TierlogBroker

NOT_ALLOWED = [E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED]
OUTCOMES = {
    "AlterReplicaLogDirs": [E.LOG_DIR_NOT_FOUND],
    "ElectLeaders": [E.ELECTION_NOT_NEEDED],
    "UnregisterBroker": [E.BROKER_ID_NOT_REGISTERED],
    "CreateDelegationToken": NOT_ALLOWED,
    "RenewDelegationToken": NOT_ALLOWED,
    "ExpireDelegationToken": NOT_ALLOWED,
    "DescribeDelegationToken": NOT_ALLOWED,
}
"""Errors of allowed requests that a single node cannot carry out."""
FILTERED = {"ListGroups": "groups", "ListTransactions": "transaction_states"}
"""APIs whose responses leave out what is denied, and the array."""
WITHOUT_ERRORS = {("DescribeLogDirs", 1), ("DescribeLogDirs", 2)}
"""Versions of responses that cannot carry the error: they are empty."""
CASES = [
    (name, version)
    for name in sorted(SERVED)
    for version in range(BY_NAME[name].min_version, BY_NAME[name].max_version + 1)
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogBroker]:
    with TierlogBroker(tmp_path_factory.mktemp("node") / "node", SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(broker: TierlogBroker) -> Iterator[Client]:
    client = Client(broker.bootstrap)
    yield client
    client.close()


@pytest.fixture(scope="module")
def acls(admin: Client) -> Acls:
    return Acls(admin)


@pytest.fixture(scope="module")
def client(broker: TierlogBroker) -> Iterator[Client]:
    client = Client(broker.bootstrap, HOST)
    yield client
    client.close()


def test_every_api_has_rows() -> None:
    assert missing_rows(SERVED) == []


@pytest.mark.parametrize(("api", "version"), CASES)
def test_request_needs_each_row_of_its_api(
    admin: Client, acls: Acls, client: Client, api: str, version: int
) -> None:
    place, rows = place_for(admin, api), rows_of(api, version)
    for missing in rows:
        others = [row for row in rows if row is not missing]
        with acls.granted(*permissions_of(others)):
            check_denied(api, version, missing, send(client, api, version, place))
    with acls.granted(*permissions_of(rows)):
        answer = send(client, api, version, place)
    expected = [E.MEMBER_ID_REQUIRED] if api == "JoinGroup" and version >= 4 else OUTCOMES.get(api, [])
    assert errors_in(answer) == expected
    if api in FILTERED:
        assert getattr(answer, FILTERED[api])


def check_denied(api: str, version: int, missing: Row, answer: Any) -> None:
    if api in FILTERED:
        assert not errors_in(answer)
        assert getattr(answer, FILTERED[api]) == []
        return
    if (api, version) in WITHOUT_ERRORS:
        assert answer.results == []
        return
    [(_, kind, _)] = permissions_of([missing])
    assert set(errors_in(answer)) - {E.OPERATION_NOT_ATTEMPTED} == {DENIED[kind]}


@pytest.mark.parametrize(("api", "version"), [case for case in CASES if not rows_of(*case)])
def test_request_without_rows_needs_no_access(
    admin: Client, acls: Acls, client: Client, api: str, version: int
) -> None:
    place = place_for(admin, api)
    with acls.granted():
        assert not AUTHORIZATION_ERRORS.intersection(errors_in(send(client, api, version, place)))
