"""`tierlog topic analyze` measures a real topic, names its busiest partition and the keys that heat it."""

from typing import Any

import pytest
from cli_inline import call, json_output
from confluent_kafka import Producer

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
