"""The Java client and Kafka's own command line tools against one broker."""

import json
import uuid
from pathlib import Path

import pytest
from consumer_member import ConsumerMember, closing, poll_until
from java_process import TOOLS, java, run_java
from kafka_process import KafkaProcess
from waiting import until

from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

DELETE = ("--delete", "--group")
ROUND_TRIP = Path(__file__).parent / "java" / "RoundTrip.java"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_consume_by_group(
    java_classpath: str, tierlog_session_broker: TierlogBroker, codec: str
) -> None:
    topic = f"java-{codec}-{uuid.uuid4().hex[:6]}"
    round_trip = (str(ROUND_TRIP), tierlog_session_broker.bootstrap, topic, codec, "5000", "classic")
    assert java(java_classpath, *round_trip).strip().endswith("ok 5000")


def test_produce_and_consume_by_consumer_group(
    java_classpath: str, tierlog_session_broker: TierlogBroker
) -> None:
    topic = f"java-{uuid.uuid4().hex[:6]}"
    round_trip = (str(ROUND_TRIP), tierlog_session_broker.bootstrap, topic, "none", "5000", "consumer")
    assert java(java_classpath, *round_trip).strip().endswith("ok 5000")


def test_kafkas_tools_for_consumer_groups(java_classpath: str, tierlog_session_broker: TierlogBroker) -> None:
    server = ("--bootstrap-server", tierlog_session_broker.bootstrap)
    topic = f"tools-{uuid.uuid4().hex[:6]}"
    group = f"g-{topic}"

    def tool(name: str, *arguments: str, text: str | None = None) -> str:
        return java(java_classpath, f"{TOOLS}.{name}", *server, *arguments, text=text)

    def groups(*arguments: str) -> str:
        return tool("consumer.group.ConsumerGroupCommand", *arguments)

    tool("TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    tool("ConsoleProducer", "--topic", topic, text="1\n2\n3\n")
    consume = ("--topic", topic, "--from-beginning", "--max-messages", "3", "--group", group)
    by_consumer_protocol = ("--command-property", "group.protocol=consumer")
    read = tool("consumer.ConsoleConsumer", *consume, *by_consumer_protocol)
    assert sorted(read.split()) == ["1", "2", "3"]

    assert group in groups("--list", "--type", "consumer").split()
    assert group not in groups("--list", "--type", "classic").split()
    assert "Empty" in groups("--describe", "--group", group, "--state")
    lags = [line.split()[5] for line in groups("--describe", "--group", group).splitlines() if topic in line]
    assert sum(map(int, lags)) == 0
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    assert topic in groups(*reset)
    with_member = ConsumerMember(tierlog_session_broker.bootstrap, topic, group=group)
    with closing(with_member):
        poll_until(lambda: len(with_member.assigned) == 2, with_member)
        described = groups("--describe", "--group", group, "--members", "--verbose")
        assert "CURRENT-EPOCH" in described and f"{topic}:0,1" in described
        command = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
        refused = run_java(java_classpath, command, *server, *DELETE, group)
        assert "GroupNotEmptyException" in refused.stdout
    assert "successful" in groups(*DELETE, group)
    alter = ("--entity-type", "groups", "--entity-name", group, "--alter")
    change = ("--add-config", "consumer.heartbeat.interval.ms=6000")
    java(java_classpath, "kafka.admin.ConfigCommand", *server, *alter, *change)
    shown = ("--entity-type", "groups", "--entity-name", group, "--describe")
    described = java(java_classpath, "kafka.admin.ConfigCommand", *server, *shown)
    assert "consumer.heartbeat.interval.ms=6000" in described


def test_kafkas_command_line_tools(java_classpath: str, tierlog_session_broker: TierlogBroker) -> None:
    server = ("--bootstrap-server", tierlog_session_broker.bootstrap)
    topic = f"tools-{uuid.uuid4().hex[:6]}"

    def tool(name: str, *arguments: str, text: str | None = None) -> str:
        return java(java_classpath, f"{TOOLS}.{name}", *server, *arguments, text=text)

    tool("TopicCommand", "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=-1")
    described = tool("TopicCommand", "--describe", "--topic", topic)
    assert "PartitionCount: 2" in described
    assert "retention.ms=-1" in described

    tool("ConsoleProducer", "--topic", topic, text="one\ntwo\nthree\n")
    consume = ("--topic", topic, "--from-beginning", "--max-messages", "3", "--group", f"g-{topic}")
    assert sorted(tool("consumer.ConsoleConsumer", *consume).split()) == ["one", "three", "two"]

    groups = tool("consumer.group.ConsumerGroupCommand", "--describe", "--group", f"g-{topic}")
    assert (
        sum(int(line.split()[5]) for line in groups.splitlines() if line.startswith(f"g-{topic}")) == 0
    )  # lag
    offsets = tool("GetOffsetShell", "--topic", topic)
    assert sum(int(line.rsplit(":", 1)[1]) for line in offsets.split()) == 3

    alter = (
        "--entity-type",
        "topics",
        "--entity-name",
        topic,
        "--alter",
        "--add-config",
        "segment.bytes=2097152",
    )
    java(java_classpath, "kafka.admin.ConfigCommand", *server, *alter)
    shown = java(
        java_classpath,
        "kafka.admin.ConfigCommand",
        *server,
        "--entity-type",
        "topics",
        "--entity-name",
        topic,
        "--describe",
    )
    assert "segment.bytes=2097152" in shown

    assert "broker" in tool("LogDirsCommand", "--describe", "--topic-list", topic)
    tool("TopicCommand", "--delete", "--topic", topic)
    assert topic not in tool("TopicCommand", "--list").split()


def test_kafka_configs_alters_and_describes_quotas(
    java_classpath: str, tierlog_session_broker: TierlogBroker
) -> None:
    server = ("--bootstrap-server", tierlog_session_broker.bootstrap)
    user, app = f"u-{uuid.uuid4().hex[:6]}", f"c-{uuid.uuid4().hex[:6]}"
    pair = ("--entity-type", "users", "--entity-name", user, "--entity-type", "clients", "--entity-name", app)
    defaults = (
        "--entity-type",
        "users",
        "--entity-name",
        user,
        "--entity-type",
        "clients",
        "--entity-default",
    )

    def configs(*arguments: str) -> str:
        return java(java_classpath, "kafka.admin.ConfigCommand", *server, *arguments)

    configs(*pair, "--alter", "--add-config", "producer_byte_rate=1024,request_percentage=12.5")
    configs(*defaults, "--alter", "--add-config", "consumer_byte_rate=2048")
    shown = configs(*pair, "--describe")
    assert "producer_byte_rate=1024.0" in shown
    assert "request_percentage=12.5" in shown
    assert "consumer_byte_rate=2048.0" in configs(*defaults, "--describe")
    configs(*pair, "--alter", "--delete-config", "producer_byte_rate,request_percentage")
    configs(*defaults, "--alter", "--delete-config", "consumer_byte_rate")
    assert "byte_rate" not in configs(*defaults, "--describe")


def test_kafkas_cluster_tools(
    java_classpath: str, tierlog_session_broker: TierlogBroker, tmp_path: Path
) -> None:
    server = ("--bootstrap-server", tierlog_session_broker.bootstrap)
    topic = f"cluster-{uuid.uuid4().hex[:6]}"

    def tool(name: str, *arguments: str) -> str:
        return java(java_classpath, f"{TOOLS}.{name}", *server, *arguments)

    tool("TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    assert "Elr:" in tool("TopicCommand", "--describe", "--topic", topic)
    assert "Feature: tierlog.format" in tool("FeatureCommand", "describe")
    status = dict(
        line.split(":", 1) for line in tool("MetadataQuorumCommand", "describe", "--status").splitlines()
    )
    assert (int(status["LeaderId"]), int(status["MaxFollowerLag"])) == (1, 0)
    assert "Leader" in tool("MetadataQuorumCommand", "describe", "--replication")

    plan = tmp_path / "plan.json"
    plan.write_text(
        f'{{"version": 1, "partitions": [{{"topic": "{topic}", "partition": 0, "replicas": [1]}}]}}'
    )
    moving = ("--reassignment-json-file", str(plan))
    assert "Successfully started" in tool("reassign.ReassignPartitionsCommand", *moving, "--execute")
    assert "completed" in tool("reassign.ReassignPartitionsCommand", *moving, "--verify")
    assert "No partition reassignments" in tool("reassign.ReassignPartitionsCommand", "--list")
    election = ("--election-type", "preferred", "--all-topic-partitions")
    tool("LeaderElectionCommand", *election)


NO_TOKENS = "Delegation Token requests are not allowed on PLAINTEXT"


@pytest.mark.parametrize(
    ("command", "arguments", "error"),
    [
        ("DelegationTokenCommand", ("--create", "--max-life-time-period", "-1"), NO_TOKENS),
        ("DelegationTokenCommand", ("--describe",), NO_TOKENS),
        ("AclCommand", ("--list",), "No Authorizer is configured"),
    ],
)
def test_tools_for_security_end_at_once_as_with_kafka(
    java_classpath: str,
    tierlog_session_broker: TierlogBroker,
    kafka: KafkaProcess,
    tmp_path: Path,
    command: str,
    arguments: tuple[str, ...],
    error: str,
) -> None:
    config = tmp_path / "client.properties"
    config.write_text("client.id=security\n")
    for bootstrap in (tierlog_session_broker.bootstrap, kafka.bootstrap):
        server = ("--bootstrap-server", bootstrap, "--command-config", str(config))
        ended = run_java(java_classpath, f"{TOOLS}.{command}", *server, *arguments)
        assert ended.returncode != 0
        assert error in ended.stdout + ended.stderr


def test_kafka_reassign_partitions_moves_between_log_directories(
    java_classpath: str, tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path
) -> None:
    directories = ",".join(str(tmp_path / name) for name in "ab")
    broker = tierlog_broker_factory({"log.dirs": directories, "metadata.log.dir": str(tmp_path / "m")})
    server = ("--bootstrap-server", broker.bootstrap)
    java(java_classpath, f"{TOOLS}.TopicCommand", *server, "--create", "--topic", "t", "--partitions", "1")
    (place,) = tmp_path.glob("?/t-0")
    to = tmp_path / ("b" if place.parent.name == "a" else "a")
    moved = {"topic": "t", "partition": 0, "replicas": [1], "log_dirs": [str(to)]}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    moving = (f"{TOOLS}.reassign.ReassignPartitionsCommand", *server, "--reassignment-json-file", str(plan))
    assert "Successfully started moving log directory" in java(java_classpath, *moving, "--execute")
    until(lambda: list(tmp_path.glob("?/t-0")) == [to / "t-0"], "it has not moved")
    assert "completed successfully" in java(java_classpath, *moving, "--verify")
