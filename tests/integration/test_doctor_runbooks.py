"""Each runbook's symptom, caused on real nodes, is a finding of `tierlog doctor` that names the runbook.

Lost brokers and majorities are in test_doctor.py. docs/howto/doctor.md has the table of runbooks and rules.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import s3_servers
from cli_inline import call
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from havoc.nodes import CONTROL, ControlFile, build_shim
from mounts import read_only, tmpfs
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.cli.local_cluster import LocalCluster
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MIB = 1 << 20
DAY_S = 86_400
SMALL = {"segment.bytes": "65536", "flush.messages": "1"}
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "65536",
    "local.retention.ms": "-1",
    "retention.ms": "-1",
}


def named(broker: TierlogBroker, rule: str, cause: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """The finding of this rule, once doctor has it. `cause`: causes the symptom, before each try."""
    found: dict[str, dict[str, Any]] = {}

    def is_named() -> bool:
        cause()
        ended = call("doctor", "--json", "--admin", broker.admin_url)
        found.clear()
        found.update((one["rule"], one) for one in json.loads(ended.stdout)["findings"])
        return rule in found

    until(is_named, f"doctor has a finding of {rule}, not only {sorted(found)}")
    return found[rule]


def create(broker: TierlogBroker, topic: str, config: dict[str, str], partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(60)


def produce(broker: TierlogBroker, topic: str, count: int, partition: int = 0) -> None:
    """Records of a kilobyte, so that segments roll. Errors are of no interest."""
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "batch.num.messages": 10, "retries": 0, "log_level": 0}
    )
    for number in range(count):
        producer.produce(topic, b"%d" % number + bytes(1000), partition=partition)
    producer.flush(60)


def flip(path: Path) -> None:
    """Another bit in the middle of the file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_damaged_log(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory()
    create(broker, "orders", SMALL)
    produce(broker, "orders", 300)
    flip(min(broker.data_dir.glob("**/orders-0/*.log")))
    found = named(broker, "damaged-log", lambda: AdminApi(broker.admin_url).post("/v1/scrub", {}))
    assert "orders-0" in found["what"] and found["runbook"] == "docs/runbooks/damaged-log.md"


def test_damaged_object(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    """A segment that is also on a local disk would be restored from there."""
    broker = tierlog_broker_factory({"remote.log.manager.task.interval.ms": 200})
    create(broker, "orders", {**TIERED, "local.retention.ms": "0"})
    produce(broker, "orders", 300)
    api = AdminApi(broker.admin_url)
    api.post("/v1/tier/flush", {"topic": "orders"})

    def is_remote() -> bool:
        [row] = api.get("/v1/tier/status")["partitions"]
        return int(row["local_log_start_offset"]) == 300

    until(is_remote, "local segments go")
    flip(min(broker.object_dir.glob("**/*.log")))
    found = named(broker, "damaged-object", lambda: api.post("/v1/tier/scrub", {}))
    assert "orders-0" in found["what"] and found["runbook"] == "docs/runbooks/damaged-object.md"


def test_lost_bucket(tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path) -> None:
    with s3_servers.running("versitygw", tmp_path) as server:
        broker = tierlog_broker_factory(
            {"remote.log.manager.task.interval.ms": 200},
            object_store=server.url("doctor"),
            environment=s3_servers.CREDENTIALS,
        )
        create(broker, "orders", TIERED)
        shutil.rmtree(server.directory / "data" / s3_servers.BUCKET)
        found = named(broker, "bucket-lost", lambda: produce(broker, "orders", 100))
        assert "NoSuchBucket" in found["what"] and found["runbook"] == "docs/runbooks/bucket-lost.md"
        broker.kill()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "disk", 48 * MIB) as path:
        yield path


def test_full_disk(disk: Path, tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory({"log.dirs": str(disk / "data"), "metadata.reserve.bytes": MIB})
    create(broker, "orders", {"segment.bytes": str(MIB)})
    found = named(broker, "disk-full", lambda: produce(broker, "orders", 5_000))
    assert str(disk / "data") in found["what"] and found["runbook"] == "docs/runbooks/full-disk.md"
    broker.kill()


def test_full_disk_of_a_controller(tmp_path: Path) -> None:
    """It has no log directories of partitions, and an idle quorum writes nothing that could fail."""
    cluster = LocalCluster(tmp_path, nodes=1, voters=1)
    [voter] = [node for node in cluster if node not in cluster.brokers]
    with tmpfs(voter.data_dir, 48 * MIB) as path, cluster:
        (path / "ballast").write_bytes(bytes(shutil.disk_usage(path).free - MIB))
        found = named(voter, "metadata-disk-low")
        assert found["runbook"] == "docs/runbooks/full-disk.md"


def test_failed_disk(tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path) -> None:
    broker = tierlog_broker_factory(
        {
            "log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}",
            "metadata.log.dir": str(tmp_path / "metadata"),
            "log.flush.offset.checkpoint.interval.ms": 200,
        }
    )
    create(broker, "orders", {}, partitions=4)
    for partition in range(4):
        produce(broker, "orders", 1, partition)
    with read_only(tmp_path / "b"):
        found = named(broker, "disk-failed")
        assert str(tmp_path / "b") in found["what"] and found["runbook"] == "docs/runbooks/full-disk.md"
        broker.kill()


def test_wrong_clock(tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path) -> None:
    shim = build_shim(tmp_path)
    assert shim is not None, "a C compiler is needed for the library that falsifies clocks"
    control = ControlFile(tmp_path / "control")
    broker = tierlog_broker_factory(environment={"LD_PRELOAD": str(shim), CONTROL: str(control.path)})
    control.set(clock_s=-DAY_S)
    found = named(broker, "clock")
    assert "behind" in found["what"] and found["runbook"] == "docs/runbooks/wrong-clock.md"
    control.set()


def test_manifest_that_cannot_be_read_after_a_recovery(
    tierlog_broker_factory: TierlogBrokerFactory,
) -> None:
    """The quorum was lost for good, and one voter's metadata is the cluster now."""
    broker = tierlog_broker_factory({"remote.log.manager.task.interval.ms": 200})
    create(broker, "orders", TIERED)
    produce(broker, "orders", 300)
    AdminApi(broker.admin_url).post("/v1/tier/flush", {"topic": "orders"})
    broker.stop()
    for root in broker.object_dir.glob("**/*"):
        if root.is_file() and root.suffix != ".log":
            root.write_bytes(b"damaged")
    ended = call("quorum", "recover", str(broker.data_dir), "--yes")
    assert ended.code == 0, ended
    broker.start()
    found = named(broker, "unread-manifest")
    assert found["runbook"] == "docs/runbooks/lost-majority-for-good.md"
