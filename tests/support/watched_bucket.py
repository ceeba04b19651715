"""Faults of the bucket of a watched cluster, and of the server that has it. See `watched_faults`."""

import threading
from contextlib import ExitStack, suppress
from io import BytesIO
from pathlib import Path

import s3_servers
import watched_cluster
from confluent_kafka import Consumer, Producer, TopicPartition
from waiting import until
from watched_cluster import SLOW_LINK, TIMEOUT_S, WatchedCluster, in_background, paused_repeatedly

HISTORY = "history"
IN_THE_BUCKET = {"remote.storage.enable": "true", "local.retention.ms": "0", "retention.ms": "-1",
                 "file.delete.delay.ms": "0"}  # fmt: skip
MERGED_SEGMENTS = 8
"""As many small segments as are merged into one (remote.log.merge.min.segments)."""

PAUSE_S, RUN_S = 7.0, 1.0
"""A slow store: requests wait for longer than five seconds, but a probe gets its response within eight."""

RECORDS = 10

FLAPPING_PARTITIONS, FLAPPING_RECORDS = 12, 3
"""Enough uploads that fail to notice an outage."""

WIDE = "wide"
WIDE_PARTITIONS, CONSUMERS = 60, 20
"""Together more readers than may wait for the object store."""


def bucket_is_down(watched: WatchedCluster, undo: ExitStack) -> None:
    undo.callback(watched.store.start)
    watched.store.kill()


def bucket_stays_down(watched: WatchedCluster, undo: ExitStack) -> None:
    bucket_is_down(watched, undo)


def bucket_is_slow(watched: WatchedCluster, undo: ExitStack) -> None:
    """Requests wait for seconds, and then succeed."""
    paused_repeatedly(undo, watched.store.pause, watched.store.resume, pause_s=PAUSE_S, run_s=RUN_S)


def link_is_slow(watched: WatchedCluster, undo: ExitStack) -> None:
    """The upload of 40 MiB has five parts of 28 s, two at a time. Longer ones would fail."""
    segments = {"remote.storage.enable": "true", "segment.bytes": str(40 << 20)}
    watched.create_topic(undo, "slow", [[SLOW_LINK]], segments)
    undo.callback(watched.link.slow.clear)
    watched.link.slow.set()
    _produce_evenly(watched, "slow", 1, 90, 500_000)


def bucket_flaps(watched: WatchedCluster, undo: ExitStack) -> None:
    """One outage after the other. A broker notices each, because its uploads fail."""
    small = {"remote.storage.enable": "true", "segment.bytes": "10000"}
    watched.create_topic(undo, "flapping", [[1]] * FLAPPING_PARTITIONS, small)

    def until_available(wanted: bool) -> None:
        until(lambda: watched.get(1, "/v1/tier/store")["available"] is wanted, f"available: {wanted}")

    def fail_repeatedly(ends: threading.Event) -> None:
        while not ends.is_set():
            watched.store.kill()
            try:
                _produce_evenly(watched, "flapping", FLAPPING_PARTITIONS, FLAPPING_RECORDS, 5_000)
                until_available(False)
            finally:
                watched.store.start()
            until_available(True)

    in_background(undo, fail_repeatedly)


def many_readers_wait(watched: WatchedCluster, undo: ExitStack) -> None:
    """Consumers want more from a bucket that hangs than a broker lets wait for it. After 11 s the breaker is
    open, and no read waits any more."""
    watched.create_topic(undo, WIDE, [[3]] * WIDE_PARTITIONS, IN_THE_BUCKET)
    _produce_evenly(watched, WIDE, WIDE_PARTITIONS, 1, 100)
    watched.run("tier", "flush", WIDE)
    _await_only_remote(watched, WIDE)
    undo.callback(watched.store.resume)
    watched.store.pause()
    for _ in range(CONSUMERS):
        _read(watched, undo, [TopicPartition(WIDE, number, 0) for number in range(WIDE_PARTITIONS)])


def _produce_evenly(watched: WatchedCluster, topic: str, partitions: int, count: int, size: int) -> None:
    """So many records to each partition."""
    producer = Producer(watched.clients)
    for number in range(partitions * count):
        producer.produce(topic, bytes(size), partition=number % partitions)
    assert producer.flush(TIMEOUT_S) == 0


def history_is_unreadable(watched: WatchedCluster, undo: ExitStack) -> None:
    """A consumer wants records that are only in the bucket, and that no broker has read yet."""
    _create_history(watched, undo)
    bucket_is_down(watched, undo)
    _read(watched, undo, [TopicPartition(HISTORY, 0, 0)])


def object_is_damaged(watched: WatchedCluster, undo: ExitStack) -> None:
    """A merge reads the damaged object. It begins with the last upload, after the damage."""
    _create_history(watched, undo, segments=MERGED_SEGMENTS - 1)
    watched_cluster.flip(min(_segments(watched)))
    _upload(watched)


def object_is_denied(watched: WatchedCluster, undo: ExitStack) -> None:
    _create_history(watched, undo)
    [segment] = _segments(watched)
    key = segment.relative_to(_bucket(watched)).as_posix()
    undo.callback(watched.scrub_bucket)
    undo.callback(watched_cluster.set_rights, watched.store)
    watched_cluster.set_rights(watched.store, "s3:GetObject", key)
    watched.scrub_bucket()


def deletions_are_denied(watched: WatchedCluster, undo: ExitStack) -> None:
    _create_history(watched, undo)
    undo.callback(watched_cluster.set_rights, watched.store)
    watched_cluster.set_rights(watched.store, "s3:DeleteObject")
    _delete_history(watched)


def snapshot_is_old(watched: WatchedCluster, undo: ExitStack) -> None:
    """It holds records that are deleted."""
    _create_history(watched, undo)
    watched.run("tier", "snapshots", "create", "old", HISTORY)
    undo.callback(watched.run, "tier", "snapshots", "end", "old")
    _delete_history(watched)


def document_is_missing(watched: WatchedCluster, undo: ExitStack) -> None:
    """The cluster writes it again."""
    watched.store.minio_client().remove_object(s3_servers.BUCKET, f"{_cluster(watched)}/cluster.json")
    watched.scrub_bucket()


def stray_object(watched: WatchedCluster, undo: ExitStack) -> None:
    store = watched.store.minio_client()
    stray = f"{_cluster(watched)}/stray"
    undo.callback(watched.scrub_bucket)
    undo.callback(store.remove_object, s3_servers.BUCKET, stray)
    store.put_object(s3_servers.BUCKET, stray, BytesIO(b"1"), 1)
    watched.scrub_bucket()


def _create_history(watched: WatchedCluster, undo: ExitStack, segments: int = 1) -> None:
    """A topic of small segments that are only in the bucket. No other replica can restore them."""
    watched.create_topic(undo, HISTORY, [[1]], IN_THE_BUCKET)
    for _ in range(segments):
        _upload(watched)
    _await_only_remote(watched, HISTORY)


def _await_only_remote(watched: WatchedCluster, topic: str) -> None:
    def is_only_remote() -> bool:
        logs = [log for node in watched.cluster for log in node.directory.glob(f"*/{topic}-*/*.log")]
        with suppress(FileNotFoundError):
            return not any(log.stat().st_size for log in logs)
        return False

    until(is_only_remote, "no broker has the history")


def _read(watched: WatchedCluster, undo: ExitStack, partitions: list[TopicPartition]) -> None:
    """Read from these offsets on."""

    def read(ends: threading.Event) -> None:
        consumer = Consumer({**watched.clients, "group.id": HISTORY, "enable.auto.commit": False})
        consumer.assign(partitions)
        while not ends.is_set():
            consumer.consume(1, timeout=0.5)
        consumer.close()

    in_background(undo, read)


def _upload(watched: WatchedCluster) -> None:
    """One more segment."""
    watched.produce(HISTORY, RECORDS, 1000)
    watched.run("tier", "flush", HISTORY)


def _delete_history(watched: WatchedCluster) -> None:
    watched.run("topic", "trim", HISTORY, "--offset", str(RECORDS), "--yes")


def _segments(watched: WatchedCluster) -> list[Path]:
    """The files of the history's segments."""
    topics = watched.get(1, "/v1/cluster")["topics"]
    [topic_id] = [topic["id"] for topic in topics if topic["name"] == HISTORY]
    return list(_bucket(watched).glob(f"**/{topic_id}/0/*.log"))


def _bucket(watched: WatchedCluster) -> Path:
    return watched.store.directory / "data" / s3_servers.BUCKET


def _cluster(watched: WatchedCluster) -> str:
    """The prefix of the cluster's objects."""
    [document] = _bucket(watched).glob(f"{watched_cluster.PREFIX}/*/cluster.json")
    return document.parent.relative_to(_bucket(watched)).as_posix()
