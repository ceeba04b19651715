"""Requests of the `txn` commands. Returns plain rows; the commands parse options and print.

The state of a transaction is with its coordinator (ListTransactions, DescribeTransactions), and the open
transactions of a partition with its leader (DescribeProducers). A transaction that a leader holds open, and
no coordinator knows, hangs: it holds back all readers of committed records (KIP-664).
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from tierlog.base.clock import SystemClock
from tierlog.cli.client import KafkaClient, is_retriable, of_each_broker, raise_for, until_final
from tierlog.cli.errors import CliError, ExitCode
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import (
    describe_producers,
    describe_transactions,
    find_coordinator,
    list_transactions,
    write_txn_markers,
)

TRANSACTION_KEY_TYPE = 1
RETRY_S = 0.1
NONE = -1

Row = dict[str, Any]


def rows(
    client: KafkaClient,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    longer_than_ms: int = NONE,
    pattern: str | None = None,
) -> list[Row]:
    """The transactional ids of all coordinators that match, by id."""
    request = list_transactions.ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=longer_than_ms,
        transactional_id_pattern=pattern,
    )
    found = []
    for broker, response in of_each_broker(client, request, "transactions"):
        found += [
            {
                "transactional_id": each.transactional_id,
                "coordinator": broker,
                "producer_id": each.producer_id,
                "state": each.transaction_state,
            }
            for each in response.transaction_states
        ]
    return sorted(found, key=lambda row: row["transactional_id"])


def describe(client: KafkaClient, transactional_id: str) -> Row:
    """The state of one transactional id. Raises CliError if it is not known."""
    request = describe_transactions.DescribeTransactionsRequest(transactional_ids=[transactional_id])

    def send() -> tuple[int, Any]:
        coordinator = _coordinator(client, transactional_id)
        return coordinator, client.call(request, coordinator).transaction_states[0]

    coordinator, found = until_final(client, send, lambda one: one[1].error_code)
    if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise CliError(
            f"transactional id {transactional_id!r} is not known",
            hint="List the known ones with `tierlog txn list`.",
            code=ExitCode.NOT_FOUND,
        )
    raise_for(found.error_code, None, f"transactional id {transactional_id}")
    is_open = found.transaction_state == "Ongoing"
    return {
        "transactional_id": transactional_id,
        "coordinator": coordinator,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "state": found.transaction_state,
        "timeout_ms": found.transaction_timeout_ms,
        "started_ms": found.transaction_start_time_ms if is_open else None,
        "open_ms": SystemClock().now_ms() - found.transaction_start_time_ms if is_open else None,
        "partitions": [f"{topic.topic}-{number}" for topic in found.topics for number in topic.partitions],
    }


def hanging(client: KafkaClient, topics: Sequence[str] | None, older_than_ms: int) -> list[Row]:
    """Transactions that partitions hold open for longer, and that no coordinator knows to be open there."""
    now_ms = SystemClock().now_ms()
    suspects = [
        row for row in _open_transactions(client, topics) if now_ms - row["last_timestamp_ms"] > older_than_ms
    ]
    if not suspects:
        return []
    by_producer = _ids_by_producer(client, suspects)
    return [row for row in suspects if not _is_known(client, row, by_producer.get(row["producer_id"]))]


def abort(client: KafkaClient, topic: str, partition: int, start_offset: int) -> Row:
    """End a hanging transaction with an abort marker. Raises CliError if the partition has none that starts
    at this offset, or if a coordinator will end it: that one may commit it in its other partitions."""
    found = [row for row in _producers(client, topic, partition) if row["start_offset"] == start_offset]
    if not found:
        raise CliError(
            f"{topic}-{partition} has no open transaction that starts at offset {start_offset}",
            hint="List hanging transactions with `tierlog txn find-hanging`.",
            code=ExitCode.NOT_FOUND,
        )
    [row] = found
    transactional_id = _ids_by_producer(client, found).get(row["producer_id"])
    if _is_known(client, row, transactional_id):
        raise CliError(
            f"the transaction does not hang: its coordinator will end it, with id {transactional_id!r}",
            hint=f"See its state and timeout with `tierlog txn describe {transactional_id}`.",
        )
    marker = write_txn_markers.WritableTxnMarker(
        producer_id=row["producer_id"],
        producer_epoch=row["producer_epoch"],
        transaction_result=False,
        topics=[write_txn_markers.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=max(row["coordinator_epoch"], 0),
    )
    request = write_txn_markers.WriteTxnMarkersRequest(markers=[marker])
    response = client.call(request, client.leader(topic, partition))
    error = response.markers[0].topics[0].partitions[0].error_code
    raise_for(error, None, f"abort of the transaction in {topic}-{partition}")
    return row


def _coordinator(client: KafkaClient, transactional_id: str) -> int:
    """The coordinator of an id; waits while there is none."""
    request = find_coordinator.FindCoordinatorRequest(
        key_type=TRANSACTION_KEY_TYPE, coordinator_keys=[transactional_id]
    )
    client.metadata([])
    deadline = time.monotonic() + client.timeout_s
    while True:
        found = client.call(request).coordinators[0]
        if not is_retriable(found.error_code) or time.monotonic() > deadline:
            raise_for(found.error_code, found.error_message, f"coordinator of {transactional_id}")
            return int(found.node_id)
        time.sleep(RETRY_S)


def _open_transactions(client: KafkaClient, topics: Sequence[str] | None) -> Iterator[Row]:
    metadata = client.metadata(None if topics is None else list(topics))
    client.require({one.leader_id for topic in metadata.topics for one in topic.partitions})
    for topic in metadata.topics:
        raise_for(topic.error_code, None, f"topic {topic.name}")
        for partition in topic.partitions:
            yield from (
                row
                for row in _producers(client, topic.name or "", partition.partition_index)
                if row["start_offset"] != NONE
            )


def _producers(client: KafkaClient, topic: str, partition: int) -> Iterator[Row]:
    wanted = describe_producers.TopicRequest(name=topic, partition_indexes=[partition])
    request = describe_producers.DescribeProducersRequest(topics=[wanted])
    response = client.call(request, client.leader(topic, partition))
    found = response.topics[0].partitions[0]
    raise_for(found.error_code, found.error_message, f"producers of {topic}-{partition}")
    for each in found.active_producers:
        yield {
            "topic": topic,
            "partition": partition,
            "start_offset": each.current_txn_start_offset,
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "coordinator_epoch": each.coordinator_epoch,
            "last_timestamp_ms": each.last_timestamp,
        }


def _ids_by_producer(client: KafkaClient, transactions: Sequence[Row]) -> dict[int, str]:
    """Producer id -> transactional id, of the producers that coordinators know."""
    found = rows(client, producer_ids=sorted({row["producer_id"] for row in transactions}))
    return {row["producer_id"]: row["transactional_id"] for row in found}


def _is_known(client: KafkaClient, row: Row, transactional_id: str | None) -> bool:
    """Whether a coordinator will end the transaction: it is open there, or its markers are being written."""
    if transactional_id is None:
        return False
    found = describe(client, transactional_id)
    is_same = found["producer_id"] == row["producer_id"]
    return is_same and f"{row['topic']}-{row['partition']}" in found["partitions"]
