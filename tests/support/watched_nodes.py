"""Faults of nodes of a watched cluster: their disks, clocks, replicas and groups. See `watched_faults`."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from resource import RLIMIT_NOFILE, prlimit

import watched_cluster
from builds import changed_copy
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource
from havoc.nodes import HANGS
from mounts import read_only
from waiting import until
from watched_cluster import (
    CERTIFICATE_DAYS,
    COMPACTED,
    SMALL_DISK,
    TWO_DISKS,
    WRONG_CLOCK,
    WatchedCluster,
    in_background,
    paused_repeatedly,
)

from tierlog.cli.process import BrokerFailed, TierlogBroker
from tierlog.metadata.versions import WIRE_VERSIONS

MIB = 1 << 20
RESTART_TIMEOUT_S = 180.0
DEAD = 2
FREE_BYTES_MIN = 40 * MIB
IDLE_CONNECTIONS, SPARE_FILES = 600, 30
PAUSE_S, RUN_S = 1.6, 0.9
"""A late event loop: paused for longer than a second, and then for so long that a scrape succeeds."""

METADATA_ENTRIES = 1_100
"""More than a node may be behind."""


def group_stands_still(watched: WatchedCluster, undo: ExitStack) -> None:
    undo.callback(watched.load.consumes.set)
    watched.load.consumes.clear()


def clock_is_wrong(watched: WatchedCluster, undo: ExitStack) -> None:
    undo.callback(watched.clock.set)
    watched.clock.set(clock_s=30)


def disk_is_full(watched: WatchedCluster, undo: ExitStack) -> None:
    _fill(watched.disk, undo)


def audit_disk_is_full(watched: WatchedCluster, undo: ExitStack) -> None:
    """The disk has the audit log, too, and logins with a wrong password are not recorded."""
    disk_is_full(watched, undo)


def disk_is_low(watched: WatchedCluster, undo: ExitStack) -> None:
    """A topic fills the rest of the disk, and its uploaded segments leave it early."""
    node = str(SMALL_DISK)
    undo.callback(watched.configure, ConfigResource.Type.BROKER, node, {"log.dir.free.bytes.min": "0"})
    minimum = {"log.dir.free.bytes.min": str(FREE_BYTES_MIN)}
    watched.configure(ConfigResource.Type.BROKER, node, minimum)
    dropping = {
        "remote.storage.enable": "true",
        "remote.log.disk.pressure.policy": "drop-oldest-uploaded",
        "segment.bytes": str(MIB),
        "retention.ms": "-1",
    }
    watched.create_topic(undo, "dropping", [[SMALL_DISK]], dropping)
    watched.produce("dropping", 160, 100_000)
    watched.run("tier", "flush", "dropping")
    _fill(watched.disk, undo, leave=FREE_BYTES_MIN)

    def produce(ends: threading.Event) -> None:
        while not ends.wait(0.2):
            watched.produce("dropping", 5, 100_000)

    in_background(undo, produce)


def metadata_disk_is_low(watched: WatchedCluster, undo: ExitStack) -> None:
    """It has less than the reserve of the metadata log takes."""
    _fill(watched.metadata_disk, undo, leave=2 * MIB)


def _fill(directory: Path, undo: ExitStack, leave: int = 0) -> None:
    """Leave so many bytes of the directory's disk."""
    ballast = directory / "ballast"
    undo.callback(ballast.unlink, missing_ok=True)
    with ballast.open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while shutil.disk_usage(directory).free >= leave + size:
                    file.write(bytes(size))
            except OSError:
                continue


def directory_fails(watched: WatchedCluster, undo: ExitStack) -> None:
    """A directory that has failed stays offline until the node starts again."""
    broker = watched.cluster.nodes[TWO_DISKS]
    undo.callback(broker.start, RESTART_TIMEOUT_S)
    undo.callback(broker.kill)
    undo.enter_context(read_only(watched_cluster.second_disk(broker)))


def broker_is_dead(watched: WatchedCluster, undo: ExitStack) -> None:
    broker = watched.cluster.nodes[DEAD]
    undo.callback(broker.start, RESTART_TIMEOUT_S)
    broker.kill()


def version_is_unknown(watched: WatchedCluster, undo: ExitStack) -> None:
    """A node that skipped a release speaks no wire version of the others, and never serves."""
    after_the_next = WIRE_VERSIONS[1] + 1
    changes = {"metadata/versions.py": {"WIRE_VERSIONS": f"({after_the_next}, {after_the_next})"}}
    broker = _with_other_build(watched, undo, "skipped", changes)

    def try_to_join() -> None:
        with suppress(BrokerFailed):
            broker.start(RESTART_TIMEOUT_S)

    joining = threading.Thread(target=try_to_join)
    undo.callback(joining.join)
    undo.callback(broker.kill)
    joining.start()


def task_has_a_bug(watched: WatchedCluster, undo: ExitStack) -> None:
    """Each turn of the task that watches the disks fails."""
    changes = {"broker/maintenance/disk_pressure.py": {"CHECK_S": "None"}}
    broker = _with_other_build(watched, undo, "buggy", changes)
    undo.callback(broker.kill)
    broker.start(RESTART_TIMEOUT_S)


def _with_other_build(
    watched: WatchedCluster, undo: ExitStack, name: str, changes: Mapping[str, Mapping[str, str]]
) -> TierlogBroker:
    """A node that is killed, and starts next with other constants."""
    build = changed_copy(watched.cluster.directory.parent / name, changes)
    broker = watched.cluster.nodes[DEAD]
    broker_is_dead(watched, undo)
    undo.callback(broker.environment.pop, "PYTHONPATH")
    broker.environment["PYTHONPATH"] = str(build)
    return broker


def balancing_is_held(watched: WatchedCluster, undo: ExitStack) -> None:
    change = ("cluster", "config", "set")
    broker_is_dead(watched, undo)
    undo.callback(watched.run, *change, "auto.rebalance.enable=false")
    watched.run(*change, "auto.rebalance.enable=true", "auto.rebalance.interval.seconds=1")


def only_replica_is_dead(watched: WatchedCluster, undo: ExitStack) -> None:
    """One topic loses its only replica, another its minimum of replicas, and a third waits for its move."""
    watched.create_topic(undo, "alone", [[DEAD]])
    watched.create_topic(undo, "strict", [[1, DEAD, 3]], {"min.insync.replicas": "3"})
    watched.create_topic(undo, "moves", [[1]])
    broker_is_dead(watched, undo)
    watched.run("partition", "move", "moves", "0", "--to", str(DEAD))


def majority_is_dead(watched: WatchedCluster, undo: ExitStack) -> None:
    lost = (1, 2)
    undo.callback(watched.cluster.start, lost)
    for node in lost:
        watched.cluster.nodes[node].kill()


def move_is_stuck(watched: WatchedCluster, undo: ExitStack) -> None:
    """A throttle of 1 kB/s, at which the copy of 2 MB takes half an hour. The remedy is the alert's."""
    watched.create_topic(undo, "archive", [[3]])
    watched.produce("archive", 20, 100_000)
    move = ("partition", "move", "archive", "0", "--to", "2", "--throttle", "1000")
    moving = subprocess.Popen([sys.executable, "-m", "tierlog.cli.main", *move, *watched.options])
    undo.callback(_end_of_move, watched, moving)


def _end_of_move(watched: WatchedCluster, moving: "subprocess.Popen[bytes]") -> None:
    watched.run("partition", "unthrottle")
    assert moving.wait(60) == 0


def few_open_files(watched: WatchedCluster, undo: ExitStack) -> None:
    """Idle connections take most of the files."""
    broker = watched.cluster.nodes[DEAD]
    used, before = len(os.listdir(f"/proc/{broker.pid}/fd")), prlimit(broker.pid, RLIMIT_NOFILE)
    undo.callback(prlimit, broker.pid, RLIMIT_NOFILE, before)
    prlimit(broker.pid, RLIMIT_NOFILE, (used + IDLE_CONNECTIONS + SPARE_FILES, before[1]))
    for _ in range(IDLE_CONNECTIONS):
        undo.enter_context(socket.create_connection((broker.host, broker.port)))


def event_loop_is_late(watched: WatchedCluster, undo: ExitStack) -> None:
    process = watched.cluster.nodes[DEAD].pid
    pause, resume = (partial(os.kill, process, number) for number in (signal.SIGSTOP, signal.SIGCONT))
    paused_repeatedly(undo, pause, resume, pause_s=PAUSE_S, run_s=RUN_S)


def followers_cannot_fetch(watched: WatchedCluster, undo: ExitStack) -> None:
    """A leader receives no packets at its Kafka port."""
    port = watched.cluster.nodes[SMALL_DISK].port
    rule = ("INPUT", "-p", "tcp", "--dport", str(port), "-j", "DROP")
    subprocess.run(["iptables", "-A", *rule], check=True)
    undo.callback(subprocess.run, ["iptables", "-D", *rule], check=True)


def disk_hangs(watched: WatchedCluster, undo: ExitStack) -> None:
    """A voter's disk hangs while the others commit. This voter does not lead, since it has just started."""
    broker = watched.cluster.nodes[WRONG_CLOCK]
    undo.callback(broker.start, RESTART_TIMEOUT_S)
    undo.callback(broker.kill)
    broker.restart(RESTART_TIMEOUT_S)
    undo.callback(watched.clock.set)
    watched.clock.set(fsync=HANGS)
    for number in range(METADATA_ENTRIES):
        delay = {"file.delete.delay.ms": str(60_000 + number)}
        watched.configure(ConfigResource.Type.TOPIC, COMPACTED, delay)


def log_is_damaged(watched: WatchedCluster, undo: ExitStack) -> None:
    """Nothing can restore the only replica. Compaction begins after the damage, and finds it."""
    config = {"segment.bytes": "65536", "flush.messages": "1", "min.cleanable.dirty.ratio": "0.01"}
    watched.create_topic(undo, "ledger", [[WRONG_CLOCK]], config)
    watched.produce("ledger", 300, 1000)
    data = watched.cluster.nodes[WRONG_CLOCK].data_dir
    watched_cluster.flip(min(data.glob("ledger-0/*.log")))
    watched.configure(ConfigResource.Type.TOPIC, "ledger", {"cleanup.policy": "compact"})


def group_beyond_the_limit(watched: WatchedCluster, undo: ExitStack) -> None:
    """The offsets of the group are deleted with the topic."""
    partitions = watched_cluster.LAG_PARTITIONS_MAX + 1
    watched.create_topic(undo, "wide", [[1]] * partitions)
    consumer = Consumer({**watched.clients, "group.id": "wide"})
    undo.callback(consumer.close)
    offsets = [TopicPartition("wide", number, 0) for number in range(partitions)]

    def are_committed() -> bool:
        with suppress(KafkaException):  # its coordinator may just change
            consumer.commit(offsets=offsets, asynchronous=False)
            return True
        return False

    until(are_committed, "offsets are committed")


def certificate_ends_soon(watched: WatchedCluster, undo: ExitStack) -> None:
    undo.callback(watched.issue_certificate, CERTIFICATE_DAYS)
    watched.issue_certificate(1)


def certificate_is_unreadable(watched: WatchedCluster, undo: ExitStack) -> None:
    assert watched.cluster.security is not None
    path = watched.cluster.security.directory / "broker.pem"
    undo.callback(path.write_bytes, path.read_bytes())
    path.write_bytes(b"no certificate")
