"""The latest offset of a leader that was killed, and does not know yet what it had committed (KIP-207)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deliveries import Deliveries
from waiting import until
from wire_client import Client

from tierlog.cli import topics
from tierlog.cli.client import KafkaClient
from tierlog.cli.errors import CliError
from tierlog.cli.local_cluster import LocalCluster
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC, RECORDS, LATEST = "orders", 100, -1
LEADER, FOLLOWER = 1, 2  # the third node is of the quorum's majority
TIMEOUT_S = 60
NO_CHECKPOINTS = {"log.flush.offset.checkpoint.interval.ms": 3_600_000}
"""With a checkpoint just before it is killed, the leader knows the end when it starts."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, settings=NO_CHECKPOINTS) as running:
        topic = NewTopic(
            TOPIC, 1, replica_assignment=[[LEADER, FOLLOWER]], config={"min.insync.replicas": "2"}
        )
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([topic])[TOPIC].result(TIMEOUT_S)
        deliveries = Deliveries()
        producer = Producer({"bootstrap.servers": running.bootstrap, "acks": "all"})
        for number in range(RECORDS):
            producer.produce(TOPIC, b"%d record" % number, on_delivery=deliveries)
        assert producer.flush(TIMEOUT_S) == 0 and not deliveries.failures
        yield running


def test_a_reader_from_the_end_gets_no_old_records_when_a_killed_leader_leads_again(
    cluster: LocalCluster,
) -> None:
    kill_follower_and_restart_leader(cluster)
    until(lambda: listed(cluster, 4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1), "it leads again")
    until(lambda: listed(cluster, 5) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1), "it says why")
    with KafkaClient(cluster.bootstrap, timeout_s=1) as command, pytest.raises(CliError) as unknown:
        topics.offsets(command, TOPIC, 1, LATEST)
    assert "tierlog partition list --below-min" in unknown.value.hint

    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "readers"})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_END)])
    assert consumer.poll(1) is None, "the client asks again for the end"
    cluster.nodes[FOLLOWER].start()
    until(lambda: listed(cluster, 5) == (ErrorCode.NONE, RECORDS), "the leader knows the end")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    found: list[bytes] = []

    def reads_a_new_record() -> bool:
        producer.produce(TOPIC, b"new")
        message = consumer.poll(1)
        found.extend([message.value()] if message is not None and message.error() is None else [])
        return bool(found)

    until(reads_a_new_record, "the client reads")
    assert found == [b"new"]
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
