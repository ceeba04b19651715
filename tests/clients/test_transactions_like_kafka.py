"""Sends the same requests about transactions to Apache Kafka and to tierlog and compares the responses.

Each case is a conversation of a producer with its transactional id, on a topic of two partitions. Left out of
the comparison are addresses, times and the wording of messages; producer ids are compared by the order of
their appearance. A request that gets CONCURRENT_TRANSACTIONS is repeated: tierlog lets it wait instead.

Some requests are left out because Kafka answers them oddly: a lookup by time after DeleteRecords finds
deleted records, a filter by duration finds ids without a transaction, and a marker of an old epoch gets
UNKNOWN_SERVER_ERROR.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka_comparison import plain
from kafka_process import KafkaProcess
from wire_client import LOADING, Client, message

from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

TIME_MS = 1_700_000_000_000
REPEATED = {ErrorCode.CONCURRENT_TRANSACTIONS, *LOADING}
OLD, NEW = 0, 2
"""Transaction versions of clients."""

VERSIONS = {
    OLD: {"AddPartitionsToTxn": 3, "AddOffsetsToTxn": 3, "EndTxn": 4, "TxnOffsetCommit": 4, "Produce": 11},
    NEW: {"AddPartitionsToTxn": 3, "AddOffsetsToTxn": 4, "EndTxn": 5, "TxnOffsetCommit": 5, "Produce": 12},
}
LEFT_OUT = {"last_timestamp", "transaction_start_time_ms", "coordinator_epoch", "timestamp"}
UNORDERED = {"topics", "partitions", "results_by_partition", "active_producers", "transaction_states"}
FOREIGN = 1 << 40
"""Above it are producer ids that no broker has given out."""


class Talk:
    """Keeps the responses of one broker, and the producer id and epoch that the last one named."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.topic = client.create(partitions=2, retention_ms="-1")
        client.wait_for_leaders(self.topic, partitions=2)
        self.said: list[Any] = []
        self._ids: dict[int, str] = {-1: "none"}
        self.producer = (-1, -1)

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        request = message(api, fields, t=self.topic)
        while True:
            response = self._client.send(api, version, request)
            if not REPEATED & set(errors_in(response)):
                break
        self.said.append((api, version, self._comparable(plain(response, self.topic))))
        return response

    def _comparable(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            kept = {field: each for field, each in value.items() if field not in LEFT_OUT}
            return {field: self._comparable(each, field) for field, each in kept.items()}
        if isinstance(value, list):
            found = [self._comparable(each, name) for each in value]
            return sorted(found, key=repr) if name in UNORDERED else found
        if name == "producer_id" and value < FOREIGN:
            return self._ids.setdefault(value, f"producer {len(self._ids)}")
        return value

    # ---- requests

    def init(self, version: int = 4, name: str = "$t", **more: Any) -> None:
        fields = {"transactional_id": name, "transaction_timeout_ms": 60_000, **more}
        found = self.ask("InitProducerId", version, **fields)
        self.producer = found.producer_id, found.producer_epoch

    def of(self, producer: tuple[int, int] | None) -> dict[str, Any]:
        producer_id, epoch = producer or self.producer
        return {"producer_id": producer_id, "producer_epoch": epoch}

    def add(
        self, *partitions: int, of: tuple[int, int] | None = None, name: str = "$t", topic: str = "$t"
    ) -> None:
        named = {f"v3_and_below_{field}": value for field, value in self.of(of).items()}
        topics = [{"name": topic, "partitions": list(partitions)}]
        more = {"v3_and_below_transactional_id": name, "v3_and_below_topics": topics}
        self.ask("AddPartitionsToTxn", 3, **named, **more)

    def verify(self, *partitions: int, of: tuple[int, int] | None = None, only: bool = True) -> None:
        topics = [{"name": "$t", "partitions": list(partitions)}]
        transaction = {"transactional_id": "$t", "verify_only": only, "topics": topics, **self.of(of)}
        self.ask("AddPartitionsToTxn", 4 if only else 5, transactions=[transaction])

    def produce(
        self,
        client: int,
        sequence: int,
        *,
        of: tuple[int, int] | None = None,
        partition: int = 0,
        name: str | None = "$t",
        transactional: bool = True,
    ) -> None:
        producer_id, epoch = of or self.producer
        batch = encode_batch(
            [NewRecord(TIME_MS, b"k", b"v")],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        data = [{"index": partition, "records": bytes(batch)}]
        self.ask(
            "Produce",
            VERSIONS[client]["Produce"],
            transactional_id=name,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[{"name": "$t", "partition_data": data}],
        )

    def end(self, client: int, *, commit: bool, of: tuple[int, int] | None = None, name: str = "$t") -> None:
        fields = {"transactional_id": name, "committed": commit, **self.of(of)}
        found = self.ask("EndTxn", VERSIONS[client]["EndTxn"], **fields)
        if client == NEW and not found.error_code:
            self.producer = found.producer_id, found.producer_epoch
        request = message("DescribeTransactions", {"transactional_ids": [self.topic]})
        while True:  # until the markers are written
            [state] = self._client.send("DescribeTransactions", 0, request).transaction_states
            if not state.transaction_state.startswith("Prepare"):
                return

    def add_offsets(self, client: int, group: str = "$t-g", of: tuple[int, int] | None = None) -> None:
        version = VERSIONS[client]["AddOffsetsToTxn"]
        self.ask("AddOffsetsToTxn", version, transactional_id="$t", group_id=group, **self.of(of))

    def commit_offset(
        self,
        client: int,
        *,
        of: tuple[int, int] | None = None,
        group: str = "$t-g",
        partition: int = 0,
        offset: int = 5,
        **more: Any,
    ) -> None:
        wanted = {"partition_index": partition, "committed_offset": offset, "committed_metadata": "x"}
        self.ask(
            "TxnOffsetCommit",
            VERSIONS[client]["TxnOffsetCommit"],
            transactional_id="$t",
            group_id=group,
            topics=[{"name": "$t", "partitions": [{**wanted, **more.pop("wanted", {})}]}],
            **self.of(of),
            **more,
        )

    # ---- what is seen

    def look(self, partition: int = 0, times: tuple[int, ...] = (-1, -3, TIME_MS)) -> None:
        """Ends of both isolation levels, what a reader of committed records gets, and the producers."""
        for level in (0, 1):
            for at in times:
                wanted = [{"partition_index": partition, "timestamp": at}]
                topics = [{"name": "$t", "partitions": wanted}]
                self.ask("ListOffsets", 7, replica_id=-1, isolation_level=level, topics=topics)
        for offset in (2, 3):
            wanted = [{"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]
            self.ask("Fetch", 12, isolation_level=1, topics=[{"topic": "$t", "partitions": wanted}])
            records = self.said[-1][2]["responses"][0]["partitions"][0]
            records["records"] = bool(records["records"])  # the ids of producers differ
        self.ask("DescribeProducers", 0, topics=[{"name": "$t", "partition_indexes": [partition, 7]}])
        self.ask("DescribeTransactions", 0, transactional_ids=["$t", "$t-no"])

    def committed(self) -> None:
        for stable in (True, False):
            wanted = [{"group_id": "$t-g", "topics": [{"name": "$t", "partition_indexes": [0]}]}]
            self.ask("OffsetFetch", 8, groups=wanted, require_stable=stable)


def errors_in(value: Any) -> Iterator[int]:
    if isinstance(value, list):
        for each in value:
            yield from errors_in(each)
    elif hasattr(value, "FIELDS"):
        for field in value.FIELDS:
            if field.name in ("error_code", "partition_error_code"):
                yield getattr(value, field.name)
            else:
                yield from errors_in(getattr(value, field.name))


def initializations(talk: Talk) -> None:
    for version in range(6):
        talk.init(version)
    producer = talk.producer
    for name, timeout_ms in (("$t", 0), ("$t", -1), ("$t", 900_001), ("", 1_000), (None, -1)):
        talk.init(4, name, transaction_timeout_ms=timeout_ms)  # type: ignore[arg-type]
    for of in (producer, producer, (producer[0], producer[1] + 5), (producer[0], 0), (FOREIGN, 0)):
        talk.init(4, **talk.of(of))
    talk.init(4, producer_id=producer[0])
    talk.init(4, producer_epoch=3)


def additions(talk: Talk) -> None:
    talk.init()
    producer_id, epoch = talk.producer
    talk.add(0, 1)
    talk.add()
    for partitions in ((0,), (0, 7), (7,)):
        talk.add(*partitions)
        talk.verify(*partitions)
        talk.verify(*partitions, only=False)
    talk.add(0, topic="$t-no")
    for of in ((producer_id, epoch + 1), (producer_id, epoch - 1), (FOREIGN, epoch)):
        talk.add(0, of=of)
        talk.verify(0, of=of)
        talk.verify(0, of=of, only=False)
        talk.add_offsets(NEW, of=of)
    talk.add(0, name="$t-no")
    talk.add(0, name="")
    for group in ("$t-g", ""):
        for client in (OLD, NEW):
            talk.add_offsets(client, group)
    talk.end(OLD, commit=False)


def life(client: int) -> Callable[[Talk], None]:
    """Transactions that are committed and aborted, with zombies in between."""

    def converse(talk: Talk) -> None:
        talk.init()
        producer_id, epoch = talk.producer
        talk.produce(OLD, 0)  # not added
        talk.produce(client, 0, name=None)
        talk.produce(client, 0, name="$t-no")
        for commit in (True, False):
            sequence = 0 if client == NEW or commit else 2
            if client == OLD:
                talk.add(0)
            talk.produce(client, sequence)
            talk.produce(client, sequence)  # a retry
            talk.produce(client, sequence + 1)
            talk.produce(client, sequence + 3)
            talk.produce(client, sequence + 2, transactional=False)
            talk.look()
            for of in ((producer_id, talk.producer[1] + 1), (producer_id, epoch - 1), (FOREIGN, 0)):
                talk.end(client, commit=True, of=of)
                talk.produce(client, 0, of=of)
            before = talk.producer
            talk.end(client, commit=commit)
            talk.end(client, commit=commit, of=before)
            talk.end(client, commit=not commit, of=before)
            talk.look()
        talk.end(client, commit=True)
        talk.end(client, commit=False)
        talk.end(client, commit=True, name="$t-no")
        talk.end(client, commit=True, name="")

    return converse


def fencing(client: int) -> Callable[[Talk], None]:
    def converse(talk: Talk) -> None:
        talk.init()
        old = talk.producer
        if client == OLD:
            talk.add(0)
        talk.produce(client, 0)
        talk.init()
        talk.look()
        talk.add(0, of=old)
        talk.add_offsets(client, of=old)
        talk.commit_offset(client, of=old)
        talk.produce(client, 1, of=old)
        talk.end(client, commit=True, of=old)
        talk.end(client, commit=False, of=old)

    return converse


def offsets(client: int) -> Callable[[Talk], None]:
    def converse(talk: Talk) -> None:
        talk.init()
        producer_id, epoch = talk.producer
        talk.commit_offset(OLD)  # not added
        for commit in (False, True):
            if client == OLD:
                talk.add_offsets(client)
            talk.commit_offset(client)
            talk.committed()
            for of in ((producer_id, epoch - 1), (producer_id, talk.producer[1] + 1), (FOREIGN, 0)):
                talk.commit_offset(client, of=of)
            for more in (
                {"group": ""},
                {"partition": 7},
                {"offset": -5},
                {"wanted": {"committed_metadata": "x" * 5_000}},
                {"generation_id": 3},
                {"member_id": "unknown", "generation_id": 3},
                {"member_id": "unknown"},
                {"group_instance_id": "i", "member_id": "unknown", "generation_id": 1},
            ):
                talk.commit_offset(client, **more)
            talk.end(client, commit=commit)
            talk.committed()

    return converse


def deletions(talk: Talk) -> None:
    """DeleteRecords inside a transaction."""
    talk.init()
    talk.add(0)
    for sequence in range(3):
        talk.produce(OLD, sequence)
    for offset in (1, -1, 9):
        deleted = {"name": "$t", "partitions": [{"partition_index": 0, "offset": offset}]}
        talk.ask("DeleteRecords", 2, topics=[deleted], timeout_ms=5_000)
        talk.look(times=(-1,))
    talk.produce(OLD, 3)
    talk.look(times=(-1,))
    talk.end(OLD, commit=False)
    talk.look(times=(-1,))


def lists(talk: Talk) -> None:
    talk.init(name="$t-1")
    talk.init(name="$t")
    talk.add(0)
    for states in (["Ongoing"], ["ongoing"], ["Empty", "Ongoing"], ["no"], ["Dead"]):
        talk.ask("ListTransactions", 2, state_filters=states, transactional_id_pattern="$t.*")
    for pattern in ("$t", "$t-[0-9]", "$t-", "("):
        talk.ask("ListTransactions", 2, transactional_id_pattern=pattern)
    for duration in (0, 1 << 40):
        talk.ask("ListTransactions", 2, duration_filter=duration, transactional_id_pattern="$t")
    talk.ask("ListTransactions", 1, producer_id_filters=[talk.producer[0]])
    talk.ask("ListTransactions", 0, producer_id_filters=[talk.producer[0]])
    talk.ask("DescribeTransactions", 0, transactional_ids=["$t", "$t-no", ""])
    talk.ask("DescribeProducers", 0, topics=[{"name": "$t-no", "partition_indexes": [0]}])
    talk.end(OLD, commit=False)


def markers(talk: Talk) -> None:
    """An operator writes markers."""
    talk.init()
    talk.add(0)
    talk.produce(OLD, 0)
    producer_id, epoch = talk.producer
    for of, coordinator, partitions in (
        ((producer_id, epoch), -1, [0, 7]),
        ((producer_id, epoch), 0, [1]),
        ((FOREIGN, 0), 0, [1]),
    ):
        topics = [{"name": name, "partition_indexes": partitions} for name in ("$t", "$t-no")]
        more = {"transaction_result": False, "topics": topics, "coordinator_epoch": coordinator}
        talk.ask("WriteTxnMarkers", 1, markers=[{**talk.of(of), **more}])
    talk.look(1, (-1, TIME_MS))  # not the newest: both markers may be of the same millisecond
    talk.end(OLD, commit=False)


CASES: dict[str, Callable[[Talk], None]] = {
    "initializations": initializations,
    "additions": additions,
    "life, older client": life(OLD),
    "life, client of version 2": life(NEW),
    "fencing, older client": fencing(OLD),
    "fencing, client of version 2": fencing(NEW),
    "offsets, older client": offsets(OLD),
    "offsets, client of version 2": offsets(NEW),
    "deletions": deletions,
    "lists": lists,
    "markers": markers,
}


@pytest.mark.parametrize("case", CASES)
def test_responses_about_transactions_equal_kafkas(
    kafka: KafkaProcess, tierlog_session_broker: TierlogBroker, case: str
) -> None:
    by_kafka, by_tierlog = (said(each.bootstrap, case) for each in (kafka, tierlog_session_broker))
    different = [pair for pair in zip(by_kafka, by_tierlog, strict=True) if pair[0] != pair[1]]
    assert different == []


def said(bootstrap: str, case: str) -> list[Any]:
    client = Client(bootstrap)
    for kind, key in ((0, "any"), (1, "any")):
        found = message("FindCoordinator", {"key": key, "key_type": kind})
        while client.send("FindCoordinator", 3, found).error_code in LOADING:
            pass
    talk = Talk(client)
    CASES[case](talk)
    client.close()
    return talk.said
