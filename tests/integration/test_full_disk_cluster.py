"""One of three brokers runs out of disk space: others lead, acks=all continues without it, and it rejoins."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_inline import call
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deliveries import Deliveries
from mounts import tmpfs
from waiting import until

from tierlog.cli.local_cluster import LocalCluster
from tierlog.cli.process import TierlogBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MIB = 1 << 20
DISK_BYTES = 24 * MIB
PARTITIONS = 3
VALUE = b" " + b"v" * 20_000
FULL = 1


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "disk", DISK_BYTES) as path:
        yield path


@pytest.fixture
def cluster(tmp_path: Path, disk: Path) -> Iterator[LocalCluster]:
    """Broker 1 has its logs on the small disk, but not its metadata, which has a reserve of its own."""
    running = LocalCluster(tmp_path / "cluster")
    small = running.nodes[FULL]
    small.settings["log.dirs"] = str(disk / "data")
    small.settings["metadata.log.dir"] = str(small.directory / "metadata")
    with running:
        yield running


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


def is_full(broker: TierlogBroker) -> bool:
    return "a log directory is full" in broker.log_tail()


def test_broker_with_a_full_disk_hands_over_leadership_and_rejoins(cluster: LocalCluster, disk: Path) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(60)

    def partitions() -> list[tuple[int, set[int]]]:
        found = admin.list_topics("t", timeout=60).topics["t"].partitions
        return [(found[number].leader, set(found[number].isrs)) for number in range(PARTITIONS)]

    deliveries = Deliveries()
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "delivery.timeout.ms": 20_000,  # less than replica.lag.time.max.ms: no request waits for that
        }
    )
    sent = 0

    def produce() -> None:
        nonlocal sent
        for partition in range(PARTITIONS):
            producer.produce("t", b"%d" % sent + VALUE, partition=partition, on_delivery=deliveries)
            sent += 1
        assert producer.flush(60) == 0

    produce()
    assert FULL in {leader for leader, _ in partitions()}
    ballast = fill(disk)
    until(lambda: produce() or is_full(cluster.nodes[FULL]), "its disk is full")
    until(
        lambda: all(leader != FULL and members == {2, 3} for leader, members in partitions()),
        "the other brokers are the leaders and the in-sync replicas",
    )
    held = call(
        "partition", "balance", "--execute", "--seconds", "0.1", "--admin", cluster.nodes[2].admin_url
    )
    assert held.code == 1 and "with a replica on a failed or full disk" in held.stderr, held
    produce()
    ballast.unlink()
    until(lambda: all(members == {1, 2, 3} for _, members in partitions()), "it has caught up")
    assert all(leader != FULL for leader, _ in partitions()), "leaders are balanced later, not now"
    produce()
    assert not deliveries.failures
    assert len(deliveries.acknowledged) == sent
