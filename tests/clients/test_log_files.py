"""Log files of both brokers: Kafka's dump tool reads tierlog's, and `tierlog log` reads Kafka's."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_process import json_output, run
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_process import JAVA, KafkaProcess

from tierlog.broker.groups.core import formats
from tierlog.broker.groups.core.consumer import formats as consumer_formats
from tierlog.broker.transactions.core.formats import decode_key, decode_value, encode_value
from tierlog.broker.transactions.core.states import TransactionState
from tierlog.broker.transactions.core.transaction import Transaction
from tierlog.config.topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tierlog.records.batch import iter_batches
from tierlog.records.record import iter_records
from tierlog.testing import TierlogBrokerFactory

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_S = 90.0
SEGMENT_BYTES = "1048576"  # the least that Kafka takes
RECORDS, TRANSACTIONS = 300, 4
PROTOCOLS = ("classic", "consumer")


def produce(bootstrap: str, *, transactions: bool) -> None:
    """In every codec, over several segments; half of the transactions are aborted."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic("orders", 1, 1, config={"segment.bytes": SEGMENT_BYTES})
    admin.create_topics([topic])["orders"].result(TIMEOUT_S)
    for codec in CODECS:
        options = {"bootstrap.servers": bootstrap, "compression.type": codec, "batch.size": 20_000}
        kind = {"transactional.id": codec} if transactions else {"enable.idempotence": True}
        producer = Producer({**options, **kind, "log_level": 0})
        if transactions:
            producer.init_transactions(TIMEOUT_S)
        for number in range(TRANSACTIONS):
            if transactions:
                producer.begin_transaction()
            for record in range(RECORDS):
                value = os.urandom(600) + b"%d" % record * 100
                producer.produce("orders", value, b"%d" % record, headers=[("h", b"x")])
            assert producer.flush(TIMEOUT_S) == 0
            if transactions and number % 2:
                producer.abort_transaction(TIMEOUT_S)
            elif transactions:
                producer.commit_transaction(TIMEOUT_S)


def consume(bootstrap: str) -> None:
    """As members of groups of both protocols that commit, so that `__consumer_offsets` has records. The
    classic group is deleted, which leaves tombstones."""
    options = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "log_level": 0}
    for protocol in PROTOCOLS:
        consumer = Consumer({**options, "group.id": f"g-{protocol}", "group.protocol": protocol})
        consumer.subscribe(["orders"])
        read = 0
        while read < RECORDS:
            read += len(consumer.consume(RECORDS, 1.0))
        consumer.commit(asynchronous=False)
        consumer.close()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_consumer_groups(["g-classic"])["g-classic"].result(TIMEOUT_S)


@pytest.fixture(scope="module")
def kafka_directory(java_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory of Kafka after a clean stop."""
    directory = tmp_path_factory.mktemp("kafka-files")
    process = KafkaProcess(java_classpath, directory)
    try:
        produce(process.bootstrap, transactions=True)
        consume(process.bootstrap)
        refused = run("log", "rebuild-index", directory / "data")
        assert refused.returncode == 1 and "a broker runs on" in refused.stderr
    finally:
        process.stop()
    return directory / "data"


def test_kafkas_log_directory_is_intact(kafka_directory: Path) -> None:
    [found] = json_output("log", "verify", kafka_directory, "--records")
    assert found["problems"] == []
    assert found["records"] > len(CODECS) * TRANSACTIONS * RECORDS  # markers, offsets and metadata too


def test_kafkas_records_and_indexes_are_dumped(kafka_directory: Path) -> None:
    documents = json_output("log", "dump", kafka_directory / "orders-0", "--keys")
    records = [each for each in documents if each["kind"] == "record"]
    markers = [each["marker"] for each in records if "marker" in each]
    assert markers == ["commit", "abort"] * (TRANSACTIONS // 2) * len(CODECS)
    assert [each["key"] for each in records if "marker" not in each][:RECORDS] == list(
        map(str, range(RECORDS))
    )
    assert [each["offset"] for each in records] == list(range(len(records)))
    assert {each["codec"] for each in documents if each["kind"] == "batch"} == set(CODECS)
    aborted = [each for each in documents if each["kind"] == "aborted-transaction"]
    assert len(aborted) == len(CODECS) * TRANSACTIONS // 2
    assert not [each for each in json_output("log", "dump", kafka_directory) if each["kind"] == "damage"]


def test_rebuilt_indexes_equal_kafkas(kafka_directory: Path, tmp_path: Path) -> None:
    assert json_output("log", "rebuild-index", kafka_directory)[0]["changed"] == []
    copied = shutil.copytree(kafka_directory, tmp_path / "data") / "orders-0"
    indexes = {path: path.read_bytes() for path in copied.iterdir() if "index" in path.suffix}
    for path in indexes:
        path.unlink()
    json_output("log", "rebuild-index", copied)
    assert {path: path.read_bytes() for path in indexes} == indexes


def test_damage_to_kafkas_files_is_found(kafka_directory: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(kafka_directory / "orders-0", tmp_path / "orders-0")
    path = sorted(copied.glob("*.log"))[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    [found] = json_output("log", "verify", copied, code=1)
    assert {Path(problem["path"]).name for problem in found["problems"]} == {path.name}


def stored_transactions(directory: Path) -> list[tuple[str, bytes, Transaction]]:
    """The records of `__transaction_state`, in the order of the log of each partition."""
    found = []
    for path in sorted(directory.glob(f"{TRANSACTIONS_TOPIC}-*/*.log")):
        data = path.read_bytes()
        for at, _ in iter_batches(data):
            for record in iter_records(data, at, max_bytes=1 << 20):
                name = decode_key(record.key or b"")
                assert name is not None and record.value is not None
                found.append((name, record.value, decode_value(name, record.value)))
    return found


OUTCOMES = [
    ["Empty"],
    *[["Ongoing", f"Prepare{each}", f"Complete{each}"] for each in ("Commit", "Abort")] * 2,
]
"""States of a transactional id of `produce`, in their order."""


def test_kafkas_transaction_state_is_read_and_would_be_written_the_same(kafka_directory: Path) -> None:
    found = stored_transactions(kafka_directory)
    for codec in CODECS:
        states = [each.state.title for name, _, each in found if name == codec]
        assert states == [state for states in OUTCOMES for state in states]
    assert all(encode_value(each) == value for _, value, each in found)


def test_kafkas_dump_tool_decodes_our_transaction_state(
    java_classpath: str, tierlog_broker_factory: TierlogBrokerFactory
) -> None:
    broker = tierlog_broker_factory({})
    produce(broker.bootstrap, transactions=True)
    broker.stop()
    files = [path for path in broker.data_dir.glob(f"{TRANSACTIONS_TOPIC}-*/*.log") if path.stat().st_size]
    command = [*JAVA, "-cp", java_classpath, "org.apache.kafka.tools.DumpLogSegments"]
    ended = subprocess.run(
        [*command, "--transaction-log-decoder", "--files", ",".join(map(str, files))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    dumped = re.findall(r'key: \{.*?"transactionalId":"(\w+)"\}\} payload: (\{.*\})', ended.stdout)
    ours = stored_transactions(broker.data_dir)
    assert len(dumped) == len(ours) == len(CODECS) * sum(map(len, OUTCOMES))
    theirs: dict[str, list[dict[str, Any]]] = {}
    for name, payload in dumped:
        theirs.setdefault(name, []).append(json.loads(payload)["data"])
    for codec in CODECS:
        states = [TransactionState(each["transactionStatus"]).title for each in theirs[codec]]
        assert states == [state for states in OUTCOMES for state in states]
        written = [each for name, _, each in ours if name == codec]
        for mine, each in zip(written, theirs[codec], strict=True):
            assert (each["producerId"], each["producerEpoch"]) == (mine.producer_id, mine.producer_epoch)
            assert each["previousProducerId"] == mine.previous_producer_id
            assert each["transactionTimeoutMs"] == mine.timeout_ms
            assert each["transactionLastUpdateTimestampMs"] == mine.updated_ms
            assert each["transactionStartTimestampMs"] == mine.started_ms
            partitions = [{"topic": "orders", "partitionIds": [0]}] if mine.partitions else []
            assert (each["transactionPartitions"] or []) == partitions


def stored_in_groups(directory: Path) -> list[tuple[int, bytes, bytes | None]]:
    """The kind, the key and the value of the records of `__consumer_offsets`, as for `stored_transactions`.
    Markers of transactions are left out."""
    found = []
    for path in sorted(directory.glob(f"{OFFSETS_TOPIC}-*/*.log")):
        data = path.read_bytes()
        for at, batch in iter_batches(data):
            if not batch.is_control:
                for record in iter_records(data, at, max_bytes=1 << 20):
                    key = bytes(record.key or b"")
                    found.append((int.from_bytes(key[:2], "big"), key, record.value))
    return found


def written_again(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None]:
    """A record of `__consumer_offsets`, decoded and encoded."""
    match formats.decode_key(key):
        case formats.OffsetKey() as of_offset:
            again = None if value is None else formats.encode_offset(formats.decode_offset(value))
            return formats.encode_key(of_offset), again
        case formats.GroupKey() as of_group:
            again = None if value is None else formats.encode_group(formats.decode_group(value))
            return formats.encode_key(of_group), again
    kind = consumer_formats.decode_key(key)
    assert kind is not None
    if value is not None:
        value = consumer_formats.encode_value(consumer_formats.decode_value(kind, value))
    return consumer_formats.encode_key(kind), value


CLASSIC_KINDS, CONSUMER_KINDS = {1, 2}, {3, 5, 6, 7, 8}
"""Key types: a committed offset and a classic group; a consumer group, with its members and assignments."""


def test_kafkas_groups_and_offsets_are_read_and_would_be_written_the_same(kafka_directory: Path) -> None:
    found = stored_in_groups(kafka_directory)
    assert {kind for kind, _, _ in found} == CLASSIC_KINDS | CONSUMER_KINDS
    assert {kind for kind, _, value in found if value is None} >= CLASSIC_KINDS
    for _, key, value in found:
        assert written_again(key, value) == (key, value)


def test_kafkas_dump_tool_decodes_our_groups_and_offsets(
    java_classpath: str, tierlog_broker_factory: TierlogBrokerFactory
) -> None:
    broker = tierlog_broker_factory({})
    produce(broker.bootstrap, transactions=False)
    consume(broker.bootstrap)
    broker.stop()
    files = [path for path in broker.data_dir.glob(f"{OFFSETS_TOPIC}-*/*.log") if path.stat().st_size]
    command = [*JAVA, "-cp", java_classpath, "org.apache.kafka.tools.DumpLogSegments"]
    ended = subprocess.run(
        [*command, "--offsets-decoder", "--files", ",".join(map(str, files))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    dumped = [
        (json.loads(key), None if payload == "<DELETE>" else json.loads(payload)["data"])
        for key, payload in re.findall(r"key: (\{.*\}) payload: (.*)", ended.stdout)
    ]
    ours = stored_in_groups(broker.data_dir)
    assert [int(key["type"]) for key, _ in dumped] == [kind for kind, _, _ in ours]
    for (key, payload), (kind, raw_key, value) in zip(dumped, ours, strict=True):
        assert (payload is None) == (value is None)
        match formats.decode_key(raw_key):
            case formats.OffsetKey(group, topic, partition):
                assert key["data"] == {"group": group, "topic": topic, "partition": partition}
            case _ if kind in CONSUMER_KINDS:
                assert key["data"]["groupId"] == "g-consumer"
    last = {key["type"]: payload for key, payload in dumped if payload is not None}
    assert (last["1"]["offset"], last["2"]["protocolType"]) == (RECORDS, "consumer")
    members = [payload["members"] for key, payload in dumped if key["type"] == "2" and payload]
    assert "rdkafka" in {member["clientId"] for some in members for member in some}
    assert last["5"]["subscribedTopicNames"] == ["orders"]
    [assigned] = last["8"]["assignedPartitions"]
    assert (assigned["topicId"], assigned["partitions"]) == (last["1"]["topicId"], [0])


def test_kafkas_dump_tool_reads_our_files(
    java_classpath: str, tierlog_broker_factory: TierlogBrokerFactory
) -> None:
    broker = tierlog_broker_factory({})
    produce(broker.bootstrap, transactions=False)
    broker.stop()
    directory = broker.data_dir / "orders-0"
    kinds = (".log", ".index", ".timeindex", ".snapshot")
    files = sorted(str(path) for path in directory.iterdir() if path.suffix in kinds)
    assert len([name for name in files if name.endswith(".log")]) > 3

    def dumped(*options: str) -> str:
        command = [*JAVA, "-cp", java_classpath, "org.apache.kafka.tools.DumpLogSegments"]
        ended = subprocess.run(
            [*command, "--files", ",".join(files), *options],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert not re.search("mismatch|out of order|corrupt|invalid|error", ended.stdout + ended.stderr, re.I)
        return ended.stdout

    said = dumped("--deep-iteration")
    assert said.count("isvalid: true") == said.count("baseOffset: ") > 100
    assert "isvalid: false" not in said
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+)", said, re.M)]
    assert offsets == list(range(len(CODECS) * TRANSACTIONS * RECORDS))
    assert set(re.findall(r"compresscodec: (\w+)", said)) == set(CODECS)
    assert len(set(re.findall(r"^producerId: (\d+)", said, re.M))) == len(CODECS)
    documents = json_output("log", "dump", directory, "--keys")
    ours = [
        (each["base_offset"], each["last_offset"], each["crc"])
        for each in documents
        if each["kind"] == "batch"
    ]
    theirs = re.findall(r"baseOffset: (\d+) lastOffset: (\d+) .* crc: (\d+)", said)
    assert ours == [tuple(map(int, found)) for found in theirs]
    assert "passed sanity check" in dumped("--index-sanity-check")
