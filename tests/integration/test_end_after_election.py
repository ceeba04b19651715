"""The latest offset of a leader that was killed, and does not know yet what it had committed (KIP-207).

Commands and the REST gateway name its partition, and serve the others.
"""

import contextlib
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cli_process
import pytest
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deliveries import Deliveries
from rest_process import RestProcess
from waiting import until
from wire_client import Client

from tierlog.cli import consuming, topics
from tierlog.cli.client import KafkaClient
from tierlog.cli.errors import CliError, ExitCode
from tierlog.cli.local_cluster import LocalCluster
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC, RECORDS, LATEST = "orders", 100, -1
OTHER_RECORDS = 3
"""Records of partition 1."""
GROUP = "readers"
LEADER, FOLLOWER, OTHER = 1, 2, 3  # OTHER leads partition 1, and is of the quorum's majority
TIMEOUT_S = 60
REMEDY = "tierlog partition list --below-min"
NO_CHECKPOINTS = {"log.flush.offset.checkpoint.interval.ms": 3_600_000}
"""With a checkpoint just before it is killed, the leader knows the end when it starts."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, settings=NO_CHECKPOINTS) as running:
        topic = NewTopic(
            TOPIC,
            2,
            replica_assignment=[[LEADER, FOLLOWER], [OTHER, LEADER]],
            config={"min.insync.replicas": "2"},
        )
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([topic])[TOPIC].result(TIMEOUT_S)
        deliveries = Deliveries()
        producer = Producer({"bootstrap.servers": running.bootstrap, "acks": "all"})
        for number in range(RECORDS):
            producer.produce(TOPIC, b"%d record" % number, partition=0, on_delivery=deliveries)
        for number in range(OTHER_RECORDS):
            producer.produce(TOPIC, b"%d other" % number, partition=1, on_delivery=deliveries)
        assert producer.flush(TIMEOUT_S) == 0 and not deliveries.failures
        yield running


def test_a_reader_from_the_end_gets_no_old_records_when_a_killed_leader_leads_again(
    cluster: LocalCluster,
) -> None:
    kill_follower_and_restart_leader(cluster)
    until(lambda: listed(cluster, 4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1), "it leads again")
    until(lambda: listed(cluster, 5) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1), "it says why")
    with KafkaClient(cluster.bootstrap, timeout_s=1) as command, pytest.raises(CliError) as unknown:
        topics.offsets(command, TOPIC, [0], LATEST)
    assert REMEDY in unknown.value.hint

    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": GROUP})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_END)])
    assert consumer.poll(1) is None, "the client asks again for the end"
    cluster.nodes[FOLLOWER].start()
    until(lambda: listed(cluster, 5) == (ErrorCode.NONE, RECORDS), "the leader knows the end")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    found: list[bytes] = []

    def reads_a_new_record() -> bool:
        producer.produce(TOPIC, b"new", partition=0)
        message = consumer.poll(1)
        found.extend([message.value()] if message is not None and message.error() is None else [])
        return bool(found)

    until(reads_a_new_record, "the client reads")
    assert found == [b"new"]
    consumer.close()


def test_commands_and_gateway_serve_the_partitions_whose_ends_are_known(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    commit(cluster.bootstrap, {0: 10, 1: 1})
    kill_follower_and_restart_leader(cluster)
    until(lambda: listed(cluster, 5) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1), "it does not know the end")
    options = ["--bootstrap", cluster.bootstrap]
    read = cli_process.run("consume", TOPIC, "--from-beginning", *options)
    assert read.stdout.splitlines() == ["0 other", "1 other", "2 other"]
    assert read.returncode == ExitCode.FAILED and REMEDY in read.stderr
    assert "not read: no end is known of orders-0 (OFFSET_NOT_AVAILABLE)" in read.stderr
    alone = cli_process.run("consume", TOPIC, "--from-beginning", "--partition", "1", *options)
    assert alone.returncode == 0 and len(alone.stdout.splitlines()) == OTHER_RECORDS

    [group] = cli_process.json_output("group", "describe", GROUP, *options)
    behind, known = group["partitions"]
    assert (behind["log_end_offset"], behind["lag"], behind["error"]) == (None, None, "OFFSET_NOT_AVAILABLE")
    assert REMEDY in behind["remedy"]
    assert (known["lag"], known["error"], known["remedy"]) == (OTHER_RECORDS - 1, None, None)
    table = cli_process.run("group", "describe", GROUP, *options).stdout
    assert "lag unknown of orders-0" in table and REMEDY in table and "OFFSET_NOT_AVAILABLE" in table
    reset = cli_process.run("group", "reset", GROUP, "--all-topics", "--to-latest", *options)
    assert "no end is known of orders-0" in reset.stderr and REMEDY in reset.stderr

    with RestProcess(tmp_path, cluster.bootstrap) as rest:
        *records, last = rest.get(f"/v1/topics/{TOPIC}/consume?value_format=string").body
        assert [one["value"] for one in records] == ["0 other", "1 other", "2 other"]
        assert (last["reason"], last["without_end"]) == ("end", [0]) and REMEDY in last["message"]
        assert last["next_offsets"] == {"0": 0, "1": OTHER_RECORDS}
        refused = rest.get(f"/v1/topics/{TOPIC}/consume?partition=0")
        assert refused.status == 503 and REMEDY in refused.body["message"]
        path = f"{rest.cluster_path()}/consumer-groups/{GROUP}"
        behind, known = rest.get(f"{path}/lags").body["data"]
        assert (behind["log_end_offset"], behind["lag"]) == (None, None) and REMEDY in behind["message"]
        assert known["lag"] == OTHER_RECORDS - 1 and "message" not in known
        summary = rest.get(f"{path}/lag-summary").body
        assert (summary["max_lag_partition_id"], summary["total_lag"]) == (1, OTHER_RECORDS - 1)
        assert "orders-0" in summary["message"] and REMEDY in summary["message"]


def test_command_that_follows_reads_a_partition_once_its_end_is_known(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    kill_follower_and_restart_leader(cluster)
    until(lambda: listed(cluster, 5) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1), "it does not know the end")
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def follow() -> None:
        with KafkaClient(cluster.bootstrap) as client:
            positions = topics.offsets(client, TOPIC, [1], LATEST)
            for each in consuming.Consumer(client, TOPIC, consuming.Start(positions, {0})).read(follow=True):
                found.put((each.partition, each.record.value))
                if each.partition == 0:
                    return

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    reader = threading.Thread(target=follow, daemon=True)
    reader.start()

    def reads(partition: int) -> bool:
        producer.produce(TOPIC, b"new", partition=partition)
        producer.poll(0)
        with contextlib.suppress(queue.Empty):
            return bool(found.get(timeout=1) == (partition, b"new"))
        return False

    until(lambda: reads(1), "it reads the partition whose end is known")
    cluster.nodes[FOLLOWER].start()
    until(lambda: reads(0), "it reads the other one from its end on")
    producer.flush(TIMEOUT_S)
    reader.join(TIMEOUT_S)


def commit(bootstrap: str, offsets: dict[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    positions = [TopicPartition(TOPIC, partition, offset) for partition, offset in offsets.items()]
    consumer.commit(offsets=positions, asynchronous=False)
    consumer.close()


def kill_follower_and_restart_leader(cluster: LocalCluster) -> None:
    """The only in-sync replica leads again, and commits nothing alone."""
    cluster.nodes[FOLLOWER].kill()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    partition = lambda: admin.list_topics(TOPIC, timeout=TIMEOUT_S).topics[TOPIC].partitions[0]  # noqa: E731
    until(lambda: partition().isrs == [LEADER], "the killed follower is out of sync")
    cluster.nodes[LEADER].kill()
    cluster.nodes[LEADER].start()


def listed(cluster: LocalCluster, version: int) -> tuple[ErrorCode, int]:
    client = Client(cluster.nodes[LEADER].bootstrap)
    wanted = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    named = [ListOffsetsTopic(name=TOPIC, partitions=[wanted])]
    request = ListOffsetsRequest(replica_id=-1, topics=named)
    [found] = client.send("ListOffsets", version, request).topics[0].partitions
    client.close()
    return ErrorCode(found.error_code), found.offset
