"""Output and exit codes of commands, each run as a process against a running broker."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm_start
from wire_client import Client

from tierlog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResult
from tierlog.testing import TierlogBroker, TierlogBrokerFactory


class Cli:
    """`tierlog …` with the addresses of one broker in its environment."""

    def __init__(self, broker: TierlogBroker) -> None:
        self.broker = broker
        self._environment = {
            **os.environ,
            "TIERLOG_BOOTSTRAP": broker.bootstrap,
            "TIERLOG_ADMIN": broker.admin_url,
        }

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "tierlog.cli.main", *arguments]
        return warm_start.run(command, self._environment, stdin)

    def __call__(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Standard output of a command that succeeds."""
        result = self.run(*arguments, stdin=stdin)
        assert result.returncode == 0, result.stderr.decode()
        return result.stdout

    def json_lines(self, *arguments: str) -> list[Any]:
        """Output of a command that prints one JSON document on each line."""
        return [json.loads(line) for line in self(*arguments).splitlines()]


@pytest.fixture
def cli(tierlog_session_broker: TierlogBroker) -> Cli:
    return Cli(tierlog_session_broker)


def test_generated_program_produces_and_says_where_the_record_is(cli: Cli, tmp_path: Path) -> None:
    cli("topic", "create", "my-topic", "-p", "1")
    cli("generate", "clients", str(tmp_path))
    command = [sys.executable, tmp_path / "client.py"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "my-topic, partition 0, offset 0\n"
    cli("topic", "delete", "my-topic", "--yes")


def test_topic_is_created_altered_described_and_deleted(cli: Cli) -> None:
    cli("topic", "create", "orders", "-p", "2", "-c", "retention.ms=60000")
    assert "orders" in {row["topic"] for row in cli.json_lines("topic", "list", "--json")[0]}
    cli("topic", "alter", "orders", "-c", "segment.bytes=100000", "--unset", "retention.ms")
    cli("topic", "add-partitions", "orders", "3")
    [described] = cli.json_lines("topic", "describe", "orders", "--json")
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    assert {row["name"]: row["value"] for row in described["configs"]} == {"segment.bytes": "100000"}
    cli("topic", "delete", "orders", "--yes")
    assert cli.run("topic", "describe", "orders").returncode == 4


def test_json_output_reports_changes(cli: Cli) -> None:
    def run(*arguments: str) -> Any:
        [document] = cli.json_lines(*arguments, "--json")
        return document

    create = ("topic", "create", "changes", "-p", "2")
    assert run(*create, "--validate-only") == {"topic": "changes", "created": False, "partitions": None}
    assert run(*create) == {"topic": "changes", "created": True, "partitions": 2}
    altered = run("topic", "alter", "changes", "-c", "retention.ms=600000", "-u", "segment.ms")
    assert altered == {"topic": "changes", "set": {"retention.ms": "600000"}, "unset": ["segment.ms"]}
    assert run("topic", "add-partitions", "changes", "3") == {"topic": "changes", "partitions": 3}
    cli("produce", "changes", "-p", "1", stdin=b"a\n")
    assert run("consume", "changes", "--from-beginning")["value"] == "a"
    assert run("topic", "delete", "changes", "--yes") == {"topic": "changes", "deleted": True}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_with_key_value_and_headers(cli: Cli, codec: str) -> None:
    topic = f"round-{codec}"
    cli("topic", "create", topic, "-p", "2")
    cli(
        "produce",
        topic,
        "-K",
        "=",
        "-H",
        "from=test",
        "-z",
        codec,
        stdin="k1=a\nk2=b\nk1=c\nplain é\n".encode(),
    )
    records = cli.json_lines("consume", topic, "--from-beginning", "-F", "json")
    assert sorted((record["key"] or "", record["value"]) for record in records) == [
        ("", "plain é"),
        ("k1", "a"),
        ("k1", "c"),
        ("k2", "b"),
    ]
    assert all(record["headers"] == [["from", "test"]] for record in records)
    k1_records = [record for record in records if record["key"] == "k1"]
    assert [record["value"] for record in k1_records] == ["a", "c"]
    assert len({record["partition"] for record in k1_records}) == 1


def test_null_marker_produces_a_tombstone_which_consume_prints_as_null(cli: Cli) -> None:
    cli("topic", "create", "tombstones", "-p", "1")
    cli("produce", "tombstones", "-K", ":", "--null-marker", "", stdin=b"a:1\na:\n")
    records = cli.json_lines("consume", "tombstones", "--from-beginning", "-F", "json")
    assert [(record["key"], record["value"]) for record in records] == [("a", "1"), ("a", None)]


def test_consume_starts_and_stops_where_requested(cli: Cli) -> None:
    cli("topic", "create", "starts", "-p", "1")
    cli("produce", "starts", stdin=b"".join(b"%d\n" % number for number in range(10)))
    assert cli("consume", "starts", "-o", "7") == b"7\n8\n9\n"
    assert cli("consume", "starts", "--from-beginning", "-n", "2") == b"0\n1\n"
    assert cli("consume", "starts", "-t", "1970-01-01") == cli("consume", "starts", "--from-beginning")
    assert cli("consume", "starts", "-t", "2999-01-01") == b""
    assert cli("consume", "starts", "-o", "10", "--exit-at-end") == b""
    for flag in ("--exit-at-end", "--follow"):
        out_of_range = cli.run("consume", "starts", "-o", "11", flag)
        assert out_of_range.returncode == 4
        assert b"topic describe starts" in out_of_range.stderr


def test_group_continues_at_its_committed_offsets(cli: Cli) -> None:
    cli("topic", "create", "groups", "-p", "1")
    cli("produce", "groups", stdin=b"a\nb\nc\n")
    assert cli("consume", "groups", "-g", "readers", "-n", "2") == b"a\nb\n"
    assert cli("consume", "groups", "-g", "readers") == b"c\n"
    assert cli("consume", "groups", "-g", "readers") == b""


def test_large_input_is_sent_in_several_batches(cli: Cli) -> None:
    cli("topic", "create", "large", "-p", "1")
    lines = b"".join(b"%06d%s\n" % (number, b"x" * 1000) for number in range(3000))
    [summary] = [json.loads(cli("produce", "large", "--json", stdin=lines))]
    assert summary["records"] == 3000
    assert cli("consume", "large", "--from-beginning") == lines


def test_tier_commands_report_offsets_and_the_location_of_a_record(cli: Cli) -> None:
    cli("topic", "create", "cold", "-p", "1", "-c", "remote.storage.enable=true")
    cli("produce", "cold", stdin=b"a\nb\n")
    cli("tier", "flush", "cold")
    [status] = cli.json_lines("tier", "status", "cold", "--json")
    assert [row["remote_end_offset"] for row in status["partitions"]] == [2]
    assert [(row["pending_bytes"], row["pending_age_ms"]) for row in status["partitions"]] == [(0, 0)]
    cli("produce", "cold", stdin=b"c\n")
    [row] = cli.json_lines("tier", "status", "cold", "--json")[0]["partitions"]
    assert (row["pending_bytes"], row["pending_segments"]) == (0, 0)  # the active segment
    assert row["pending_age_ms"] > 0
    [location] = cli.json_lines("tier", "explain", "cold", "0", "1", "--json")
    assert location["base_offset"] <= 1 <= location["last_offset"]
    assert b"cold" in cli("tier", "status")
    assert cli.run("tier", "flush", "no-such-topic").returncode == 4
    assert cli.run("tier", "status", "no-such-topic").returncode == 4


def describe_log_dirs(broker: TierlogBroker) -> list[DescribeLogDirsResult]:
    client = Client(broker.bootstrap)
    response = client.send("DescribeLogDirs", 5, DescribeLogDirsRequest(topics=None))
    client.close()
    return list(response.results)


def test_logdirs_show_the_bytes_of_both_tiers(cli: Cli) -> None:
    cli("topic", "create", "sized", "-p", "2", "-c", "remote.storage.enable=true")
    cli("produce", "sized", stdin=b"a\nb\nc\nd\n")
    cli("tier", "flush", "sized")
    [status] = cli.json_lines("tier", "status", "sized", "--json")
    [rows] = cli.json_lines("cluster", "logdirs", "sized", "--json")
    shown = {row["partition"]: (row["local_bytes"], row["remote_bytes"], row["leads"]) for row in rows}
    assert shown == {
        row["partition"]: (row["local_bytes"], row["remote_bytes"], True) for row in status["partitions"]
    }
    described = {
        partition.partition_index: partition.partition_size
        for result in describe_log_dirs(cli.broker)
        for topic in result.topics
        if topic.name == "sized"
        for partition in topic.partitions
    }
    assert described == {row["partition"]: row["local_bytes"] for row in rows}
    [[directory]] = cli.json_lines("cluster", "logdirs", "--json")
    assert directory["remote_bytes"] >= sum(row["remote_bytes"] for row in rows) > 0
    assert directory["partitions"] >= 2 and 0 < directory["usable_bytes"] <= directory["total_bytes"]
    assert directory["directory"].encode() in cli("cluster", "logdirs")
    assert b"leader" in cli("cluster", "logdirs", "sized")
    assert cli.run("cluster", "logdirs", "no-such-topic").returncode == 4


def test_cluster_info_names_the_leader_and_each_brokers_address(
    cli: Cli, tierlog_session_broker: TierlogBroker
) -> None:
    [info] = cli.json_lines("cluster", "info", "--json")
    assert (info["quorum"]["role"], info["quorum"]["leader"]) == ("leader", info["brokers"][0]["node"])
    assert [row["address"] for row in info["brokers"]] == [tierlog_session_broker.bootstrap]
    assert tierlog_session_broker.bootstrap.encode() in cli("cluster", "info")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "hint"),
    [
        (("topic", "create", "bad/name"), 1, "249"),
        (("topic", "create", "t", "-c", "no.such.setting=1"), 1, "settings.md"),
        (("topic", "alter", "nowhere", "-c", "retention.ms=1"), 4, "topic create nowhere"),
        (("topic", "alter", "nowhere"), 2, "--config"),
        (("consume", "nowhere"), 4, "topic list"),
        (("tier", "status", "nowhere"), 4, "topic list"),
        (("tier", "explain", "nowhere", "0", "0"), 4, "topic describe"),
        (("produce", "nowhere"), 4, "topic list"),
    ],
)
def test_errors_have_hints(cli: Cli, arguments: tuple[str, ...], exit_code: int, hint: str) -> None:
    result = cli.run(*arguments)
    assert result.returncode == exit_code
    assert hint in result.stderr.decode()
    assert b"Traceback" not in result.stderr


def test_error_explains_a_port_in_use(tierlog_session_broker: TierlogBroker) -> None:
    command = [sys.executable, "-m", "tierlog.cli.main", "dev", "--port", str(tierlog_session_broker.port)]
    result = subprocess.run(
        [*command, "--admin-port", "0"], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert "--port or --admin-port" in result.stderr


def test_produce_waits_for_a_broker_that_restarts(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory()
    cli = Cli(broker)
    cli("topic", "create", "t", "-p", "1")
    command = [sys.executable, "-m", "tierlog.cli.main", "produce", "t", "-b", broker.bootstrap]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"x" * 600_000 + b"\n")  # larger than a batch, so sent before the end of input
        process.stdin.flush()
        wait_for_records(cli, "t", 1)
        broker.kill()
        broker.start()
        process.stdin.write(b"after\n")
        process.stdin.close()
        assert process.wait(60) == 0
    assert len(cli("consume", "t", "--from-beginning").splitlines()) == 2


def wait_for_records(cli: Cli, topic: str, count: int) -> None:
    """Consume `count` records; at the end of the log the command waits for more."""
    assert len(cli("consume", topic, "--from-beginning", "--follow", "-n", str(count)).splitlines()) == count


def test_port_with_another_protocol_fails_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.listen()
        port = server.getsockname()[1]
        command = [sys.executable, "-m", "tierlog.cli.main", "topic", "list", "-b", f"127.0.0.1:{port}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            assert process.wait(60) == 1
            assert process.stderr is not None
            assert b"Kafka port" in process.stderr.read()
            connection.close()
