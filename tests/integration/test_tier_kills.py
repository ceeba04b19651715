"""A broker is killed with SIGKILL at each step by which it copies, merges, compacts, spills and deletes
segments, and drops their local files: before and after each commit of the quorum, each request to the object
store, and each change of a file's name.

After each kill it is started again. In the end a consumer finds every record once and in order, the manifest
names only objects that are right, and the bucket has no others. TIER_KILL_ROUNDS: kills at each step.
"""

import asyncio
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import s3_servers
from killed_log import KEYS, TOPIC, KilledLog
from killed_process import SMALL_TREE, KillSwitch
from tier_steps import COPY, DELETE, DELETE_PAGE, DELETE_TOPIC, DROP, PARTS, REPLACE, SPILL, TRIM
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.testing import TierlogBrokerFactory
from tierlog.tiering.s3 import S3Options, S3Store

ROUNDS = int(os.environ.get("TIER_KILL_ROUNDS", "1"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 * ROUNDS)]

PREFIX = "kills"
SEGMENT_BYTES, SEGMENT_RECORDS = 1024, 10
"""A batch of so many records is larger than a segment, and gets one of its own."""

SETTINGS = {
    "remote.log.manager.task.interval.ms": 100,
    "remote.log.delete.grace.ms": 0,
    "remote.log.merge.min.segments": 0,
    "log.retention.check.interval.ms": 100,
}
COMPACTION = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01, "delete_retention_ms": 0}
SPILLED_SEGMENTS, TREE_SEGMENTS = 12, 30
MERGED_SEGMENTS = 4
LARGE_RECORDS, VALUE_BYTES = 22, 900_000
"""A segment of three parts. Each record is a batch."""


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[s3_servers.S3Server]:
    with s3_servers.running("versitygw", tmp_path) as server:
        yield server


@pytest.fixture
def log(tierlog_broker_factory: TierlogBrokerFactory, s3: s3_servers.S3Server, tmp_path: Path) -> KilledLog:
    switch = KillSwitch(tmp_path / "switch")
    switch.write_program()
    environment = {**s3_servers.CREDENTIALS, SMALL_TREE: "1"}
    broker = tierlog_broker_factory(
        SETTINGS, object_store=s3.url(PREFIX), environment=environment, python=str(switch.python)
    )
    return KilledLog([broker], switch)


def objects(s3: s3_servers.S3Server, suffix: str) -> list[str]:
    found = s3.minio_client().list_objects(s3_servers.BUCKET, prefix=f"{PREFIX}/", recursive=True)
    return [one.object_name for one in found if one.object_name.endswith(suffix)]


def upload_segments(log: KilledLog, count: int) -> None:
    for _ in range(count):
        log.produce(SEGMENT_RECORDS)
    log.flush()


def test_kills_at_each_step_of_a_copy(log: KilledLog) -> None:
    log.create_topic()
    for step in COPY * ROUNDS:
        log.start()
        log.produce(5)
        log.kill_at(step, log.flush)
    log.start()
    log.flush()
    log.check()
    assert log.kills == len(COPY) * ROUNDS


@pytest.mark.nightly
async def test_kills_at_each_step_of_an_upload_in_parts(log: KilledLog, s3: s3_servers.S3Server) -> None:
    """Parts of interrupted uploads are in no listing of objects. They are removed by their age."""

    def kill_all() -> None:
        log.create_topic()
        for _ in range(ROUNDS):
            log.start()
            for _ in range(LARGE_RECORDS):
                log.produce(1, VALUE_BYTES)
            for step in PARTS:  # the same segment is uploaded after each kill
                log.kill_at(step, log.flush)
        log.start()
        log.flush()
        log.check()

    await asyncio.to_thread(kill_all)
    assert log.kills == len(PARTS) * ROUNDS
    store = S3Store(
        S3Options.from_url(s3.url(PREFIX), access_key=s3_servers.ACCESS_KEY, secret_key=s3_servers.SECRET_KEY)
    )
    completed = ROUNDS  # one kill of each round came after the end of its upload
    assert await store.abort_uploads("", 0) == log.kills - completed - ROUNDS  # one before its begin
    assert await store.abort_uploads("", 0) == 0
    await store.close()


@pytest.mark.nightly
def test_kills_at_each_step_of_merges_and_deletions(log: KilledLog) -> None:
    log.create_topic()
    log.brokers[0].stop()
    log.brokers[0].settings["remote.log.merge.min.segments"] = MERGED_SEGMENTS
    for step in (*REPLACE, *DELETE) * ROUNDS:
        kill_at_replacement(log, step)
    log.start()
    log.check()
    [line] = AdminApi(log.brokers[0].admin_url).get("/v1/tier/status")["partitions"]
    assert line["remote_segments"] < log.kills
    assert log.kills == len(REPLACE + DELETE) * ROUNDS


@pytest.mark.nightly
def test_kills_at_each_step_of_a_compaction(log: KilledLog) -> None:
    """It replaces segments one by one, by the same steps as a merge."""
    log.create_topic(**COMPACTION)
    for step in REPLACE * ROUNDS:
        kill_at_replacement(log, step)
    log.start()
    log.find_end()
    last = log.records(range(log.end_offset - KEYS, log.end_offset))
    until(lambda: log.read() == last, "compaction does not end")
    log.check_bucket()
    assert log.read() == last
    assert log.kills == len(REPLACE) * ROUNDS


def kill_at_replacement(log: KilledLog, step: str) -> None:
    """Segments are replaced while new ones are uploaded. A copy that a kill has interrupted is abandoned as
    soon as the broker starts."""

    def fill() -> None:
        for _ in range(2 * MERGED_SEGMENTS):
            log.produce(5)
            log.flush()

    log.kill_at(step, None if "AbandonCopy" in step else fill)


@pytest.mark.nightly
def test_kills_at_each_step_of_a_spill(log: KilledLog, s3: s3_servers.S3Server) -> None:
    log.create_topic(segment_bytes=SEGMENT_BYTES)
    for step in SPILL * ROUNDS:
        log.start()
        for _ in range(SPILLED_SEGMENTS):
            log.produce(SEGMENT_RECORDS)
        log.kill_at(step, log.flush)
    log.start()
    log.flush()
    log.check()
    assert objects(s3, ".page")
    assert log.kills == len(SPILL) * ROUNDS


@pytest.mark.nightly
def test_kills_at_each_step_of_the_deletion_of_pages(log: KilledLog, s3: s3_servers.S3Server) -> None:
    log.create_topic(segment_bytes=SEGMENT_BYTES)
    for number, step in enumerate((*TRIM, *DELETE_PAGE) * ROUNDS):
        log.start()
        upload_segments(log, TREE_SEGMENTS)
        begin = log.start_offset
        inner = begin + (log.end_offset - begin) // 3 // SEGMENT_RECORDS * SEGMENT_RECORDS
        deletes_pages = number % len(TRIM + DELETE_PAGE) >= len(TRIM)
        before = log.end_offset - SEGMENT_RECORDS if deletes_pages else inner
        log.kill_at(step, partial(log.delete_records, before))
        log.start()
        log.delete_records(before)  # the broker perhaps ended before its commit
    log.check()
    assert log.kills == len(TRIM + DELETE_PAGE) * ROUNDS


@pytest.mark.nightly
def test_kills_at_each_step_of_the_deletion_of_a_topic(log: KilledLog, s3: s3_servers.S3Server) -> None:
    for _ in range(ROUNDS):
        log.create_topic(segment_bytes=SEGMENT_BYTES)
        upload_segments(log, SPILLED_SEGMENTS)
        first, *others = DELETE_TOPIC
        log.kill_at(first, log.delete_topic)
        log.start()
        log.check()
        log.kill_at(others[0], log.delete_topic)
        for step in others[1:]:
            log.kill_at(step)
        log.start()
        log.check_bucket()
        assert [one for one in objects(s3, "") if not one.endswith("/cluster.json")] == []
    assert log.kills == len(DELETE_TOPIC) * ROUNDS


@pytest.mark.nightly
def test_kills_at_each_step_of_a_local_deletion(log: KilledLog) -> None:
    log.create_topic(segment_bytes=SEGMENT_BYTES, file_delete_delay_ms=0)
    for step in DROP * ROUNDS:
        log.start()
        for _ in range(5):
            log.produce(SEGMENT_RECORDS)
        log.kill_at(step, log.flush)
    log.start()
    log.flush()
    partition = log.brokers[0].data_dir / f"{TOPIC}-0"

    def offsets() -> set[str]:
        return {path.name[:20] for path in partition.iterdir() if path.name[:1] == "0"}

    until(lambda: offsets() == {f"{log.end_offset:020d}"}, "local files stay")
    log.check()
    assert log.kills == len(DROP) * ROUNDS
