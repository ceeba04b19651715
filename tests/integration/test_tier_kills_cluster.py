"""The leader of a tiered partition is killed with SIGKILL at each step by which it copies, merges, compacts
and spills segments, or the broker that deletes them. Another one becomes leader at once, and finds what was
left behind.

While the killed broker is down, the new leader uploads, and every record can be read. In the end the manifest
names only objects that are right, and the bucket has no others. TIER_KILL_ROUNDS: kills at each step.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import s3_servers
from confluent_kafka.admin import AdminClient
from killed_log import KEYS, TOPIC, KilledLog
from killed_process import SMALL_TREE, KillSwitch
from tier_steps import COPY, DELETE, REPLACE, SPILL
from waiting import until

from tierlog.cli.errors import CliError
from tierlog.cli.local_cluster import LocalCluster

ROUNDS = int(os.environ.get("TIER_KILL_ROUNDS", "1"))
pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900 * ROUNDS)]

NODES = 3
SETTINGS = {
    "remote.log.manager.task.interval.ms": 100,
    "remote.log.delete.grace.ms": 0,
    "min.insync.replicas": 2,
}
STEP_S = 1.0  # for a step that follows an upload; if it does not come, there is another upload


class Case(NamedTuple):
    steps: tuple[str, ...]
    merged_segments: int  # 0: nothing is merged
    config: Mapping[str, object]


COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01, "delete_retention_ms": 0}
REPLACE_BY_LEADER = tuple(step for step in REPLACE if "AbandonCopy" not in step)
CASES = {
    "copy": Case(COPY, 0, {}),
    "merge": Case(REPLACE_BY_LEADER + DELETE, 4, {}),
    "compaction": Case(REPLACE_BY_LEADER, 0, COMPACTED),
    "spill": Case(SPILL, 0, {}),
}


@contextmanager
def running(directory: Path, merged_segments: int) -> Iterator[KilledLog]:
    switch = KillSwitch(directory / "switch")
    switch.write_program()
    with s3_servers.running("versitygw", directory) as s3:
        settings = {
            **SETTINGS,
            "object.store.url": s3.url("kills"),
            "remote.log.merge.min.segments": merged_segments,
        }
        environment = {**s3_servers.CREDENTIALS, SMALL_TREE: "1"}
        with LocalCluster(
            directory / "cluster", NODES, settings, environment=environment, python=str(switch.python)
        ) as cluster:
            yield KilledLog(list(cluster), switch)


def await_in_sync(log: KilledLog) -> None:
    admin = AdminClient({"bootstrap.servers": log.bootstrap})

    def is_in_sync() -> bool:
        partition = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[0]
        return len(partition.isrs) == NODES and partition.leader >= 0

    until(is_in_sync, "not all replicas are in sync")


def kill_at(log: KilledLog, step: str) -> None:
    """Upload until a broker is killed at the step. The others continue without it."""
    log.start()
    await_in_sync(log)
    for _ in range(50):
        log.produce(5)
        log.switch.arm(step)
        with suppress(CliError, OSError):
            log.flush()
        with suppress(AssertionError):
            until(lambda: log.switch.has_killed, step, within_s=STEP_S)
        if log.switch.disarm():
            break
    log.await_kill(step)
    log.produce(5)
    log.flush()


def records_left(log: KilledLog) -> int:
    """Number of the records of a valid compacted log, or of all records of one that is not compacted."""
    found = log.read()
    assert found == log.records([offset for offset, _, _ in found])
    last = range(log.end_offset - KEYS, log.end_offset)
    assert found[-KEYS:] == log.records(last)
    return len(found)


@pytest.mark.parametrize("name", CASES)
def test_another_broker_leads_after_a_kill_at_each_step(tmp_path: Path, name: str) -> None:
    steps, merged_segments, config = CASES[name]
    with running(tmp_path, merged_segments) as log:
        log.create_topic(**config)
        for step in steps * ROUNDS:
            kill_at(log, step)
            assert records_left(log) == log.end_offset or name == "compaction"
        log.start()
        await_in_sync(log)
        log.flush()
        if name == "compaction":
            until(lambda: records_left(log) == KEYS, "compaction does not end")
        log.check_bucket()
        assert records_left(log) == (KEYS if name == "compaction" else log.end_offset)
        assert log.kills == len(steps) * ROUNDS
