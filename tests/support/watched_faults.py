"""Faults of a watched cluster, and the alerts that each of them raises.

A fault registers how to undo each harm before it does it, so that a test which fails leaves none behind.
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack

from cli_inline import call
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from watched_cluster import WatchedCluster

MIB = 1 << 20
RESTART_TIMEOUT_S = 180.0


def group_stands_still(watched: WatchedCluster, undo: ExitStack) -> None:
    undo.callback(watched.load.consumes.set)
    watched.load.consumes.clear()


def clock_is_wrong(watched: WatchedCluster, undo: ExitStack) -> None:
    undo.callback(watched.clock.set)
    watched.clock.set(clock_s=30)


def disk_is_full(watched: WatchedCluster, undo: ExitStack) -> None:
    ballast = watched.disk / "ballast"
    undo.callback(ballast.unlink, missing_ok=True)
    with ballast.open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def bucket_is_down(watched: WatchedCluster, undo: ExitStack) -> None:
    undo.callback(watched.store.start)
    watched.store.kill()


def broker_is_dead(watched: WatchedCluster, undo: ExitStack) -> None:
    broker = watched.cluster.nodes[2]
    undo.callback(broker.start, RESTART_TIMEOUT_S)
    broker.kill()


def majority_is_dead(watched: WatchedCluster, undo: ExitStack) -> None:
    lost = (1, 2)
    undo.callback(watched.cluster.start, lost)
    for node in lost:
        watched.cluster.nodes[node].kill()


def move_is_stuck(watched: WatchedCluster, undo: ExitStack) -> None:
    """A throttle of 1 kB/s, at which the copy of 2 MB takes half an hour. The remedy is the alert's."""
    admin = AdminClient(watched.clients)
    admin.create_topics([NewTopic("archive", 1, replica_assignment=[[3]])])["archive"].result(60)
    producer = Producer(watched.clients)
    for _ in range(20):
        producer.produce("archive", bytes(100_000))
    assert producer.flush(60) == 0
    move = ("partition", "move", "archive", "0", "--to", "2", "--throttle", "1000")
    moving = subprocess.Popen([sys.executable, "-m", "tierlog.cli.main", *move, *watched.options])
    undo.callback(_end_of_move, watched, moving)


def _end_of_move(watched: WatchedCluster, moving: "subprocess.Popen[bytes]") -> None:
    ended = call("partition", "unthrottle", *watched.options)
    assert ended.code == 0, ended.stderr
    assert moving.wait(60) == 0


Fault = Callable[[WatchedCluster, ExitStack], None]
FAULTS: dict[Fault, set[str]] = {
    group_stands_still: {"TierlogGroupLag"},
    clock_is_wrong: {"TierlogClockSkew"},
    disk_is_full: {"TierlogDiskFull", "TierlogUnderReplicated"},
    bucket_is_down: {"TierlogObjectStoreUnavailable"},
    broker_is_dead: {"TierlogNodeDown", "TierlogBrokerFenced", "TierlogUnderReplicated"},
    majority_is_dead: {"TierlogNoController"},
    move_is_stuck: {"TierlogMoveStuck"},
}
NIGHTLY = {move_is_stuck}
"""Faults whose alert waits for hours, which are minutes here."""
