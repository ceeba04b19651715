"""Write-ahead log and snapshots: what survives which crash, and which damage is rejected."""

from pathlib import Path
from uuid import UUID

import pytest

from tierlog.base.files import OsFiles
from tierlog.metadata.quorum.storage import ForeignDirectory, LoadedMetadata, MetadataStorage
from tierlog.metadata.quorum.wal import DamagedLog
from tierlog.metadata.raft.membership import Configuration, Member, encode_configuration
from tierlog.metadata.raft.messages import CONFIGURATION, Entry, HardState, Snapshot

DIRECTORY_ID = UUID(int=7)
MEMBERS = Configuration({1: Member("http://a", UUID(int=1)), 2: Member("http://b")}, {3: Member("http://c")})


def storage(directory: Path, directory_id: UUID = DIRECTORY_ID, **options: int) -> MetadataStorage:
    return MetadataStorage(
        OsFiles(), directory, cluster_id="c", node_id=1, new_directory_id=directory_id, **options
    )


def entries(first: int, last: int, term: int = 1) -> tuple[Entry, ...]:
    return tuple(Entry(term, index, b"payload %d" % index) for index in range(first, last + 1))


def reopened(directory: Path, **options: int) -> LoadedMetadata:
    again = storage(directory, **options)
    try:
        return again.open()
    finally:
        again.close()


def wal(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.wal"))


def test_entries_and_hard_state_survive_a_restart(tmp_path: Path) -> None:
    store = storage(tmp_path)
    assert store.open() == LoadedMetadata(HardState(), Snapshot(), ())
    store.save(None, entries(1, 3), HardState(1, 2, 0))
    store.save(None, entries(4, 5), HardState(1, 2, 3))
    store.close()
    assert reopened(tmp_path) == LoadedMetadata(HardState(1, 2, 3), Snapshot(), entries(1, 5))


def test_later_entry_replaces_all_entries_from_its_index_on(tmp_path: Path) -> None:
    store = storage(tmp_path)
    store.open()
    store.save(None, entries(1, 5), HardState(1, 1, 0))
    store.save(None, entries(3, 3, term=2), HardState(2, 3, 0))
    store.close()
    assert reopened(tmp_path).entries == entries(1, 2) + entries(3, 3, term=2)


def test_tail_torn_at_any_byte_keeps_acknowledged_entries(tmp_path: Path) -> None:
    store = storage(tmp_path / "original")
    store.open()
    store.save(None, entries(1, 2), HardState(1, 1, 0))
    kept = wal(tmp_path / "original")[0].stat().st_size
    store.save(None, entries(3, 4), HardState(2, 1, 2))
    store.close()
    content = wal(tmp_path / "original")[0].read_bytes()
    for cut in range(kept, len(content)):
        directory = tmp_path / str(cut)
        reopened(directory)
        wal(directory)[0].write_bytes(content[:cut])
        loaded = reopened(directory)
        assert loaded.entries[:2] == entries(1, 2)
        assert loaded.entries in (entries(1, 2), entries(1, 3), entries(1, 4))
        assert loaded.hard_state == HardState(1, 1, 0)
        again = storage(directory)  # what was truncated does not reappear
        again.open()
        again.save(None, entries(3, 3, term=5), HardState(5, 1, 0))
        again.close()
        assert reopened(directory).entries == entries(1, 2) + entries(3, 3, term=5)


def test_garbage_at_the_tail_is_truncated(tmp_path: Path) -> None:
    store = storage(tmp_path)
    store.open()
    store.save(None, entries(1, 2), HardState(1, 1, 0))
    store.close()
    path = wal(tmp_path)[0]
    intact = path.read_bytes()
    path.write_bytes(intact + b"\x00" * 100 + b"garbage")
    assert reopened(tmp_path).entries == entries(1, 2)
    assert path.read_bytes() == intact


def test_bit_flip_anywhere_in_durable_data_is_rejected(tmp_path: Path) -> None:
    store = storage(tmp_path)
    store.open()
    store.save(None, entries(1, 2), HardState(1, 1, 0))
    durable = wal(tmp_path)[0].stat().st_size
    store.save(None, entries(3, 4), None)
    store.close()
    path = wal(tmp_path)[0]
    intact = path.read_bytes()
    for at in range(durable):
        damaged = bytearray(intact)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(DamagedLog):
            reopened(tmp_path)


def test_segments_roll_and_are_deleted_once_a_snapshot_covers_them(tmp_path: Path) -> None:
    store = storage(tmp_path, segment_bytes=100)
    store.open()
    for index in range(1, 21):
        store.save(None, entries(index, index), HardState(3, 1, index - 1))
    rolled = len(wal(tmp_path))
    assert rolled > 3
    store.save_snapshot(Snapshot(12, 1, b"state at 12"))
    assert 1 < len(wal(tmp_path)) < rolled
    store.save_snapshot(Snapshot(15, 1, b"state at 15"))
    store.close()
    loaded = reopened(tmp_path, segment_bytes=100)
    assert loaded == LoadedMetadata(HardState(3, 1, 19), Snapshot(15, 1, b"state at 15"), entries(16, 20))
    assert len(list(tmp_path.glob("*.snapshot"))) == 1


def test_missing_segment_is_rejected(tmp_path: Path) -> None:
    store = storage(tmp_path, segment_bytes=100)
    store.open()
    for index in range(1, 21):
        store.save(None, entries(index, index), HardState(1, 1, 0))
    store.close()
    wal(tmp_path)[1].unlink()
    with pytest.raises(DamagedLog, match="missing"):
        reopened(tmp_path)


def test_snapshot_from_the_leader_replaces_the_log(tmp_path: Path) -> None:
    store = storage(tmp_path)
    store.open()
    store.save(None, entries(1, 30), HardState(1, 1, 5))
    store.save(Snapshot(20, 4, b"theirs"), (), HardState(4, -1, 20))
    store.close()
    assert reopened(tmp_path) == LoadedMetadata(HardState(4, -1, 20), Snapshot(20, 4, b"theirs"), ())


def test_crash_after_a_leaders_snapshot_drops_a_log_of_another_term(tmp_path: Path) -> None:
    store = storage(tmp_path)
    store.open()
    store.save(None, entries(1, 30), HardState(1, 1, 5))
    store.save_snapshot(Snapshot(20, 4, b"theirs"))  # the file only; entry 20 has another term
    store.close()
    assert reopened(tmp_path).entries == ()


@pytest.mark.parametrize("last", [15, 20, 30])
@pytest.mark.parametrize("term", [1, 4])
def test_log_continues_from_the_snapshot_after_such_a_crash(tmp_path: Path, last: int, term: int) -> None:
    store = storage(tmp_path)
    store.open()
    store.save(None, entries(1, last), HardState(1, 1, 5))
    store.save_snapshot(Snapshot(20, term, b"theirs"))
    store.close()
    left = entries(21, last) if term == 1 else ()
    for number in range(3):
        store = storage(tmp_path)
        assert store.open() == LoadedMetadata(HardState(1, 1, 5), Snapshot(20, term, b"theirs"), left)
        more = entries(21 + number, 21 + number, term=5)
        store.save(None, more, None)
        left = left[:number] + more
        store.close()
    assert reopened(tmp_path).entries == entries(21, 23, term=5)


def test_damaged_snapshot_is_rejected(tmp_path: Path) -> None:
    store = storage(tmp_path)
    store.open()
    store.save(None, entries(1, 3), HardState(1, 1, 0))
    store.save_snapshot(Snapshot(2, 1, b"state"))
    store.close()
    path = next(tmp_path.glob("*.snapshot"))
    intact = path.read_bytes()
    for at in range(len(intact)):
        path.write_bytes(intact[:at] + bytes([intact[at] ^ 1]) + intact[at + 1 :])
        with pytest.raises(DamagedLog):
            reopened(tmp_path)


def test_partially_created_segment_is_repaired(tmp_path: Path) -> None:
    store = storage(tmp_path)
    store.open()
    store.save(None, entries(1, 2), HardState(1, 1, 0))
    store.close()
    for content in (b"", b"TLW", bytes(20)):
        (tmp_path / f"{2:020d}.wal").write_bytes(content)
        assert reopened(tmp_path) == LoadedMetadata(HardState(1, 1, 0), Snapshot(), entries(1, 2))
        again = storage(tmp_path)
        again.open()
        again.save(None, (), HardState(2, 2, 0))
        again.close()
        assert reopened(tmp_path).hard_state == HardState(2, 2, 0)
        (tmp_path / f"{2:020d}.wal").unlink()


def test_directory_of_another_node_is_rejected(tmp_path: Path) -> None:
    reopened(tmp_path)
    with pytest.raises(ForeignDirectory, match=r"node\.id=1"):
        MetadataStorage(OsFiles(), tmp_path, cluster_id="c", node_id=2, new_directory_id=DIRECTORY_ID).open()


class FullDisk(OsFiles):
    full = False

    def writev_at(self, fd, buffers, position):  # type: ignore[no-untyped-def]
        if self.full:
            raise OSError(28, "no space left on device")
        return super().writev_at(fd, buffers, position)


def test_storage_is_unusable_after_a_failed_write(tmp_path: Path) -> None:
    from tierlog.base.types import InvariantViolation

    files = FullDisk()
    store = MetadataStorage(files, tmp_path, cluster_id="c", node_id=1, new_directory_id=DIRECTORY_ID)
    store.open()
    store.save(None, entries(1, 1), HardState(1, 1, 0))
    files.full = True
    with pytest.raises(OSError, match="no space"):
        store.save(None, entries(2, 2), HardState(1, 1, 0))
    files.full = False
    with pytest.raises(InvariantViolation):
        store.save(None, entries(3, 3), HardState(1, 1, 0))
    store.close()
    assert reopened(tmp_path).entries == entries(1, 1)


def test_configurations_survive_in_the_log_and_in_snapshots(tmp_path: Path) -> None:
    store = storage(tmp_path)
    store.open()
    change = Entry(1, 2, encode_configuration(MEMBERS), CONFIGURATION)
    store.save(None, (*entries(1, 1), change), HardState(1, 1, 2))
    store.close()
    assert reopened(tmp_path).entries == (*entries(1, 1), change)
    store = storage(tmp_path)
    store.open()
    store.save_snapshot(Snapshot(2, 1, b"image", MEMBERS))
    store.close()
    assert reopened(tmp_path).snapshot == Snapshot(2, 1, b"image", MEMBERS)


def test_directory_keeps_its_first_id(tmp_path: Path) -> None:
    reopened(tmp_path)
    again = storage(tmp_path, UUID(int=8))
    again.open()
    again.close()
    assert again.directory_id == DIRECTORY_ID


def test_directory_without_an_id_gets_one(tmp_path: Path) -> None:
    (tmp_path / "quorum.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    reopened(tmp_path)
    again = storage(tmp_path, UUID(int=8))
    again.open()
    again.close()
    assert again.directory_id == DIRECTORY_ID


def test_directory_with_a_malformed_id_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "quorum.properties").write_text("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=x\n")
    with pytest.raises(ForeignDirectory, match="not a directory id"):
        reopened(tmp_path)
