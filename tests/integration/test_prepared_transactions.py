"""InitProducerId 6 with keepPreparedTxn (KIP-939), on one broker."""

from collections.abc import Iterator

import pytest
from waiting import until
from wire_client import Client

from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tierlog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tierlog.protocol.messages.find_coordinator import FindCoordinatorRequest
from tierlog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tierlog.testing import TierlogBrokerFactory

NAME = "t"
STARTING = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


@pytest.fixture
def client(tierlog_broker_factory: TierlogBrokerFactory) -> Iterator[Client]:
    broker = tierlog_broker_factory({"transaction.two.phase.commit.enable": "true"})
    found = Client(broker.bootstrap)
    yield found
    found.close()


def init(client: Client, *, keep: bool) -> InitProducerIdResponse:
    """The first FindCoordinator creates the topic of the coordinator."""
    request = InitProducerIdRequest(
        transactional_id=NAME, transaction_timeout_ms=60_000, enable2_pc=True, keep_prepared_txn=keep
    )
    responses: list[InitProducerIdResponse] = []

    def is_served() -> bool:
        client.send("FindCoordinator", 4, FindCoordinatorRequest(key_type=1, coordinator_keys=[NAME]))
        responses.append(client.send("InitProducerId", 6, request))
        return responses[-1].error_code not in STARTING

    until(is_served, "no transaction coordinator")
    return responses[-1]


def add(client: Client, topic: str, producer: tuple[int, int]) -> ErrorCode:
    added = AddPartitionsToTxnTransaction(
        transactional_id=NAME,
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
    )
    response = client.send("AddPartitionsToTxn", 5, AddPartitionsToTxnRequest(transactions=[added]))
    [partition] = response.results_by_transaction[0].topic_results[0].results_by_partition
    return ErrorCode(partition.error_code)


def commit(client: Client, producer: tuple[int, int]) -> EndTxnResponse:
    request = EndTxnRequest(
        transactional_id=NAME, producer_id=producer[0], producer_epoch=producer[1], committed=True
    )
    response: EndTxnResponse = client.send("EndTxn", 5, request)
    return response


def test_restarted_client_commits_the_transaction_of_its_predecessor(client: Client) -> None:
    first = init(client, keep=True)
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert (first.ongoing_txn_producer_id, first.ongoing_txn_producer_epoch) == (-1, -1)
    topic = client.create()
    assert add(client, topic, (first.producer_id, 0)) == ErrorCode.NONE

    second = init(client, keep=True)
    assert (second.error_code, second.producer_id, second.producer_epoch) == (0, first.producer_id, 1)
    assert (second.ongoing_txn_producer_id, second.ongoing_txn_producer_epoch) == (first.producer_id, 0)
    assert commit(client, (first.producer_id, 0)).error_code == ErrorCode.PRODUCER_FENCED
    assert add(client, topic, (first.producer_id, 1)) == ErrorCode.INVALID_TXN_STATE

    ended = commit(client, (first.producer_id, 1))
    assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (0, first.producer_id, 2)
    assert add(client, topic, (first.producer_id, 2)) == ErrorCode.NONE
