"""Runs the commands of the tier's runbooks, in their order, on a broker with a real S3 server that has the
failure."""

import asyncio
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3_servers
from confluent_kafka.admin import AdminClient, NewTopic
from docs_pages import ROOT
from scraping import metric
from tier_node import TierNode, produce
from waiting import until
from wire_client import Client

from tierlog.cli.admin import AdminApi
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker
from tierlog.tiering.s3 import S3Options, S3Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

BLOCK = r"^ *```console tier {}\n(.*?)^ *```$"
START_MS = 1_700_000_000_000
CONFIG = {
    "remote.storage.enable": "true",
    "segment.bytes": "65536",
    "local.retention.ms": "-1",
    "retention.ms": "-1",
}
KEYS = {"access_key": s3_servers.ACCESS_KEY, "secret_key": s3_servers.SECRET_KEY}
HEALTHY, FAILED, DEGRADED, UNAVAILABLE = 0, 1, 5, 6


@pytest.fixture
def server(tmp_path: Path) -> Iterator[s3_servers.S3Server]:
    with s3_servers.running("versitygw", tmp_path) as server:
        yield server


@pytest.fixture
def broker(tierlog_broker_factory, server) -> TierlogBroker:
    """Its topic `orders` has four segments, local and remote."""
    settings = {"remote.log.manager.task.interval.ms": 200}
    url = server.url("runbook")
    broker = tierlog_broker_factory(settings, object_store=url, environment=s3_servers.CREDENTIALS)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("orders", 1, 1, config=CONFIG)])["orders"].result(60)
    fill(broker)
    assert follow(broker, "bucket-down", "back") == [(HEALTHY, ""), (0, "idle"), (0, "0 errors")]
    return broker


def fill(broker: TierlogBroker, *, flush: bool = True) -> None:
    client = Client(broker.bootstrap)
    for _ in range(20):
        new = [NewRecord(START_MS, b"k", b"%0100d" % number, ()) for number in range(100)]
        assert client.produce("orders", encode_batch(new)).error_code == ErrorCode.NONE
    client.close()
    if flush:
        AdminApi(broker.admin_url, timeout_s=60).post("/v1/tier/flush", {"topic": "orders"})


class Outcome(tuple[int, str]):
    """Exit code and output of a command. Equal to a pair whose text is part of the output."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and self[0] == other[0] and other[1] in self[1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


def follow(broker: TierlogBroker, page: str, step: str) -> list[Any]:
    """Run the commands of one step of a page."""
    text = (ROOT / f"docs/runbooks/{page}.md").read_text(encoding="utf-8")
    [block] = re.findall(BLOCK.format(step), text, re.MULTILINE | re.DOTALL)
    environment = {
        **os.environ,
        "TIERLOG_ADMIN": broker.admin_url,
        "TIERLOG_BOOTSTRAP": broker.bootstrap,
        "COLUMNS": "400",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    found = []
    for command in re.findall(r"^ *\$ (.*)$", block, re.MULTILINE):
        words = command.replace("http://127.0.0.1:9644", broker.admin_url)
        words = words.replace("tierlog ", f"{sys.executable} -m tierlog.cli.main ", 1)
        ended = subprocess.run(
            words, shell=True, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        found.append(Outcome((ended.returncode, ended.stdout + ended.stderr)))
    return found


def objects(server: s3_servers.S3Server, pattern: str) -> list[Path]:
    return sorted((server.directory / "data" / s3_servers.BUCKET / "runbook").glob(pattern))


def test_bucket_is_down(broker, server) -> None:
    server.kill()
    fill(broker, flush=False)
    until(lambda: metric(broker, "tierlog_object_store_available") == 0, "the breaker does not open")
    assert follow(broker, "bucket-down", "down") == [
        (DEGRADED, "the object store is unavailable"),
        (0, "Log directories"),
        (0, "Connection refused"),
        (0, '"available": false'),
    ]
    server.start()
    until(lambda: metric(broker, "tierlog_object_store_available") == 1, "the breaker does not close")
    AdminApi(broker.admin_url, timeout_s=60).post("/v1/tier/flush", {"topic": "orders"})
    assert follow(broker, "bucket-down", "back") == [(HEALTHY, ""), (0, "idle"), (0, "0 errors")]


def test_bucket_is_restored_from_an_older_copy(broker, server) -> None:
    client = server.minio_client()
    [root] = objects(server, "**/root")
    key = str(root.relative_to(root.parents[len(root.parts) - len(server.directory.parts) - 3]))
    old = root.read_bytes()
    fill(broker)
    new = root.read_bytes()
    client.put_object(s3_servers.BUCKET, key, io.BytesIO(old), len(old))
    first, second = follow(broker, "bucket-lost", "restored")
    assert first == (FAILED, "outdated")
    assert second == (0, "0 errors")
    assert root.read_bytes() != old and len(root.read_bytes()) >= len(new) - 64


def test_bucket_is_lost_and_there_is_no_copy(broker, server) -> None:
    for path in objects(server, "*/*/**/*"):
        if path.is_file():
            path.unlink()
    assert follow(broker, "bucket-lost", "lost") == [(0, "")]
    api = AdminApi(broker.admin_url)
    until(lambda: not api.get("/v1/tier/status", topic="orders")["partitions"], "still remote")
    fill(broker, flush=False)
    assert follow(broker, "bucket-lost", "new") == [(0, ""), (0, "completely uploaded"), (0, "0 errors")]


def drop_local(broker: TierlogBroker) -> None:
    """Only the bucket has the records then: the leader cannot restore an object from its own log."""
    assert [code for code, _ in follow(broker, "full-disk", "free")] == [0, 0, 0]
    api = AdminApi(broker.admin_url)

    def local_start() -> int:
        [row] = api.get("/v1/tier/status", topic="orders")["partitions"]
        return int(row["local_log_start_offset"])

    until(lambda: local_start() == 2000, "the uploaded segments do not leave the disk")


def test_wrong_bytes_are_put_back_from_a_good_version(broker, server) -> None:
    drop_local(broker)
    [path, *_] = objects(server, "**/*.log")
    right = path.read_bytes()
    wrong = bytearray(right)
    wrong[len(wrong) // 2] ^= 1
    path.write_bytes(wrong)
    assert follow(broker, "damaged-object", "damaged") == [
        (FAILED, "Damage"),
        (0, path.name),
        (UNAVAILABLE, "damaged objects"),
    ]
    path.write_bytes(right)
    assert follow(broker, "damaged-object", "repaired") == [(0, "0 errors"), (HEALTHY, "")]


def test_disk_is_full(broker) -> None:
    assert follow(broker, "full-disk", "full") == [(0, "Log directories"), (0, "partition"), (0, "orders")]
    drop_local(broker)


async def test_wrong_clock_is_named_by_a_real_store(
    server: s3_servers.S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store refuses signatures of another time. `tier status` shows its error, which the page names."""
    import datetime

    import botocore.auth

    now = botocore.auth.get_current_datetime
    ahead = datetime.timedelta(minutes=20)
    monkeypatch.setattr(
        botocore.auth, "get_current_datetime", lambda *args, **more: now(*args, **more) + ahead
    )
    store = S3Store(S3Options.from_url(server.url("clock"), **KEYS))
    async with TierNode(tmp_path / "node", store) as node:
        replica = await node.create("t")
        produce(replica, 60)
        failed = asyncio.Event()
        node.log_manager.listeners.append(lambda where: failed.set())
        node.log_manager.wake_all()
        await failed.wait()
        [status] = await node.log_manager.status()
        assert "RequestTimeTooSkewed" in str(status.last_error)
        assert "RequestTimeTooSkewed" in (ROOT / "docs/runbooks/wrong-clock.md").read_text(encoding="utf-8")
        monkeypatch.setattr(botocore.auth, "get_current_datetime", now)
        await node.log_manager.flush("t")
        assert node.remote(replica).end_offset == replica.log_end_offset
    await store.close()


def test_clock_step_runs(broker) -> None:
    assert follow(broker, "wrong-clock", "clock") == [(0, "UTC"), (0, "idle")]
