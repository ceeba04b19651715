"""Faults of a watched cluster, and the alerts that each of them raises.

The tests of each change cause those in EACH_CHANGE; for those in NIGHTLY there is time at night only.
A fault registers how to undo each harm before it does it, so that a test which fails leaves none behind.
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from io import BytesIO

import s3_servers
from cli_inline import call
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from mounts import read_only
from watched_cluster import CERTIFICATE_DAYS, TWO_DISKS, WatchedCluster, second_disk

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


def audit_disk_is_full(watched: WatchedCluster, undo: ExitStack) -> None:
    """The disk has the audit log, too, and logins with a wrong password are not recorded."""
    disk_is_full(watched, undo)


def directory_fails(watched: WatchedCluster, undo: ExitStack) -> None:
    """A directory that has failed stays offline until the node starts again."""
    broker = watched.cluster.nodes[TWO_DISKS]
    undo.callback(broker.start, RESTART_TIMEOUT_S)
    undo.callback(broker.kill)
    undo.enter_context(read_only(second_disk(broker)))


def bucket_is_down(watched: WatchedCluster, undo: ExitStack) -> None:
    undo.callback(watched.store.start)
    watched.store.kill()


def stray_object(watched: WatchedCluster, undo: ExitStack) -> None:
    store = watched.store.minio_client()
    names = (one.object_name or "" for one in store.list_objects(s3_servers.BUCKET, recursive=True))
    [cluster] = {name.rpartition("/")[0] for name in names if name.endswith("/cluster.json")}
    stray = f"{cluster}/stray"
    undo.callback(watched.scrub_bucket)
    undo.callback(store.remove_object, s3_servers.BUCKET, stray)
    store.put_object(s3_servers.BUCKET, stray, BytesIO(b"1"), 1)
    watched.scrub_bucket()


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


def certificate_ends_soon(watched: WatchedCluster, undo: ExitStack) -> None:
    undo.callback(watched.issue_certificate, CERTIFICATE_DAYS)
    watched.issue_certificate(1)


def certificate_is_unreadable(watched: WatchedCluster, undo: ExitStack) -> None:
    assert watched.cluster.security is not None
    path = watched.cluster.security.directory / "broker.pem"
    undo.callback(path.write_bytes, path.read_bytes())
    path.write_bytes(b"no certificate")


Fault = Callable[[WatchedCluster, ExitStack], None]
EACH_CHANGE: dict[Fault, set[str]] = {
    group_stands_still: {"TierlogGroupLag"},
    clock_is_wrong: {"TierlogClockSkew"},
    disk_is_full: {"TierlogDiskFull", "TierlogUnderReplicated"},
    bucket_is_down: {"TierlogObjectStoreUnavailable"},
    broker_is_dead: {"TierlogNodeDown", "TierlogBrokerFenced", "TierlogUnderReplicated"},
    majority_is_dead: {"TierlogNoController"},
}

NIGHTLY: dict[Fault, set[str]] = {
    audit_disk_is_full: {"TierlogAuditEntriesLost"},
    directory_fails: {"TierlogDirectoryOffline"},
    certificate_ends_soon: {"TierlogCertificateExpiresSoon"},
    certificate_is_unreadable: {"TierlogCertificateNotReloaded"},
    stray_object: {"TierlogUnknownObjects"},
    move_is_stuck: {"TierlogMoveStuck"},
}
FAULTS = {**EACH_CHANGE, **NIGHTLY}
