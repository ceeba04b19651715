"""Log directory: its owner, its checkpoints, and which partitions are kept, set aside or removed."""

import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tierlog.base.files import OsFiles
from tierlog.base.types import TopicPartition
from tierlog.broker.storage.checkpoints import MalformedCheckpoint, NeverSynced
from tierlog.broker.storage.log_dir import (
    CheckpointRow,
    DirectoryUnusable,
    ForeignDirectory,
    LogDirectory,
)
from tierlog.broker.storage.log_dirs import Claimed, LogDirectories

TOPIC_ID = uuid.UUID(int=7)
NAME = TopicPartition("orders", 3)


def opened(path: Path, seed: int = 1) -> LogDirectory:
    return LogDirectory(path, OsFiles(), random.Random(seed))


def claimed(
    path: Path, node_id: int = 1, cluster_id: str = "", seed: int = 1
) -> tuple[LogDirectories, Claimed]:
    directories = LogDirectories([path], OsFiles(), random.Random(seed))
    return directories, directories.claim(node_id, cluster_id)


def test_new_directory_gets_a_permanent_identity(tmp_path: Path) -> None:
    directories, identity = claimed(tmp_path / "data")
    directories.release()
    again, same = claimed(tmp_path / "data", seed=2)
    assert same == identity
    assert identity.cluster_id
    again.release()


@pytest.mark.parametrize(
    ("node_id", "cluster_id", "message"), [(2, "", "belongs to node 1"), (1, "other", "belongs to cluster")]
)
def test_directory_of_another_node_is_refused(
    tmp_path: Path, node_id: int, cluster_id: str, message: str
) -> None:
    claimed(tmp_path, 1, "mine")[0].release()
    with pytest.raises(ForeignDirectory, match=message):
        claimed(tmp_path, node_id, cluster_id)
    claimed(tmp_path, 1, "mine")[0].release()


def test_two_processes_cannot_share_a_directory(tmp_path: Path) -> None:
    directories, _ = claimed(tmp_path)
    with pytest.raises(DirectoryUnusable, match="another process"):
        claimed(tmp_path)
    directories.release()
    claimed(tmp_path)[0].release()


def test_partitions_are_found_with_their_topic_ids(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create(NAME, TOPIC_ID)
    directory.create(TopicPartition("a-b", 0), TOPIC_ID)
    (tmp_path / "__cluster_metadata").mkdir()
    (tmp_path / "objects").mkdir()
    assert directory.partitions() == {NAME: TOPIC_ID, TopicPartition("a-b", 0): TOPIC_ID}


def test_deleted_and_stray_directories_are_not_partitions(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create(NAME, TOPIC_ID)
    renamed = directory.rename_deleted(NAME)
    directory.create(NAME, TOPIC_ID)
    stray = directory.rename_stray(NAME)
    assert directory.partitions() == {}
    assert directory.deleted_partitions() == [renamed]
    directory.remove(renamed)
    assert directory.deleted_partitions() == []
    assert stray.exists()


def test_checkpoints_and_clean_shutdown_file_are_read_once(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.write_checkpoints(lambda: [CheckpointRow(NAME, 20, 10)])
    directory.mark_clean()
    first, second = directory.load_checkpoints(), directory.load_checkpoints()
    assert (first.clean, second.clean) == (True, False)
    assert (second.recovery_points, second.log_starts) == ({NAME: 20}, {NAME: 10})


def test_torn_partition_metadata_counts_as_never_synced(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    file = directory.create(NAME, TOPIC_ID) / "partition.metadata"
    whole = file.read_bytes()
    for length in range(len(whole)):
        for content in (whole[:length], whole[:length].ljust(len(whole), b"\0")):
            file.write_bytes(content)
            assert isinstance(directory.partitions()[NAME], NeverSynced), content
    for content in (
        b"garbage",
        whole + b"A",
        whole[:-1] + b"!",
        b"version: 1\n",
        whole.replace(b"0", b"7", 1),
        whole[:-1] + bytes([whole[-1] + 1]),  # bits that no id has
    ):
        file.write_bytes(content)
        assert type(directory.partitions()[NAME]) is MalformedCheckpoint, content
    file.write_bytes(whole + b"\n")
    assert directory.partitions() == {NAME: TOPIC_ID}


def test_checkpoint_rows_being_written_do_not_apply_to_a_recreated_topic(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create(NAME, TOPIC_ID)
    taken, go_on = threading.Event(), threading.Event()

    def rows() -> list[CheckpointRow]:
        taken.set()
        assert go_on.wait(30)
        return [CheckpointRow(NAME, 20, 10)]

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(directory.write_checkpoints, rows)
        assert taken.wait(30)
        directory.rename_deleted(NAME)
        making = pool.submit(directory.create, NAME, uuid.UUID(int=8))
        wait([making], timeout=0.1)  # it must not be done by now; if it were, the rows would be the last word
        go_on.set()
        writing.result()
        making.result()
    assert opened(tmp_path).load_checkpoints().log_starts == {}


def test_two_threads_can_remove_checkpoints_at_once(tmp_path: Path) -> None:
    first = opened(tmp_path)
    names = [TopicPartition("t", number) for number in range(200)]
    first.write_checkpoints(lambda: [CheckpointRow(name, 2, 1) for name in names])
    first.write_cleaned(lambda: dict.fromkeys(names, 1))
    again = opened(tmp_path)
    again.load_checkpoints()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: again.create(name, TOPIC_ID), names))
    left = again.checkpoints
    assert (left.recovery_points, left.log_starts, left.cleaned) == ({}, {}, {})


STARTS, COPY = "log-start-offset-checkpoint", "log-start-offset-checkpoint.copy"


@pytest.mark.parametrize("harm", [b"", b"0\n1\norders 3", b"9\n1\norders 3 1\n", b"\xff\xfe", None])
def test_log_start_survives_damage_of_one_checkpoint_file(tmp_path: Path, harm: bytes | None) -> None:
    directory = opened(tmp_path)
    directory.write_checkpoints(lambda: [CheckpointRow(NAME, 20, 10)])
    if harm is None:
        (tmp_path / STARTS).unlink()
    else:
        (tmp_path / STARTS).write_bytes(harm)
    again = opened(tmp_path)
    with capture_logs() as reported:
        assert again.load_checkpoints().log_starts == {NAME: 10}
    assert [line["instead"] for line in reported] == ([] if harm is None else ["its copy is taken"])
    again.write_checkpoints(lambda: [CheckpointRow(NAME, 20, 10)])  # writes the file again
    (tmp_path / COPY).unlink()
    assert opened(tmp_path).load_checkpoints().log_starts == {NAME: 10}


def test_flipped_bit_in_a_recovery_point_does_not_make_a_log_look_short(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.write_checkpoints(lambda: [CheckpointRow(NAME, 100, 0)])
    directory.mark_clean()
    points = tmp_path / "recovery-point-offset-checkpoint"
    points.write_text(points.read_text().replace("orders 3 100", "orders 3 900"))
    found = opened(tmp_path).load_checkpoints()
    assert (found.clean, found.recovery_points) == (True, {NAME: 100})


def test_copy_of_recovery_points_counts_only_after_a_clean_stop(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.write_checkpoints(lambda: [CheckpointRow(NAME, 100, 0)])
    directory.mark_clean()
    directory.load_checkpoints()
    directory.write_checkpoints(lambda: [CheckpointRow(NAME, 200, 0)])  # no clean stop after that
    assert opened(tmp_path).load_checkpoints().recovery_points == {NAME: 200}


def test_directory_whose_topic_id_has_a_flipped_bit_is_kept(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    metadata = directory.create(NAME, TOPIC_ID) / "partition.metadata"
    metadata.write_bytes(metadata.read_bytes().replace(b"AAAA", b"AACA", 1))
    with pytest.raises(MalformedCheckpoint, match="flipped bit"):
        directory.remove_other_topic(NAME, TOPIC_ID)
    assert directory.holds(NAME)


OTHER = TopicPartition("orders", 4)


@pytest.mark.parametrize("damaged", [STARTS, COPY])
@pytest.mark.parametrize(
    ("whole", "flipped"),
    [("orders 3 10", "orders 3 90"), ("orders 3 10", "orders 4 10"), ("orders 3 10", "ordess 3 10")],
)
def test_flipped_bit_in_one_log_start_file_hides_no_record(
    tmp_path: Path, damaged: str, whole: str, flipped: str
) -> None:
    rows = [CheckpointRow(NAME, 200, 10), CheckpointRow(OTHER, 200, 0)]
    opened(tmp_path).write_checkpoints(lambda: rows)
    text = (tmp_path / damaged).read_text()
    assert whole in text
    (tmp_path / damaged).write_text(text.replace(whole, flipped))
    again = opened(tmp_path)
    starts = again.load_checkpoints().log_starts
    assert (starts[NAME], starts[OTHER]) == (10, 0)
    again.write_checkpoints(lambda: rows)
    assert (tmp_path / STARTS).read_bytes() == (tmp_path / COPY).read_bytes()


class Crash(Exception):
    pass


class CrashingFiles(OsFiles):
    """The process is killed before a file is renamed."""

    before = ""

    def rename(self, source: Path, target: Path) -> None:
        if target.name == self.before:
            raise Crash
        super().rename(source, target)


@pytest.mark.parametrize("before", [STARTS, COPY])
def test_crash_between_both_log_start_files_reverts_no_acknowledged_deletion(
    tmp_path: Path, before: str
) -> None:
    files = CrashingFiles()
    directory = LogDirectory(tmp_path, files, random.Random(1))
    directory.write_checkpoints(lambda: [CheckpointRow(NAME, 20, 10)])  # and then DeleteRecords is answered
    files.before = before
    with pytest.raises(Crash):
        directory.write_checkpoints(lambda: [CheckpointRow(NAME, 20, 15), CheckpointRow(OTHER, 20, 5)])
    assert opened(tmp_path).load_checkpoints().log_starts[NAME] >= 10


def test_without_log_start_files_logs_begin_with_their_first_segment(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.write_checkpoints(lambda: [CheckpointRow(NAME, 20, 10)])
    for name in (STARTS, COPY):
        (tmp_path / name).write_bytes(b"0\n")
    with capture_logs() as reported:
        assert opened(tmp_path).load_checkpoints().log_starts == {}
    assert [line["log_level"] for line in reported] == ["error", "error"]


def test_unchanged_log_starts_are_not_written_again(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.write_checkpoints(lambda: [CheckpointRow(NAME, 20, 10)])
    before = (tmp_path / STARTS).stat().st_ino
    directory.write_checkpoints(lambda: [CheckpointRow(NAME, 30, 10)])
    assert (tmp_path / STARTS).stat().st_ino == before
    directory.write_checkpoints(lambda: [CheckpointRow(NAME, 30, 20)])
    assert opened(tmp_path).load_checkpoints().log_starts == {NAME: 20}


def test_lost_checkpoint_is_distinguished_from_one_never_written(tmp_path: Path) -> None:
    assert opened(tmp_path).load_checkpoints().recovery_point(NAME) == 0
    opened(tmp_path).write_checkpoints(lambda: [CheckpointRow(NAME, 20, 10)])
    assert opened(tmp_path).load_checkpoints().recovery_point(NAME) == 20
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    assert opened(tmp_path).load_checkpoints().recovery_point(NAME) is None


def test_damaged_recovery_point_checkpoint_means_full_recovery(tmp_path: Path) -> None:
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n9\nx 0 1\n", encoding="utf-8")
    found = opened(tmp_path).load_checkpoints()
    assert (found.recovery_points, found.recovery_point(NAME)) == (None, None)


def test_high_watermarks_survive_a_restart_and_a_damaged_file(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    other = TopicPartition("alone", 0)
    directory.write_checkpoints(lambda: [CheckpointRow(NAME, 20, 10, 15), CheckpointRow(other, 5, 0)])
    text = (tmp_path / "replication-offset-checkpoint").read_text()
    assert text == f"0\n1\n{NAME.topic} {NAME.partition} 15\n", "Kafka's format"
    assert opened(tmp_path).load_checkpoints().high_watermarks == {NAME: 15}
    (tmp_path / "replication-offset-checkpoint").write_bytes(b"torn")
    assert opened(tmp_path).load_checkpoints().high_watermarks == {NAME: 15}
    (tmp_path / "replication-offset-checkpoint.copy").write_bytes(b"torn")
    assert opened(tmp_path).load_checkpoints().high_watermarks == {}


def test_no_high_watermark_is_stored_without_other_replicas(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.write_checkpoints(lambda: [CheckpointRow(NAME, 20, 10)])
    assert not (tmp_path / "replication-offset-checkpoint").exists()
    directory.write_checkpoints(lambda: [CheckpointRow(NAME, 20, 10, 15)])
    opened(tmp_path).write_checkpoints(lambda: [CheckpointRow(NAME, 20, 10)])
    assert opened(tmp_path).load_checkpoints().high_watermarks == {}


def test_recreated_topic_does_not_inherit_a_high_watermark(tmp_path: Path) -> None:
    opened(tmp_path).write_checkpoints(lambda: [CheckpointRow(NAME, 20, 10, 15)])
    directory = opened(tmp_path)
    directory.load_checkpoints()
    directory.create(NAME, TOPIC_ID)
    assert directory.checkpoints.high_watermarks == {}
    assert opened(tmp_path).load_checkpoints().high_watermarks == {}
