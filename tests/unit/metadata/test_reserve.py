"""The reserve of the metadata log: given up when its disk is full, made again when there is room."""

import errno
from pathlib import Path
from uuid import UUID

import pytest

from tierlog.base.files import OsFiles, Space
from tierlog.metadata.quorum.storage import MetadataStorage
from tierlog.metadata.raft.messages import Entry, HardState, Snapshot

RESERVE_BYTES = 64 << 10


class SmallDisk(OsFiles):
    """Room for so many bytes in the files of one directory; a write that lacks it writes what fits."""

    def __init__(self, directory: Path, room: int) -> None:
        self._directory = directory
        self.room = room
        self.written = 0

    def space(self, path: Path) -> Space:
        return Space(self.room, max(self.room - self.used(), 0))

    def used(self) -> int:
        return sum(path.stat().st_size for path in self._directory.iterdir())

    def writev_at(self, fd, buffers, position):  # type: ignore[no-untyped-def]
        data = b"".join(bytes(buffer) for buffer in buffers)
        self.written += len(data)
        grows = max(0, position + len(data) - self.size(fd))
        fits = self.room - self.used()
        if grows <= fits:
            return super().writev_at(fd, buffers, position)
        super().writev_at(fd, [data[: len(data) - grows + fits]], position)
        raise OSError(errno.ENOSPC, "No space left on device")


class Node:
    def __init__(self, directory: Path, room: int) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.disk = SmallDisk(directory, room)
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
            on_disk_full=self.note_short,
        )
        self.loaded = storage.open()
        return storage

    def note_short(self) -> None:
        self.short += 1

    def save(self, index: int, size: int = 5_000) -> None:
        self.storage.save(None, [Entry(1, index, b"x" * size)], HardState(1, 1, index - 1))

    @property
    def reserve(self) -> Path:
        return self.directory / "reserve"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "metadata", RESERVE_BYTES + 20_000)


def test_a_full_disk_takes_entries_in_the_room_of_the_reserve(node: Node) -> None:
    assert node.reserve.stat().st_size == RESERVE_BYTES
    for index in range(1, 11):
        node.save(index)
    assert not node.reserve.exists()
    assert node.short == 1
    node.storage.close()
    node.storage = node.opened()
    assert [len(entry.payload) for entry in node.loaded.entries] == [5_000] * 10


def test_a_snapshot_finds_room_too(node: Node) -> None:
    node.storage.save_snapshot(Snapshot(1, 1, b"s" * 30_000))
    assert not node.reserve.exists()
    node.storage.close()
    node.storage = node.opened()
    assert node.loaded.snapshot == Snapshot(1, 1, b"s" * 30_000)


def test_the_reserve_is_made_again_as_soon_as_it_fits(node: Node) -> None:
    for index in range(1, 6):
        node.save(index)
    assert not node.storage.has_reserve
    node.disk.written = 0
    assert not node.storage.ensure_reserve()
    assert node.disk.written == 0  # it is asked every second: a full disk is not written full again each time
    assert sorted(path.suffix for path in node.directory.iterdir()) == [".properties", ".wal"]
    node.disk.room += RESERVE_BYTES
    assert node.storage.ensure_reserve()
    assert (node.storage.has_reserve, node.reserve.stat().st_size) == (True, RESERVE_BYTES)
    for index in range(6, 30):
        node.save(index, 4_000)
    assert node.short == 2


def test_a_node_starts_on_a_full_disk_and_says_that_it_is_short(tmp_path: Path) -> None:
    node = Node(tmp_path / "metadata", 20_000)
    assert (node.short, node.storage.has_reserve) == (1, False)
    node.save(1)


def test_without_any_room_the_storage_fails_for_good(node: Node) -> None:
    node.disk.room = node.disk.used()
    with pytest.raises(OSError, match="No space"):
        node.save(1, 2 * RESERVE_BYTES)
    with pytest.raises(Exception, match="failed before"):
        node.save(1)


def test_a_reserve_of_another_size_is_made_anew(node: Node) -> None:
    node.storage.close()
    node.reserve.write_bytes(b"short")
    node.storage = node.opened()
    assert node.reserve.stat().st_size == RESERVE_BYTES
