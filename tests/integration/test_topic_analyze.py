"""`tierlog topic analyze` measures a real topic, names its busiest partition and the keys that heat it."""

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cli_inline import call, json_output
from confluent_kafka import Producer
from wire_client import Client

from tierlog.cli import topics
from tierlog.cli.client import KafkaClient
from tierlog.cli.errors import CliError
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import HEADER_SIZE, read_header, seal
from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord, encode_batch, with_section
from tierlog.testing import TierlogBroker

RECORDS, HOT_VALUE = 4000, 200


@pytest.fixture(scope="module")
def at(tierlog_session_broker: TierlogBroker) -> tuple[str, ...]:
    """Options of a broker with a topic `heated`: a quarter of its records has one key."""
    at = ("--bootstrap", tierlog_session_broker.bootstrap)
    assert call("topic", "create", "heated", "-p", "4", *at).code == 0
    producer = Producer(
        {"bootstrap.servers": at[1], "compression.type": "lz4", "linger.ms": 50, "batch.num.messages": 50}
    )
    for number in range(RECORDS):
        is_hot = number % 4 == 0
        key = "customer-1" if is_hot else f"visitor-{number}"
        producer.produce("heated", bytes(HOT_VALUE if is_hot else 20), key=key)
        producer.poll(0)
    assert producer.flush(60) == 0
    return at


def analyzed(at: tuple[str, ...], *options: str) -> dict[str, Any]:
    [document] = json_output("topic", "analyze", "heated", *options, *at)
    return dict(document)


def test_whole_range_is_measured_exactly_and_the_hot_key_is_named(at: tuple[str, ...]) -> None:
    found = analyzed(at, "--keys", "--since", "1h")
    [topic] = json_output("topic", "describe", "heated", *at)
    ends = {row["partition"]: row["log_end_offset"] for row in topic["partitions"]}
    rows = {row["partition"]: row for row in found["partition_loads"]}
    assert {partition: row["records"] for partition, row in rows.items()} == ends
    assert found["records"] == RECORDS == found["keys"]["records"]
    assert found["records_per_s"] == pytest.approx(RECORDS / 3600, abs=0.001)
    assert all(row["sampled"] == 1 for row in rows.values())
    assert found["codecs"]["lz4"] > 0.9 and 1 < found["records_per_batch"] <= 50

    hottest = found["keys"]["top"][0]
    assert (hottest["key"], hottest["partition"]) == ("customer-1", found["partition_loads"][0]["partition"])
    assert hottest["bytes"] == RECORDS // 4 * (HOT_VALUE + len("customer-1"))
    assert any("'customer-1'" in sentence for sentence in found["advice"])


def test_a_sample_estimates_what_it_does_not_read(
    at: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = analyzed(at)
    monkeypatch.setattr("tierlog.cli.topic_samples.SLICE_BYTES_MIN", 512)
    monkeypatch.setattr("tierlog.cli.commands.topic_analyze.MIB", 1)
    part = analyzed(at, "--sample-mib", "8")
    assert part["bytes_read"] < whole["bytes_read"] and part["partition_loads"][0]["sampled"] < 1
    assert part["records"] == pytest.approx(whole["records"], rel=0.2)
    assert part["bytes"] == pytest.approx(whole["bytes"], rel=0.2)


def test_range_and_partitions_limit_what_is_measured(at: tuple[str, ...]) -> None:
    one = analyzed(at, "--partition", "2")
    assert [row["partition"] for row in one["partition_loads"]] == [2]
    assert analyzed(at, "--since", "2h", "--until", "1h")["records"] == 0
    ended = call("topic", "analyze", "heated", "--since", "2h", "--until", "1h", *at)
    assert ended.code == 0 and "no records in this time range" in ended.stderr
    ended = call("topic", "analyze", "heated", "--keys", "--top", "3", *at)
    assert "customer-1" in ended.stdout and "records/s" in ended.stdout


def test_topic_without_records_has_no_rates(at: tuple[str, ...]) -> None:
    assert call("topic", "create", "empty", "-p", "2", *at).code == 0
    [found] = json_output("topic", "analyze", "empty", "--keys", *at)
    assert (found["records"], found["bytes_per_s"], found["keys"]["top"], found["advice"]) == (0, 0, [], [])
    ended = call("topic", "analyze", "empty", "--keys", *at)
    assert ended.code == 0 and "no records in this time range" in ended.stderr


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE], ids=str)
def test_batch_that_cannot_be_decompressed_is_refused_and_if_it_is_stored_counts_without_keys(
    at: tuple[str, ...], tierlog_session_broker: TierlogBroker, codec: Codec
) -> None:
    """It is damaged on the disk here, with a CRC that fits: no broker stores such a batch."""
    good, garbage = batch_and_garbage(codec)
    broken = with_section(read_header(good), garbage, codec)
    with closing(Client(tierlog_session_broker.bootstrap)) as client:
        topic = client.create()
        assert client.produce(topic, bytes(broken)).error_code == ErrorCode.CORRUPT_MESSAGE
        for _ in range(3):
            assert client.produce(topic, good).error_code == ErrorCode.NONE
    [log] = tierlog_session_broker.directory.rglob(f"{topic}-0/*.log")
    damage(log, len(good), garbage)
    [found] = json_output("topic", "analyze", topic, "--keys", *at)
    assert (found["records"], found["bytes"]) == (9, 3 * len(good))
    assert (found["keys"]["records"], found["keys"]["undecoded_batches"]) == (6, 1)
    ended = call("topic", "analyze", topic, "--keys", *at)
    assert ended.code == 0 and "1 batch cannot be decoded" in ended.stderr, ended


def test_damaged_batch_at_the_beginning_of_the_range_names_its_runbook(
    at: tuple[str, ...], tierlog_session_broker: TierlogBroker
) -> None:
    now_ms = time.time_ns() // 1_000_000
    good, garbage = batch_and_garbage(Codec.ZSTD)
    with closing(Client(tierlog_session_broker.bootstrap)) as client:
        topic = client.create()
        for _ in range(2):
            assert client.produce(topic, good).error_code == ErrorCode.NONE
    [log] = tierlog_session_broker.directory.rglob(f"{topic}-0/*.log")
    damage(log, 0, garbage)
    with (
        KafkaClient(at[1], timeout_s=3.0) as tool,  # a busy broker may need a second for a response
        pytest.raises(CliError, match="CORRUPT_MESSAGE") as failed,
    ):
        topics.offsets(tool, topic, [0], now_ms - 1000)  # a look-up by timestamp reads the records
    assert "docs/runbooks/damaged-log.md" in failed.value.hint


def batch_and_garbage(codec: Codec) -> tuple[bytes, bytes]:
    """A batch, and as many bytes as it has after its header that no codec decompresses."""
    now_ms = time.time_ns() // 1_000_000
    good = bytes(encode_batch([NewRecord(now_ms, b"key", b"value")] * 3, codec=codec))
    return good, (b"\xff\x00garbage" * len(good))[: len(good) - HEADER_SIZE]


def damage(log: Path, at: int, body: bytes) -> None:
    """Give the batch at a position this body, with a CRC that fits."""
    with log.open("r+b") as file:
        file.seek(at)
        stored = bytearray(file.read(HEADER_SIZE + len(body)))
        stored[HEADER_SIZE:] = body
        seal(stored, 0, len(stored))
        file.seek(at)
        file.write(stored)
