"""Processes and directories with a wrong identity: a second process with a live broker's id, and a data
directory or partition directory that was restored from an older copy.
"""

import json
import shutil
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deliveries import Deliveries
from waiting import until

from tierlog.cli.local_cluster import SECRET, LocalCluster
from tierlog.cli.process import BrokerFailed, TierlogBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

METADATA_DIRECTORY = "__cluster_metadata"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Brokers 1 to 3 and a controller node."""
    settings = {"min.insync.replicas": "2", "broker.session.timeout.ms": "1500"}
    with LocalCluster(tmp_path / "cluster", 3, settings, voters=1) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic("orders", 1, 3)])["orders"].result(60)
        yield running


@contextmanager
def stray_of(cluster: LocalCluster, node_id: int, directory: Path) -> Iterator[TierlogBroker]:
    """A second process with a broker's id, other ports and an empty directory; killed at the end."""
    settings = {**cluster.plan.all_settings(), "node.id": node_id, "process.roles": "broker"}
    directory.mkdir()
    stray = TierlogBroker(directory, settings, environment={SECRET: cluster.plan.secret})
    stray.log_path.touch()
    try:
        yield stray
    finally:
        stray.kill()


def produce(cluster: LocalCluster, first: int, count: int) -> None:
    deliveries = Deliveries()
    client = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True})
    for number in range(first, first + count):
        client.produce("orders", b"%d record" % number, on_delivery=deliveries)
    assert client.flush(60) == 0
    assert not deliveries.failures and len(deliveries.acknowledged) == count


def standing(cluster: LocalCluster, topic: str = "orders") -> tuple[set[int], int, set[int]]:
    """The unfenced brokers, the partition's leader and its ISR."""
    found = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(topic, timeout=60)
    partition = found.topics[topic].partitions[0]
    return set(found.brokers), partition.leader, set(partition.isrs)


def await_in_sync(cluster: LocalCluster, *members: int, topic: str = "orders") -> None:
    until(lambda: standing(cluster, topic)[2] == set(members), f"{members} are in sync")


def log_of(broker: TierlogBroker) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(broker.data_dir.glob("orders-0/*.log")))


def check_all_have_all(cluster: LocalCluster, count: int) -> None:
    await_in_sync(cluster, 1, 2, 3)
    logs = [cluster.nodes[one] for one in (1, 2, 3)]
    until(lambda: len({log_of(one) for one in logs}) == 1, "the three logs are the same bytes")
    log = log_of(logs[0])
    assert all(b"%d record" % number in log for number in range(count))


def test_process_with_the_id_of_a_live_broker_is_rejected(cluster: LocalCluster, tmp_path: Path) -> None:
    """If it takes the place of a dead broker, the data of the real one counts as lost."""
    produce(cluster, 0, 10)
    await_in_sync(cluster, 1, 2, 3)
    with stray_of(cluster, 2, tmp_path / "stray") as stray, ThreadPoolExecutor(1) as pool:
        starting = pool.submit(stray.start)
        until(
            lambda: b"waiting for the session of another process" in stray.log_path.read_bytes(),
            "it is refused",
        )
        produce(cluster, 10, 10)
        assert cluster.nodes[2].running and standing(cluster)[2] == {1, 2, 3}

        cluster.nodes[2].kill()  # now it may register: no other process is broker 2
        starting.result()
        await_in_sync(cluster, 1, 2, 3)
        cluster.nodes[3].stop()
        produce(cluster, 20, 60)
    cluster.nodes[1].kill()
    cluster.nodes[2].start()
    until(lambda: standing(cluster)[0] == {2}, "the real broker 2 is let in")
    assert standing(cluster)[1] == -1, "it leads without records that were acknowledged in its absence"
    cluster.start([1, 3])
    check_all_have_all(cluster, 80)


def test_restored_old_directory_is_not_elected_leader(cluster: LocalCluster, tmp_path: Path) -> None:
    produce(cluster, 0, 10)
    await_in_sync(cluster, 1, 2, 3)
    cluster.nodes[2].stop()
    shutil.copytree(cluster.nodes[2].data_dir, tmp_path / "backup")
    cluster.nodes[2].start()
    await_in_sync(cluster, 1, 2, 3)
    produce(cluster, 10, 90)
    cluster.nodes[3].stop()
    await_in_sync(cluster, 1, 2)
    cluster.nodes[2].stop()  # with min.insync.replicas=2, broker 2 is still eligible
    cluster.nodes[1].kill()
    shutil.rmtree(cluster.nodes[2].data_dir)
    shutil.copytree(tmp_path / "backup", cluster.nodes[2].data_dir)
    cluster.nodes[2].start()
    until(lambda: standing(cluster)[0] == {2}, "broker 2 is let in")
    assert standing(cluster)[1] == -1, "it leads with an older copy of its log"
    assert b"an older copy was restored" in cluster.nodes[2].log_path.read_bytes()
    cluster.start([1, 3])
    check_all_have_all(cluster, 100)


@pytest.mark.parametrize("is_put_back", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_log_shorter_than_its_checkpoints_is_not_elected_leader(
    cluster: LocalCluster, tmp_path: Path, is_put_back: bool
) -> None:
    """One partition's directory was restored from an older copy, or its segment files were removed."""
    node = cluster.nodes[2]
    partition = node.data_dir / "orders-0"
    produce(cluster, 0, 10)
    await_in_sync(cluster, 1, 2, 3)
    node.stop()
    shutil.copytree(partition, tmp_path / "backup")
    node.start()
    await_in_sync(cluster, 1, 2, 3)
    produce(cluster, 10, 90)
    cluster.nodes[3].stop()
    await_in_sync(cluster, 1, 2)
    node.stop()  # with min.insync.replicas=2, broker 2 is still eligible
    cluster.nodes[1].kill()
    if is_put_back:
        shutil.rmtree(partition)
        shutil.copytree(tmp_path / "backup", partition)
    else:
        for file in partition.glob("0*"):
            file.unlink()
    node.start()
    until(lambda: standing(cluster)[0] == {2}, "broker 2 is let in")
    assert standing(cluster)[1] == -1, "it leads with a log that has lost its end"
    assert b"a log ends before the end that its checkpoints record" in node.log_path.read_bytes()
    cluster.start([1, 3])
    check_all_have_all(cluster, 100)


def test_restored_old_voter_directory_stops_with_a_reason(tmp_path: Path) -> None:
    """The leader to which it acknowledged the missing entries is still running."""
    with LocalCluster(tmp_path / "cluster", 3) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        voter = cluster.nodes[next(one for one in cluster.nodes if one != active_controller(cluster))]
        voter.stop()
        shutil.copytree(voter.data_dir / METADATA_DIRECTORY, tmp_path / "backup")
        voter.start()
        admin.create_topics([NewTopic("later", 1, 3)])["later"].result(60)
        await_in_sync(cluster, 1, 2, 3, topic="later")
        voter.kill()
        check_refuses(voter, tmp_path / "backup", "metadata directory is an older copy")


def test_restored_voter_that_forgot_its_vote_stops_with_a_reason(tmp_path: Path) -> None:
    """The leader of the time of the copy is gone. The third voter knows of the later term."""
    with LocalCluster(tmp_path / "cluster", 3) as cluster:
        leader = active_controller(cluster)
        voter, other = (node for number, node in cluster.nodes.items() if number != leader)
        voter.stop()
        shutil.copytree(voter.data_dir / METADATA_DIRECTORY, tmp_path / "backup")
        voter.start()
        cluster.nodes[leader].kill()
        until(lambda: quorum_leader(other) not in (-1, leader), "another voter leads")
        voter.kill()
        check_refuses(voter, tmp_path / "backup", "knows that it was in term")


def check_refuses(voter: TierlogBroker, backup: Path, reason: str) -> None:
    """The voter ends with this reason on a copy of its metadata directory."""
    metadata = voter.data_dir / METADATA_DIRECTORY
    shutil.rmtree(metadata)
    shutil.copytree(backup, metadata)
    with pytest.raises(BrokerFailed, match=reason):
        voter.start()
        until(lambda: not voter.running, "it ends")
        raise BrokerFailed(voter.log_tail())


def active_controller(cluster: LocalCluster) -> int:
    return quorum_leader(next(iter(cluster)))


def quorum_leader(node: TierlogBroker) -> int:
    with urllib.request.urlopen(f"{node.admin_url}/v1/quorum") as answer:
        return int(json.load(answer)["leader"])


def test_killed_broker_is_fenced_before_its_session_expires(tmp_path: Path) -> None:
    """By the notice of its sentinel."""
    settings = {"broker.session.timeout.ms": "600000"}
    with LocalCluster(tmp_path / "cluster", 3, settings, voters=1) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("orders", 1, 3)])["orders"].result(60)
        await_in_sync(cluster, 1, 2, 3)
        leader = standing(cluster)[1]
        cluster.nodes[leader].kill()
        until(lambda: standing(cluster)[1] not in (-1, leader), "another broker leads")
        cluster.nodes[leader].start()
        await_in_sync(cluster, 1, 2, 3)
