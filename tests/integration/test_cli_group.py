"""`tierlog group` against a running broker, with groups of confluent-kafka and aiokafka."""

import asyncio
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from cli_inline import Ended, call, json_output
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from wire_client import Client

from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import update_features
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = pytest.mark.slow

Ask = Callable[..., Any]
TIMEOUT_S = 90.0
OLD_MS = 1_700_000_000_000
"""Timestamp of the first record of each partition; the others follow a minute apart."""

RECORDS = 10
SAFE_DOWNGRADE = 2
MINUTE_MS = 60_000


@pytest.fixture
def broker(tierlog_broker_factory: TierlogBrokerFactory) -> TierlogBroker:
    """The topic `orders` has two partitions of ten records."""
    running = tierlog_broker_factory({"group.initial.rebalance.delay.ms": 0})
    create(running, "orders", 2)
    producer = Producer({"bootstrap.servers": running.bootstrap})
    for number in range(RECORDS):
        for partition in (0, 1):
            producer.produce("orders", b"x", partition=partition, timestamp=OLD_MS + number * MINUTE_MS)
    assert producer.flush(TIMEOUT_S) == 0
    return running


def create(broker: TierlogBroker, topic: str, partitions: int) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    kept = NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})  # the records are old
    client.create_topics([kept])[topic].result(TIMEOUT_S)


@pytest.fixture
def ask(broker: TierlogBroker) -> Ask:
    def ask(*words: str | Path) -> Any:
        ended = run(broker, *words, "--json")
        assert ended.code == 0, ended
        return json.loads(ended.stdout)

    return ask


def run(broker: TierlogBroker, *words: str | Path) -> Ended:
    return call("group", *map(str, words), "--bootstrap", broker.bootstrap)


def fails(broker: TierlogBroker, code: int, *words: str | Path) -> str:
    """The message of a command that ends with this code."""
    ended = run(broker, *words)
    assert ended.code == code, ended
    return ended.stderr


def commit(broker: TierlogBroker, group: str, *offsets: tuple[int, int], topic: str = "orders") -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    wanted = [TopicPartition(topic, partition, offset) for partition, offset in offsets]
    consumer.commit(offsets=wanted, asynchronous=False)
    consumer.close()


def committed(ask: Ask, group: str) -> dict[int, int | None]:
    return {row["partition"]: row["committed_offset"] for row in ask("describe", group)["partitions"]}


def subscribed(broker: TierlogBroker, group: str) -> Consumer:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "client.id": "reader"}
    consumer = Consumer({"auto.offset.reset": "earliest", "enable.auto.commit": False, **settings})
    consumer.subscribe(["orders"])
    return consumer


def member(broker: TierlogBroker, group: str) -> Consumer:
    """A consumer that owns both partitions."""
    consumer = subscribed(broker, group)
    deadline = time.monotonic() + TIMEOUT_S
    while len(consumer.assignment()) < 2:
        assert time.monotonic() < deadline
        consumer.poll(0.05)
    return consumer


def test_lag_is_shown_in_records_and_in_time(broker: TierlogBroker, ask: Ask) -> None:
    before_ms = time.time() * 1000
    commit(broker, "billing", (0, 4), (1, RECORDS))
    found = ask("describe", "billing")
    assert (found["type"], found["state"], found["members"]) == ("classic", "Empty", [])
    behind, done = found["partitions"]
    assert (behind["committed_offset"], behind["log_end_offset"], behind["lag"]) == (4, RECORDS, 6)
    age_ms = before_ms - (OLD_MS + 4 * MINUTE_MS)
    assert age_ms <= behind["lag_ms"] <= age_ms + (time.time() * 1000 - before_ms)
    assert (done["lag"], done["lag_ms"]) == (0, 0)


def test_first_unread_record_is_found_in_each_of_many_partitions(broker: TierlogBroker, ask: Ask) -> None:
    """Their batches are larger than the limit of a partition, so one request answers for few of them."""
    create(broker, "large", 5)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50})
    for number in range(20):
        for partition in range(5):
            producer.produce("large", b"x" * 5_000, partition=partition, timestamp=OLD_MS + number)
    assert producer.flush(TIMEOUT_S) == 0
    commit(broker, "slow", *((partition, partition) for partition in range(5)), topic="large")
    rows = ask("describe", "slow")["partitions"]
    ages = [row["lag_ms"] for row in rows]
    assert [row["lag"] for row in rows] == [20, 19, 18, 17, 16]
    assert [ages[0] - age for age in ages] == [0, 1, 2, 3, 4]


def test_open_transaction_holds_back_the_stable_end(broker: TierlogBroker, ask: Ask) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("orders", b"x", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    commit(broker, "billing", (0, RECORDS))
    [row] = ask("describe", "billing")["partitions"]
    assert (row["lag"], row["log_end_offset"], row["last_stable_offset"]) == (1, RECORDS + 1, RECORDS)
    table = run(broker, "describe", "billing").stdout
    assert "last stable" in table and "classic group, Empty, 0 members, lag 1 record" in table
    producer.abort_transaction(TIMEOUT_S)


def test_members_are_shown_with_their_partitions(broker: TierlogBroker, ask: Ask) -> None:
    consumer = member(broker, "billing")
    found = ask("describe", "billing")
    assert (found["state"], found["assignor"]) == ("Stable", "range")
    [row] = found["members"]
    assert (row["client_id"], row["host"]) == ("reader", "127.0.0.1")
    assert row["partitions"] == ["orders-0", "orders-1"]
    assert [(one["client_id"], one["committed_offset"], one["lag"]) for one in found["partitions"]] == [
        ("reader", None, None)
    ] * 2
    assert ask("describe", "billing", "--members")["members"] == found["members"]
    assert ask("describe", "billing", "--state")["members"] == 1
    assert [row["state"] for row in ask("list", "--state", "stable", "--type", "Classic")] == ["Stable"]
    assert ask("list", "--state", "Empty") == ask("list", "--type", "consumer") == []
    assert "Use one of classic, consumer" in fails(broker, 2, "list", "--type", "clasic")
    assert "Use one of Stable, Empty" in fails(broker, 2, "list", "--state", "Running")
    consumer.close()


async def test_group_of_aiokafka_is_described(broker: TierlogBroker) -> None:
    consumer = aiokafka.AIOKafkaConsumer(
        "orders", bootstrap_servers=broker.bootstrap, group_id="async", auto_offset_reset="earliest"
    )
    async with consumer:
        count = 0
        while count < 2 * RECORDS:
            batches = await consumer.getmany(timeout_ms=1000)
            count += sum(map(len, batches.values()))
        await consumer.commit()
        words = ("group", "describe", "async", "--bootstrap", broker.bootstrap)
        [found] = await asyncio.to_thread(json_output, *words)  # its heartbeats continue
    assert [row["lag"] for row in found["partitions"]] == [0, 0]
    assert found["members"][0]["partitions"] == ["orders-0", "orders-1"]


def test_group_with_members_is_not_changed(broker: TierlogBroker, ask: Ask, tmp_path: Path) -> None:
    consumer = member(broker, "billing")
    consumer.commit(offsets=[TopicPartition("orders", 0, 3)], asynchronous=False)
    file = tmp_path / "offsets.json"
    assert run(broker, "export", "billing", "--file", file).code == 0
    for words in (
        ("reset", "billing", "--all-topics", "--to-earliest", "--yes"),
        ("seek", "billing", "orders", "0", "1"),
        ("import", file, "--yes"),
    ):
        message = fails(broker, 1, *words)
        assert "1 member (reader)" in message and "Stop its consumers first" in message
    assert "has members" in fails(broker, 1, "delete", "billing", "--yes")
    assert "subscribe to topic orders" in fails(
        broker, 1, "offset-delete", "billing", "--topic", "orders", "--yes"
    )
    plan = ask("reset", "billing", "--all-topics", "--to-earliest", "--dry-run")
    assert [(row["new_offset"], row["set"]) for row in plan] == [(0, False)]
    assert committed(ask, "billing")[0] == 3
    consumer.close()


RESETS = {
    ("--to-earliest",): {0: 0, 1: 0},
    ("--to-latest",): {0: 10, 1: 10},
    ("--to-offset", "7"): {0: 7, 1: 7},
    ("--to-offset", "99"): {0: 10, 1: 10},
    ("--shift-by", "-1"): {0: 3, 1: 5},
    ("--shift-by", "5"): {0: 9, 1: 10},
    ("--to-current",): {0: 4, 1: 6},
    ("--to-datetime", str(OLD_MS + 2 * MINUTE_MS)): {0: 2, 1: 2},
    ("--to-timestamp", "2999-01-01"): {0: 10, 1: 10},
    ("--by-duration", "P20000D"): {0: 0, 1: 0},
    ("--by-duration", "1m"): {0: 10, 1: 10},
}


def test_reset_sets_what_its_dry_run_shows(broker: TierlogBroker, ask: Ask) -> None:
    for words, expected in RESETS.items():
        commit(broker, "billing", (0, 4), (1, 6))
        options = ("reset", "billing", "--topic", "orders", *words)
        plan = ask(*options, "--dry-run")
        assert {row["partition"]: row["new_offset"] for row in plan} == expected, words
        assert committed(ask, "billing") == {0: 4, 1: 6}
        done = ask(*options, "--execute")
        assert [{**row, "set": True} for row in plan] == done
        assert committed(ask, "billing") == expected, words


def test_reset_of_one_partition_leaves_the_others(broker: TierlogBroker, ask: Ask) -> None:
    commit(broker, "billing", (0, 4), (1, 6))
    ask("reset", "billing", "--topic", "orders:1", "--to-earliest", "--yes")
    assert committed(ask, "billing") == {0: 4, 1: 0}
    question = fails(broker, 1, "reset", "billing", "--topic", "orders:1", "--to-latest")
    assert "Set 1 offset of 1 group?" in question and "nothing was changed" in question
    assert committed(ask, "billing") == {0: 4, 1: 0}


def test_consumers_continue_where_seek_has_set_them(broker: TierlogBroker, ask: Ask) -> None:
    commit(broker, "billing", (0, RECORDS), (1, RECORDS))
    assert ask("seek", "billing", "orders", "1", "8")["committed_offset"] == RECORDS
    assert "is out of range" in fails(broker, 4, "seek", "billing", "orders", "1", "11")
    assert committed(ask, "billing") == {0: 10, 1: 8}
    consumer = subscribed(broker, "billing")
    message = consumer.poll(TIMEOUT_S)
    assert message is not None and (message.partition(), message.offset()) == (1, 8)
    consumer.close()


@pytest.mark.parametrize("format", ["json", "csv"])
def test_exported_offsets_are_imported_into_another_group(
    broker: TierlogBroker, ask: Ask, tmp_path: Path, format: str
) -> None:
    commit(broker, "billing", (0, 4), (1, 6))
    commit(broker, "shipping", (1, 9))
    file = tmp_path / f"offsets.{format}"
    words = ("--file", file, "--format", format)
    assert run(broker, "export", "billing", *words).code == 0
    name = ("--group", "copy")
    assert len(ask("import", file, *name, "--dry-run")) == 2
    assert "'copy' does not exist" in fails(broker, 4, "describe", "copy")
    ask("import", file, *name, "--yes")
    assert committed(ask, "copy") == {0: 4, 1: 6}
    ask("reset", "shipping", "--from-file", file, "--yes")
    assert committed(ask, "shipping") == {0: 4, 1: 6}
    assert run(broker, "export", "billing", "copy", *words).code == 0
    ask("reset", "copy", "--all-topics", "--to-earliest", "--yes")
    assert len(ask("import", file, "--yes")) == 4
    assert committed(ask, "copy") == {0: 4, 1: 6}


def test_groups_and_offsets_are_deleted(broker: TierlogBroker, ask: Ask) -> None:
    commit(broker, "billing", (0, 4), (1, 6))
    words = ("offset-delete", "billing", "--topic")
    assert ask(*words, "orders:0", "--yes")["deleted"] == ["orders-0"]
    assert committed(ask, "billing") == {1: 6}
    assert "no committed offsets" in fails(broker, 4, *words, "orders:0", "--yes")
    assert ask("delete", "billing", "--yes") == {"group": "billing", "deleted": True}
    assert ask("list") == []
    for missing in (("describe",), ("delete", "--yes"), ("export",)):
        assert "'billing' does not exist" in fails(broker, 4, missing[0], "billing", *missing[1:])


def awaited_on_screen(terminal: int, text: str) -> None:
    """Read what a terminal shows until the text comes."""
    screen, deadline = b"", time.monotonic() + TIMEOUT_S
    while text.encode() not in screen:
        assert select.select([terminal], [], [], deadline - time.monotonic())[0], screen
        screen += os.read(terminal, 65_536)


def end_on_screen(terminal: int, process: subprocess.Popen[bytes]) -> int:
    """The exit code. Reads on until then: a process whose terminal is full does not end."""
    deadline = time.monotonic() + TIMEOUT_S
    while (code := process.poll()) is None:
        assert time.monotonic() < deadline, "it still runs"
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 65_536)
    return code


def test_watch_prints_changes_until_the_group_is_deleted(broker: TierlogBroker, ask: Ask) -> None:
    """As JSON documents, as lines, and as a table that is refreshed in a terminal."""
    commit(broker, "billing", (0, 4))
    command = [sys.executable, "-m", "tierlog.cli.main", "group", "describe", "billing", "--watch"]
    command += ["--bootstrap", broker.bootstrap]
    ours, theirs = os.openpty()
    wide = {**os.environ, "TERM": "xterm", "COLUMNS": "150"}
    with (
        subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as documents,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as lines,
        subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=wide) as live,
    ):
        assert documents.stdout is not None and lines.stdout is not None
        try:
            assert json.loads(documents.stdout.readline())["partitions"][0]["lag"] == 6
            assert lines.stdout.readline() == "billing: Empty, 0 members\n"
            assert lines.stdout.readline() == "orders-0: committed 4, lag 6, no member\n"
            awaited_on_screen(ours, "lag 6 records")
            ask("seek", "billing", "orders", "0", "9")
            assert json.loads(documents.stdout.readline())["partitions"][0]["lag"] == 1
            assert lines.stdout.readline() == "orders-0: committed 9, lag 1, no member\n"
            awaited_on_screen(ours, "lag 1 record")
            ask("delete", "billing", "--yes")
            assert end_on_screen(ours, live) == 4
            assert documents.wait(TIMEOUT_S) == lines.wait(TIMEOUT_S) == 4
        finally:
            for process in (documents, lines, live):
                process.kill()
            for end in (ours, theirs):
                os.close(end)


def test_classic_groups_are_described_and_reset_while_group_version_is_0(
    broker: TierlogBroker, ask: Ask
) -> None:
    commit(broker, "billing", (0, 2), (1, 2))
    member = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "new", "group.protocol": "consumer"}
    )
    member.subscribe(["orders"])
    deadline = time.monotonic() + TIMEOUT_S
    while not member.assignment():
        assert time.monotonic() < deadline
        member.poll(0.1)
    level_0 = update_features.FeatureUpdateKey(
        feature="group.version", max_version_level=0, upgrade_type=SAFE_DOWNGRADE
    )
    request = update_features.UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[level_0])
    assert Client(broker.bootstrap).send("UpdateFeatures", 1, request).error_code == ErrorCode.NONE
    assert committed(ask, "billing") == {0: 2, 1: 2}
    ask("reset", "billing", "--all-topics", "--to-latest", "--yes")
    assert committed(ask, "billing") == {0: RECORDS, 1: RECORDS}
    assert "group.version" in fails(broker, 1, "describe", "new")
    assert "does not exist" in fails(broker, 4, "describe", "nosuch")
    member.close()
