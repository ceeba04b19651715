"""Output and exit codes of commands, each run as a process against a running broker."""

import json
import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from tierlog.testing import TierlogBroker, TierlogBrokerFactory


class Cli:
    """`tierlog …` with the addresses of one broker in its environment."""

    def __init__(self, broker: TierlogBroker) -> None:
        self._environment = {
            **os.environ,
            "TIERLOG_BOOTSTRAP": broker.bootstrap,
            "TIERLOG_ADMIN": broker.admin_url,
        }

    def run(self, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "tierlog.cli.main", *words]
        return subprocess.run(
            command, input=stdin, env=self._environment, capture_output=True, timeout=60, check=False
        )

    def __call__(self, *words: str, stdin: bytes = b"") -> bytes:
        ended = self.run(*words, stdin=stdin)
        assert ended.returncode == 0, ended.stderr.decode()
        return ended.stdout

    def lines(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self(*words).splitlines()]


@pytest.fixture
def cli(tierlog_session_broker: TierlogBroker) -> Cli:
    return Cli(tierlog_session_broker)


def test_a_topic_from_creation_to_deletion(cli: Cli) -> None:
    cli("topic", "create", "life", "-p", "2", "-c", "retention.ms=60000")
    assert "life" in {row["topic"] for row in cli.lines("topic", "list", "--json")[0]}
    cli("topic", "alter", "life", "-c", "segment.bytes=100000", "--unset", "retention.ms")
    cli("topic", "add-partitions", "life", "3")
    [described] = cli.lines("topic", "describe", "life", "--json")
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    assert {row["name"]: row["value"] for row in described["configs"]} == {"segment.bytes": "100000"}
    cli("topic", "delete", "life", "--yes")
    assert cli.run("topic", "describe", "life").returncode == 4


def test_json_output_reports_changes(cli: Cli) -> None:
    def run(*words: str) -> Any:
        [document] = cli.lines(*words, "--json")
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
    records = cli.lines("consume", topic, "--from-beginning", "-F", "json")
    assert sorted((record["key"] or "", record["value"]) for record in records) == [
        ("", "plain é"),
        ("k1", "a"),
        ("k1", "c"),
        ("k2", "b"),
    ]
    assert all(record["headers"] == [["from", "test"]] for record in records)
    of_k1 = [(record["partition"], record["value"]) for record in records if record["key"] == "k1"]
    assert [value for _, value in of_k1] == ["a", "c"]
    assert len({partition for partition, _ in of_k1}) == 1


def test_a_tombstone_is_sent_and_shown(cli: Cli) -> None:
    cli("topic", "create", "tombstones", "-p", "1")
    cli("produce", "tombstones", "-K", ":", "--null-marker", "", stdin=b"a:1\na:\n")
    records = cli.lines("consume", "tombstones", "--from-beginning", "-F", "json")
    assert [(record["key"], record["value"]) for record in records] == [("a", "1"), ("a", None)]


def test_consume_starts_and_stops_where_requested(cli: Cli) -> None:
    cli("topic", "create", "starts", "-p", "1")
    cli("produce", "starts", stdin=b"".join(b"%d\n" % number for number in range(10)))
    assert cli("consume", "starts", "-o", "7") == b"7\n8\n9\n"
    assert cli("consume", "starts", "--from-beginning", "-n", "2") == b"0\n1\n"
    assert cli("consume", "starts", "-t", "1970-01-01") == cli("consume", "starts", "--from-beginning")
    assert cli("consume", "starts", "-t", "2999-01-01") == b""
    assert cli("consume", "starts", "-o", "10", "--exit-at-end") == b""
    for words in (("--exit-at-end",), ("--follow",)):
        beyond = cli.run("consume", "starts", "-o", "11", *words)
        assert (beyond.returncode, b"topic describe starts" in beyond.stderr) == (4, True)


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


def test_tiers_are_shown_and_explained(cli: Cli) -> None:
    cli("topic", "create", "cold", "-p", "1", "-c", "remote.storage.enable=true")
    cli("produce", "cold", stdin=b"a\nb\n")
    cli("tier", "flush", "cold")
    [status] = cli.lines("tier", "status", "cold", "--json")
    assert [row["remote_end_offset"] for row in status["partitions"]] == [2]
    [place] = cli.lines("tier", "explain", "cold", "0", "1", "--json")
    assert place["base_offset"] <= 1 <= place["last_offset"]
    assert b"cold" in cli("tier", "status")
    assert cli.run("tier", "flush", "no-such-topic").returncode == 4
    assert cli.run("tier", "status", "no-such-topic").returncode == 4


def test_cluster_info(cli: Cli, tierlog_session_broker: TierlogBroker) -> None:
    [info] = cli.lines("cluster", "info", "--json")
    assert (info["quorum"]["role"], info["quorum"]["leader"]) == ("leader", info["brokers"][0]["node"])
    assert [row["address"] for row in info["brokers"]] == [tierlog_session_broker.bootstrap]
    assert tierlog_session_broker.bootstrap.encode() in cli("cluster", "info")


@pytest.mark.parametrize(
    ("words", "code", "hint"),
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
def test_errors_have_hints(cli: Cli, words: tuple[str, ...], code: int, hint: str) -> None:
    ended = cli.run(*words)
    assert ended.returncode == code
    assert hint in ended.stderr.decode()
    assert b"Traceback" not in ended.stderr


def test_error_explains_a_port_in_use(tierlog_session_broker: TierlogBroker) -> None:
    command = [sys.executable, "-m", "tierlog.cli.main", "dev", "--port", str(tierlog_session_broker.port)]
    ended = subprocess.run(
        [*command, "--admin-port", "0"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "--port or --admin-port" in ended.stderr


def test_produce_waits_for_a_broker_that_restarts(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory()
    cli = Cli(broker)
    cli("topic", "create", "t", "-p", "1")
    command = [sys.executable, "-m", "tierlog.cli.main", "produce", "t", "-b", broker.bootstrap]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as producing:
        assert producing.stdin is not None
        producing.stdin.write(b"x" * 600_000 + b"\n")  # more than a batch: sent before the end of input
        producing.stdin.flush()
        wait_for_offset(cli, "t", 1)
        broker.kill()
        broker.start()
        producing.stdin.write(b"after\n")
        producing.stdin.close()
        assert producing.wait(60) == 0
    assert len(cli("consume", "t", "--from-beginning").splitlines()) == 2


def wait_for_offset(cli: Cli, topic: str, end: int) -> None:
    """Follow the topic until its end offset is `end`; the command itself waits at the end of the log."""
    assert len(cli("consume", topic, "--from-beginning", "--follow", "-n", str(end)).splitlines()) == end


def test_port_with_another_protocol_fails_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.listen()
        port = server.getsockname()[1]
        command = [sys.executable, "-m", "tierlog.cli.main", "topic", "list", "-b", f"127.0.0.1:{port}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as asking:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            assert asking.wait(60) == 1
            assert asking.stderr is not None
            assert b"Kafka port" in asking.stderr.read()
            connection.close()
