"""Two builds in one cluster: a rolling upgrade and a rollback while a producer sees no error.

Until there are two releases, `next_release` is this tree with the next format and wire version. It shows that
nodes negotiate, and that finalisation ends the time of rollbacks. It does not show that a real later release
has no other differences.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builds import ROOT, changed_copy, previous_release
from cli_inline import call
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rolling_load import Load
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.cli.errors import CliError
from tierlog.cli.local_cluster import LocalCluster
from tierlog.cli.process import BrokerFailed
from tierlog.metadata.versions import SUPPORTED_FORMATS, WIRE_VERSIONS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

THIS_TREE = ROOT / "src"
PARTITIONS = 3
NEXT_FORMAT, NEXT_WIRE = SUPPORTED_FORMATS[1] + 1, WIRE_VERSIONS[1] + 1


@pytest.fixture(scope="module")
def next_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This tree, with the next format and wire version."""
    changes = {
        "__init__.py": {"__version__": '"99.0.0"'},
        "metadata/versions.py": {
            "SUPPORTED_FORMATS": f"({SUPPORTED_FORMATS[0]}, {NEXT_FORMAT})",
            "WIRE_VERSIONS": f"({WIRE_VERSIONS[0]}, {NEXT_WIRE})",
        },
    }
    return changed_copy(tmp_path_factory.mktemp("next"), changes)


class UpgradedCluster:
    """A cluster whose nodes run different builds, with a producer that never pauses."""

    def __init__(self, directory: Path, build: Path) -> None:
        settings = {"leader.imbalance.check.interval.seconds": 1}
        self.cluster = LocalCluster(
            directory, settings=settings, environment={"PYTHONPATH": str(build)}
        ).start()
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        admin.create_topics([NewTopic("orders", PARTITIONS, 3)])["orders"].result(60)
        until(self._is_whole, "a new cluster is whole")
        self.load = Load({"bootstrap.servers": self.cluster.bootstrap}, "orders", PARTITIONS)
        self.load.wait_for_progress()

    def replace(self, build: Path, *nodes: int) -> None:
        """Restart nodes one by one with this build."""
        for node in nodes:
            self.stop(node)
            self.start(node, build)

    def stop(self, node: int) -> None:
        self.cluster.nodes[node].stop()
        self.load.wait_for_progress()

    def start(self, node: int, build: Path) -> None:
        """Returns once no other node would be missed if it stopped."""
        self.cluster.nodes[node].environment["PYTHONPATH"] = str(build)
        self.cluster.nodes[node].start()
        until(self._is_whole, f"node {node} is in sync, and leads what it led")

    def versions(self, node: int) -> dict[str, Any]:
        seen: dict[str, Any] = AdminApi(self.cluster.nodes[node].admin_url).get("/v1/versions")
        return seen

    def wire_versions(self) -> dict[int, int]:
        """Node -> the wire version that the leader of the quorum uses with it. Only leaders hear from all."""
        leader = AdminApi(self.cluster.nodes[1].admin_url).get("/v1/quorum")["leader"]
        peers = self.versions(leader)["peers"] if leader in self.cluster.nodes else ()
        return {one["node_id"]: one["uses"] for one in peers}

    def command(self, *words: str) -> tuple[int, str]:
        """Exit code and all output of `tierlog cluster …`."""
        ended = call("cluster", *words, "--admin", self.cluster.nodes[1].admin_url)
        return ended.code, ended.stdout + ended.stderr

    def check_records(self) -> None:
        """Stop the producer: no record failed, and each one is there once and in order."""
        self.load.stop()
        assert not self.load.deliveries.failures
        assert self.load.sent == len(self.load.deliveries.acknowledged)
        for partition in range(PARTITIONS):
            sent = [b"%d record" % n for n in range(partition, self.load.sent, PARTITIONS)]
            assert self._read(partition, len(sent) + 1) == sent

    def _is_whole(self) -> bool:
        for node in self.cluster:
            try:
                rows = AdminApi(node.admin_url).get("/v1/partitions", topic="orders")["partitions"]
            except CliError:
                return False
            if any(len(row["in_sync"]) < 3 or row["leader"] != row["replicas"][0] for row in rows):
                return False
        return True

    def _read(self, partition: int, count: int) -> list[bytes]:
        """The first `count` values of the partition, or fewer if it has fewer."""
        settings = {
            "bootstrap.servers": self.cluster.bootstrap,
            "group.id": "r",
            "enable.partition.eof": True,
        }
        consumer = Consumer(settings)
        consumer.assign([TopicPartition("orders", partition, 0)])
        found: list[bytes] = []
        while len(found) < count:
            message = consumer.poll(60)
            if message is None or message.error() is not None:
                break
            found.append(message.value())
        consumer.close()
        return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    running: list[UpgradedCluster] = []

    def start(build: Path) -> UpgradedCluster:
        running.append(UpgradedCluster(tmp_path, build))
        return running[-1]

    yield start
    for one in running:
        if one.load.is_running:
            one.load.stop()
        one.cluster.kill()


def test_the_previous_release_is_upgraded_and_rolled_back_under_load(start: Any, tmp_path: Path) -> None:
    old = previous_release(tmp_path / "previous")
    upgraded = start(old)
    upgraded.replace(THIS_TREE, 1, 2, 3)
    until(
        lambda: list(upgraded.wire_versions().values()) == [WIRE_VERSIONS[1]] * 2, "nodes announce versions"
    )
    upgraded.replace(old, 3, 2, 1)
    upgraded.check_records()


def test_an_upgrade_ends_when_it_is_finalised(start: Any, next_release: Path) -> None:
    upgraded = start(THIS_TREE)
    upgraded.replace(next_release, 2)
    upgraded.replace(THIS_TREE, 2)  # a rollback
    upgraded.replace(next_release, 1, 2)

    code, said = upgraded.command("finalize", "--yes")
    assert code == 1 and "node 3 is older" in said
    # each pair of nodes has its own version: an old leader uses 1 with all
    expected = [{2: NEXT_WIRE, 3: 1}, {1: NEXT_WIRE, 3: 1}, {1: 1, 2: 1}]
    until(lambda: upgraded.wire_versions() in expected, "nodes of two versions use one that both know")
    upgraded.stop(3)
    code, said = upgraded.command("finalize", "--yes")
    assert code == 1 and "node 3 does not respond" in said
    upgraded.start(3, next_release)

    code, said = upgraded.command("finalize", "--dry-run")
    assert code == 0 and f"can be raised from {SUPPORTED_FORMATS[1]} to {NEXT_FORMAT}" in said
    assert upgraded.versions(1)["format"] == SUPPORTED_FORMATS[1]
    assert upgraded.command("finalize", "--yes")[0] == 0
    document = json.loads(upgraded.command("versions", "--json")[1])
    assert document["finalized"] and document["format"] == NEXT_FORMAT

    upgraded.stop(3)
    with pytest.raises(BrokerFailed, match=f"tierlog.format was finalised at {NEXT_FORMAT}"):
        upgraded.start(3, THIS_TREE)
    upgraded.start(3, next_release)
    upgraded.check_records()
