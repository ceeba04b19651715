"""Every advertised API in every version: a valid request gets a response without an error.

The content of responses is tested elsewhere; this compares the table of versions with the handlers.
"""

import uuid
from collections.abc import Iterator

import pytest
from every_request import MAKE, Place, batch, errors_in, place_for
from wire_client import Client, message

from tierlog.protocol.api import APIS
from tierlog.protocol.errors import ErrorCode as E
from tierlog.testing import TierlogBroker

ADVERTISED = {
    "Produce": (3, 13),
    "Fetch": (4, 18),
    "ListOffsets": (1, 11),
    "Metadata": (0, 13),
    "OffsetCommit": (2, 10),
    "OffsetFetch": (1, 10),
    "FindCoordinator": (0, 6),
    "JoinGroup": (0, 9),
    "Heartbeat": (0, 4),
    "LeaveGroup": (0, 5),
    "SyncGroup": (0, 5),
    "DescribeGroups": (0, 6),
    "ConsumerGroupHeartbeat": (0, 1),
    "ConsumerGroupDescribe": (0, 1),
    "ListConfigResources": (0, 1),
    "ListGroups": (0, 5),
    "ApiVersions": (0, 4),
    "CreateTopics": (2, 7),
    "DeleteTopics": (1, 6),
    "DeleteRecords": (0, 2),
    "InitProducerId": (0, 6),
    "OffsetForLeaderEpoch": (2, 4),
    "AddPartitionsToTxn": (0, 5),
    "AddOffsetsToTxn": (0, 4),
    "EndTxn": (0, 5),
    "WriteTxnMarkers": (1, 2),
    "TxnOffsetCommit": (0, 5),
    "DescribeProducers": (0, 0),
    "DescribeTransactions": (0, 0),
    "ListTransactions": (0, 2),
    "DescribeConfigs": (1, 4),
    "AlterConfigs": (0, 2),
    "AlterReplicaLogDirs": (1, 2),
    "DescribeLogDirs": (1, 5),
    "CreatePartitions": (0, 3),
    "DeleteGroups": (0, 2),
    "IncrementalAlterConfigs": (0, 1),
    "OffsetDelete": (0, 0),
    "DescribeClientQuotas": (0, 1),
    "AlterClientQuotas": (0, 1),
    "DescribeCluster": (0, 2),
    "ElectLeaders": (0, 2),
    "AlterPartitionReassignments": (0, 1),
    "ListPartitionReassignments": (0, 0),
    "DescribeQuorum": (0, 2),
    "UpdateFeatures": (0, 2),
    "UnregisterBroker": (0, 0),
    "DescribeTopicPartitions": (0, 0),
    "SaslHandshake": (0, 1),
    "SaslAuthenticate": (0, 2),
    "DescribeUserScramCredentials": (0, 0),
    "AlterUserScramCredentials": (0, 0),
    "DescribeAcls": (1, 3),
    "CreateAcls": (1, 3),
    "DeleteAcls": (1, 3),
    "CreateDelegationToken": (1, 3),
    "RenewDelegationToken": (1, 2),
    "ExpireDelegationToken": (1, 2),
    "DescribeDelegationToken": (1, 3),
}
NOT_ALLOWED = E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
OUTCOMES = {
    "AlterReplicaLogDirs": [E.LOG_DIR_NOT_FOUND],
    "ElectLeaders": [E.ELECTION_NOT_NEEDED],
    "UnregisterBroker": [E.BROKER_ID_NOT_REGISTERED],
    "SaslHandshake": [E.ILLEGAL_SASL_STATE],  # the listener wants no login
    "SaslAuthenticate": [E.ILLEGAL_SASL_STATE],
    "DescribeAcls": [E.SECURITY_DISABLED],
    "CreateAcls": [E.SECURITY_DISABLED],
    "DeleteAcls": [E.SECURITY_DISABLED],
    "CreateDelegationToken": [NOT_ALLOWED],
    "RenewDelegationToken": [NOT_ALLOWED],
    "ExpireDelegationToken": [NOT_ALLOWED],
    "DescribeDelegationToken": [NOT_ALLOWED],
}
"""Errors of requests that a single node cannot carry out: it has no such log directory, its partitions have
leaders, there is no other broker, and it has neither an authorizer nor delegation tokens.
"""
VERSIONS = [(api, version) for api, (least, most) in ADVERTISED.items() for version in range(least, most + 1)]


@pytest.fixture(scope="module")
def client(tierlog_session_broker: TierlogBroker) -> Iterator[Client]:
    connection = Client(tierlog_session_broker.bootstrap)
    yield connection
    connection.close()


def test_every_advertised_version_is_tested(client: Client) -> None:
    answer = client.send(
        "ApiVersions", 4, message("ApiVersions", MAKE["ApiVersions"](Place("", uuid.UUID(int=0), "")))
    )
    reported = {APIS[each.api_key].name: (each.min_version, each.max_version) for each in answer.api_keys}
    assert reported == ADVERTISED


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_valid_request_gets_no_error(client: Client, api: str, version: int) -> None:
    place = place_for(client, api)
    answer = client.send(api, version, message(api, MAKE[api](place)))
    if api == "JoinGroup" and version >= 4:
        assert answer.error_code == E.MEMBER_ID_REQUIRED, (
            "a member without an id is given one first (KIP-394)"
        )
        request = message(api, {**MAKE[api](place), "member_id": answer.member_id})
        answer = client.send(api, version, request)
    assert errors_in(answer) == OUTCOMES.get(api, [])
    if api == "Fetch":
        assert len(answer.responses[0].partitions[0].records) == len(batch())


@pytest.mark.parametrize("api", ["Produce", "Fetch", "ListOffsets", "DeleteRecords", "OffsetForLeaderEpoch"])
def test_errors_in_responses_are_detected(client: Client, api: str) -> None:
    nowhere = Place("no-such-topic", uuid.UUID(int=7), "g")
    assert errors_in(client.send(api, ADVERTISED[api][1], message(api, MAKE[api](nowhere))))
