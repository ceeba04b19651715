"""`tier verify`, `tier gc` and the bucket scrubber, of a real broker with a real S3 server whose files change
behind its back."""

import io
import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
import s3_servers
from cli_inline import json_output, run
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from scraping import metric, wait_for_metric
from waiting import until
from wire_client import Client

from tierlog.cli.admin import AdminApi
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker

pytestmark = pytest.mark.timeout(120)

START_MS = 1_700_000_000_000
SEGMENTS = 4
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "65536",
    "local.retention.ms": "0",
    "retention.ms": "-1",
}


@pytest.fixture
def prefix() -> str:
    return f"checks-{uuid.uuid4()}"


@pytest.fixture
def bucket(s3, prefix) -> Path:
    return s3.directory / "data" / s3_servers.BUCKET / prefix


@pytest.fixture
def broker(tierlog_broker_factory, s3, prefix) -> TierlogBroker:
    settings = {
        "remote.log.manager.task.interval.ms": 200,
        "remote.log.scrub.max.requests.per.second": 1000,
        "remote.log.scrub.max.bytes.per.second": 1 << 30,
    }
    broker = tierlog_broker_factory(settings, object_store=s3.url(prefix), environment=s3_servers.CREDENTIALS)
    fill(broker, "orders")
    return broker


def fill(broker: TierlogBroker, topic: str) -> None:
    """Create a topic with SEGMENTS segments, all of them remote."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=TIERED)])[topic].result(60)
    fill_more(broker, topic)


def fill_more(broker: TierlogBroker, topic: str) -> None:
    client = Client(broker.bootstrap)
    for batch in range(5 * SEGMENTS):
        new = [NewRecord(START_MS, b"k", b"%0100d" % (batch * 100 + n), ()) for n in range(100)]
        assert client.produce(topic, encode_batch(new)).error_code == ErrorCode.NONE
    client.close()
    AdminApi(broker.admin_url, timeout_s=60).post("/v1/tier/flush", {"topic": topic})


def verify(broker: TierlogBroker, *words: str, code: int = 0) -> Any:
    return json_output("tier", "verify", *words, "--admin", broker.admin_url, code=code)[0]


def audit(broker: TierlogBroker) -> Any:
    return json_output("tier", "gc", "--dry-run", "--admin", broker.admin_url)[0]


def objects(bucket: Path, suffix: str) -> list[Path]:
    return sorted(bucket.glob(f"**/data/**/*{suffix}"))


def put(s3, bucket: Path, path: Path, data: bytes) -> None:
    """Put an object, as another writer would."""
    key = str(path.relative_to(bucket.parent))
    s3.minio_client().put_object(s3_servers.BUCKET, key, io.BytesIO(data), len(data))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def scrub(broker: TierlogBroker) -> dict[str, Any]:
    """Run a pass. Returns the scrubber's state."""
    api = AdminApi(broker.admin_url)
    passes = api.get("/v1/tier/scrub")["passes"]
    api.post("/v1/tier/scrub", {})
    wait_for_metric(broker, passes + 1, "tierlog_remote_scrub_passes_total")
    state: dict[str, Any] = api.get("/v1/tier/scrub")
    return state


def test_verify_reads_every_segment(broker, bucket) -> None:
    size = sum(path.stat().st_size for path in objects(bucket, ".log"))
    found = {"segments": SEGMENTS, "bytes": size, "errors": [], "manifests": [], "without_leader": []}
    assert verify(broker) == found


def test_verify_reports_a_flipped_byte_a_missing_and_a_shortened_object(broker, bucket) -> None:
    logs, indexes = objects(bucket, ".log"), objects(bucket, ".idx")
    flip(logs[0])
    logs[1].unlink()
    indexes[2].write_bytes(indexes[2].read_bytes()[:-1])
    found = verify(broker, "orders", code=1)
    assert [error["base_offset"] for error in found["errors"]] == [0, 500, 1000]
    assert "is missing" in found["errors"][1]["error"]
    assert found["segments"] == SEGMENTS
    damaged = AdminApi(broker.admin_url).get("/v1/tier/damaged")["damaged"]
    assert {row["first_offset"] for row in damaged} == {0, 500, 1000}
    assert metric(broker, "tierlog_remote_quarantined_objects") == 3


def test_verify_continues_where_an_interrupted_run_ended(broker, tmp_path) -> None:
    state = tmp_path / "progress"
    done = {"orders-0": 1000}
    state.write_text(
        json.dumps(
            {
                "sample": 100.0,
                "topic": None,
                "seed": 1,
                "done": done,
                "segments": 2,
                "bytes": 10,
                "errors": [],
            }
        )
    )
    assert (
        run("tier", "verify", "orders", "--resume", str(state), "--admin", broker.admin_url).returncode == 2
    )
    found = verify(broker, "--resume", str(state))
    assert (found["segments"], found["bytes"]) == (SEGMENTS, 10 + 2 * 55485)
    assert not state.exists()


def test_verify_of_a_topic_that_is_not_uploaded_says_so(broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("new", 1, 1, config=TIERED)])["new"].result(60)
    ended = run("tier", "verify", "new", "--admin", broker.admin_url)
    assert ended.returncode == 1
    assert "is uploaded yet" in ended.stderr and "tierlog tier flush new" in ended.stderr
    assert run("tier", "verify", "missing", "--admin", broker.admin_url).returncode != 1


def test_sample_verifies_some_segments(broker) -> None:
    assert verify(broker, "--sample", "0.001")["segments"] == 0


def test_gc_shows_queued_and_unknown_objects_and_deletes_nothing(broker, s3, bucket) -> None:
    before = audit(broker)
    assert before["objects"]["unknown"] == 0
    assert before["objects"]["listed"] >= 2 * SEGMENTS + 3  # root and documents
    [place] = {path.parent for path in objects(bucket, ".log")}
    orphan = place / f"{0:020}-{9:020}-0-{uuid.uuid4()}.log"
    put(s3, bucket, orphan, b"12345")
    put(s3, bucket, bucket / "stray", b"1")  # belongs to no cluster
    [cluster] = [path.parent for path in bucket.glob("*/cluster.json")]
    put(s3, bucket, cluster / "stray", b"123")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    [deleted] = admin.delete_records([TopicPartition("orders", 0, 1000)]).values()
    deleted.result(60)
    wait_for_metric(broker, 2, "tierlog_remote_delete_queue_size")
    found = audit(broker)
    assert found["objects"]["queued"] == 4
    assert (found["objects"]["unknown"], found["bytes"]["unknown"]) == (2, 8)
    assert {Path(one["object"]).name for one in found["unknown"]} == {orphan.name, "stray"}
    assert orphan.exists() and len(objects(bucket, ".log")) == SEGMENTS + 1
    assert run("tier", "gc", "--admin", broker.admin_url).returncode == 2


def test_gc_says_how_many_names_it_leaves_out(broker, s3, bucket) -> None:
    [cluster] = [path.parent for path in bucket.glob("*/cluster.json")]
    for number in range(23):
        put(s3, bucket, cluster / f"stray-{number:02}", b"1")
    ended = run("tier", "gc", "--dry-run", "--admin", broker.admin_url)
    assert "3 more" in ended.stderr + ended.stdout
    assert len(audit(broker)["unknown"]) == 23


def test_objects_of_a_deleted_topic_are_queued(broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["orders"])["orders"].result(60)
    wait_for_metric(broker, 1, "tierlog_remote_delete_queue_size")
    found = audit(broker)["objects"]
    assert found["queued"] >= 2 * SEGMENTS
    assert found["unknown"] == 0


def test_scrubber_compares_both_directions(broker, s3, bucket) -> None:
    state = scrub(broker)
    assert (state["segments"], state["damaged"], state["progress"]) == (SEGMENTS, 0, 1.0)
    assert state["read_bytes"] == SEGMENTS * 55485
    assert state["audit"]["objects"]["unknown"] == 0
    logs = objects(bucket, ".log")
    flip(logs[0])
    logs[1].unlink()
    put(s3, bucket, logs[2].parent / f"{0:020}-{9:020}-0-{uuid.uuid4()}.idx", b"12")
    state = scrub(broker)
    assert state["damaged"] == 2
    assert state["audit"]["objects"]["unknown"] == 1
    assert metric(broker, "tierlog_remote_scrub_damaged_segments") == 2
    assert metric(broker, "tierlog_remote_unknown_bytes") == 2
    assert metric(broker, "tierlog_remote_quarantined_objects") == 2
    [line] = [one for one in broker.log_tail().splitlines() if "the bucket lacks" in one]
    assert "segments=2" in line


def manifests(bucket: Path) -> list[Path]:
    """The root, cluster.json and the topic's document."""
    return [next(bucket.glob(pattern)) for pattern in ("**/root", "*/cluster.json", "*/topics/*.json")]


def wait_for_content(contents: dict[Path, bytes]) -> None:
    """Wait until these objects are written again."""
    until(lambda: all(path.exists() for path in contents), "not written again")


def test_scrubber_notices_roots_and_documents_and_the_broker_writes_them_again(broker, bucket) -> None:
    paths = manifests(bucket)
    contents = {path: path.read_bytes() for path in paths}
    assert scrub(broker)["manifests"] == []
    paths[0].unlink()
    flip(paths[1])
    paths[2].unlink()
    rows = scrub(broker)["manifests"]
    assert {(Path(row["object"]).name, row["fault"]) for row in rows} == {
        ("root", "missing"),
        ("cluster.json", "damaged"),
        (paths[2].name, "missing"),
    }
    assert metric(broker, "tierlog_remote_scrub_manifest_faults") == 3
    assert metric(broker, "tierlog_remote_manifest_faults_total") == 3
    health = json_output("cluster", "health", "--admin", broker.admin_url, code=5)[0]
    assert "root (missing)" in health["problems"][0]["what"]
    wait_for_content(contents)
    assert scrub(broker)["manifests"] == []
    assert paths[1].read_bytes() == contents[paths[1]]
    assert "manifest.wrong" in broker.log_tail()


def test_verify_and_gc_notice_a_root_of_an_older_copy(broker, s3, bucket) -> None:
    [root, _, topic] = manifests(bucket)
    old = root.read_bytes()
    fill_more(broker, "orders")
    assert root.read_bytes() != old
    put(s3, bucket, root, old)
    [row] = verify(broker, "orders", code=1)["manifests"]
    assert (row["topic"], row["partition"], row["fault"]) == ("orders", 0, "outdated")
    until(lambda: root.read_bytes() != old, "not written again")
    assert verify(broker, "orders")["manifests"] == []
    topic.unlink()
    [row] = audit(broker)["manifests"]
    assert (Path(row["object"]).name, row["fault"]) == (topic.name, "missing")
    wait_for_content({topic: b""})
    assert audit(broker)["manifests"] == []


def test_topic_of_a_lost_bucket_continues_after_its_local_records(broker, bucket) -> None:
    """docs/runbooks/bucket-lost.md, without a copy of the bucket."""
    for name in ("data", "manifests"):
        [directory] = bucket.glob(f"*/{name}")
        shutil.rmtree(directory)
    assert len(verify(broker, code=1)["errors"]) == SEGMENTS
    options = ("-c", "remote.storage.enable=false", "-c", "remote.log.delete.on.disable=true")
    assert run("topic", "alter", "orders", *options, "--bootstrap", broker.bootstrap).returncode == 0
    api = AdminApi(broker.admin_url, timeout_s=60)
    for _ in api.changes():
        if not api.get("/v1/tier/status", topic="orders")["partitions"]:
            break
    client = Client(broker.bootstrap)
    new = encode_batch([NewRecord(START_MS, b"k", b"after", ())])
    assert client.produce("orders", new).error_code == ErrorCode.NONE
    [lost] = client.fetch("orders", 0).responses[0].partitions
    [kept] = client.fetch("orders", 2000).responses[0].partitions
    client.close()
    assert lost.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert kept.error_code == ErrorCode.NONE and kept.records
    assert (
        run(
            "topic", "alter", "orders", "-c", "remote.storage.enable=true", "--bootstrap", broker.bootstrap
        ).returncode
        == 0
    )
    api.post("/v1/tier/flush", {"topic": "orders"})
    assert verify(broker)["segments"] == 1
