"""The disk reserve of the metadata: released when the disk is full, created again when there is space."""

import errno
from pathlib import Path
from uuid import UUID

import pytest

from tierlog.base.files import OsFiles, Space
from tierlog.metadata.quorum.storage import MetadataStorage
from tierlog.metadata.raft.messages import Entry, HardState, Snapshot

RESERVE_BYTES = 64 << 10


class SmallDisk(OsFiles):
    """Holds `capacity` bytes in the files of one directory; a write beyond that writes what fits."""

    def __init__(self, directory: Path, capacity: int) -> None:
        self._directory = directory
        self.capacity = capacity
        self.written = 0

    def space(self, path: Path) -> Space:
        return Space(self.capacity, max(self.capacity - self.used(), 0))

    def used(self) -> int:
        return sum(path.stat().st_size for path in self._directory.iterdir())

    def writev_at(self, fd, buffers, position):  # type: ignore[no-untyped-def]
        data = b"".join(bytes(buffer) for buffer in buffers)
        self.written += len(data)
        grows = max(0, position + len(data) - self.size(fd))
        fits = self.capacity - self.used()
        if grows <= fits:
            return super().writev_at(fd, buffers, position)
        super().writev_at(fd, [data[: len(data) - grows + fits]], position)
        raise OSError(errno.ENOSPC, "No space left on device")


class Node:
    def __init__(self, directory: Path, capacity: int) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.disk = SmallDisk(directory, capacity)
        self.short = 0
        self.storage = self.opened()

    def opened(self) -> MetadataStorage:
        storage = MetadataStorage(
            self.disk,
            self.directory,
            cluster_id="c",
            node_id=1,
            new_directory_id=UUID(int=7),
            reserve_bytes=RESERVE_BYTES,
            on_disk_full=self.on_disk_full,
        )
        self.loaded = storage.open()
        return storage

    def on_disk_full(self) -> None:
        self.short += 1

    def save(self, index: int, size: int = 5_000) -> None:
        self.storage.save(None, [Entry(1, index, b"x" * size)], HardState(1, 1, index - 1))

    @property
    def reserve(self) -> Path:
        return self.directory / "reserve"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "metadata", RESERVE_BYTES + 20_000)


def test_entries_use_the_reserve_when_the_disk_is_full(node: Node) -> None:
    assert node.reserve.stat().st_size == RESERVE_BYTES
    for index in range(1, 11):
        node.save(index)
    assert not node.reserve.exists()
    assert node.short == 1
    node.storage.close()
    node.storage = node.opened()
    assert [len(entry.payload) for entry in node.loaded.entries] == [5_000] * 10


def test_snapshot_uses_the_reserve_when_the_disk_is_full(node: Node) -> None:
    node.storage.save_snapshot(Snapshot(1, 1, b"s" * 30_000))
    assert not node.reserve.exists()
    node.storage.close()
    node.storage = node.opened()
    assert node.loaded.snapshot == Snapshot(1, 1, b"s" * 30_000)


def test_reserve_is_created_again_once_it_fits(node: Node) -> None:
    for index in range(1, 6):
        node.save(index)
    assert node.storage.disk_is_low
    node.disk.written = 0
    assert not node.storage.ensure_reserve()
    assert node.disk.written == 0  # called every second, so a failed attempt must not fill the disk each time
    assert sorted(path.suffix for path in node.directory.iterdir()) == [".properties", ".wal"]
    node.disk.capacity += RESERVE_BYTES
    assert node.storage.ensure_reserve()
    assert node.reserve.stat().st_size == RESERVE_BYTES
    for index in range(6, 30):
        node.save(index, 4_000)
    assert node.short == 2


def test_disk_is_low_while_less_than_the_reserve_is_free_beside_it(node: Node) -> None:
    node.disk.capacity = 3 * RESERVE_BYTES
    assert node.storage.ensure_reserve() and not node.storage.disk_is_low
    node.disk.capacity = 2 * RESERVE_BYTES - 1_000  # another file takes it; the log writes nothing
    assert node.storage.ensure_reserve() and node.storage.disk_is_low
    node.disk.capacity = 3 * RESERVE_BYTES
    assert node.storage.ensure_reserve() and not node.storage.disk_is_low


def test_disk_is_low_if_a_quota_refuses_the_reserve(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(1, 6):
        node.save(index)
    monkeypatch.setattr(node.disk, "space", lambda _: Space(1 << 40, 1 << 40))
    assert not node.storage.ensure_reserve() and node.storage.disk_is_low


def test_node_starts_on_a_full_disk_and_reports_it(tmp_path: Path) -> None:
    node = Node(tmp_path / "metadata", 20_000)
    assert (node.short, node.storage.disk_is_low) == (1, True)
    node.save(1)


def test_storage_fails_permanently_without_any_space(node: Node) -> None:
    node.disk.capacity = node.disk.used()
    with pytest.raises(OSError, match="No space"):
        node.save(1, 2 * RESERVE_BYTES)
    with pytest.raises(Exception, match="failed before"):
        node.save(1)


def test_reserve_of_another_size_is_created_again(node: Node) -> None:
    node.storage.close()
    node.reserve.write_bytes(b"short")
    node.storage = node.opened()
    assert node.reserve.stat().st_size == RESERVE_BYTES
