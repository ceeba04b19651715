"""Metadata storage: the node's write-ahead log, its snapshot, `quorum.properties`, and the thread that writes
them.

Blocking; the node calls it in its storage thread, one call at a time (`ThreadedStorage`).

Invariants: when `save` or `save_snapshot` returns, the data is durable. A failed write leaves the storage
unusable and the node stops: the kernel may have dropped the dirty pages, so a second fsync would report
success falsely. The exception is a write that finds the disk full before any fsync: it is repeated once,
after the reserve is released. Opening truncates a torn tail and rejects any other damage with DamagedLog.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import TypeVar
from uuid import UUID

from crc32c import crc32c

from tierlog.base.clock import Clock
from tierlog.base.files import DISK_FULL, Files, write_atomically
from tierlog.base.safeguards import safeguard
from tierlog.base.types import require
from tierlog.metadata.quorum.reserve import DiskReserve
from tierlog.metadata.quorum.wal import MAGIC, DamagedLog, Reset, WalRecord, encode_frames, read_segment
from tierlog.metadata.raft.membership import decode_configuration, encode_configuration
from tierlog.metadata.raft.messages import Entry, HardState, Snapshot
from tierlog.metadata.versions import newer_file

SEGMENT_BYTES = 16 << 20
PROPERTIES = "quorum.properties"
_DIRECTORY_ID = "directory.id="
SNAPSHOT_MAGIC = b"TLSNAP\x00\x01"  # the last byte is the version
SNAPSHOT_MAGIC_2 = b"TLSNAP\x00\x02"  # with a configuration; written only if there is one
_SNAPSHOT_HEADER = Struct(
    ">8sQQQI"
)  # magic, index, term, length of the data, CRC-32C of the three and the data

R = TypeVar("R")


class ForeignDirectory(Exception):
    """The directory belongs to another cluster or node."""


@dataclass(frozen=True, slots=True)
class LoadedMetadata:
    hard_state: HardState
    snapshot: Snapshot
    entries: tuple[Entry, ...]


@dataclass(slots=True)
class _Segment:
    number: int
    last_index: int = 0  # highest entry index written to it


class MetadataStorage:
    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        cluster_id: str,
        node_id: int,
        segment_bytes: int = SEGMENT_BYTES,
        new_directory_id: UUID,
        reserve_bytes: int = 0,
        on_disk_full: Callable[[], None] = lambda: None,
    ) -> None:
        """`new_directory_id`: used if the directory has no id yet. `on_disk_full`: called in the storage
        thread when the reserve of `reserve_bytes` is released or cannot be created."""
        self._files = files
        self.directory = directory
        self._owner = f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\n"
        self.directory_id = new_directory_id  # once opened, the id that an existing directory has
        self._segment_bytes = segment_bytes
        self._segments: list[_Segment] = []
        self._fd = -1
        self._end = 0  # size of the last segment in bytes
        self._hard_state = HardState()
        self._broken = False
        self._on_disk_full = on_disk_full
        self._reserve = DiskReserve(files, directory, reserve_bytes, on_disk_full)

    def open(self) -> LoadedMetadata:
        """Load what is durable. Raises ForeignDirectory, DamagedLog."""
        self._files.make_directory(self.directory)
        self._check_owner()
        if not self.ensure_reserve():
            self._on_disk_full()
        snapshot = self._load_snapshot()
        entries = self._load_log()
        if _diverged(snapshot, entries):
            self._reset_log(snapshot, ())
            entries = []
        return LoadedMetadata(self._hard_state, snapshot, _entries_after(snapshot, entries))

    def close(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    @property
    def disk_is_low(self) -> bool:
        """Whether the disk had less free space than the reserve's size at the last check, or the reserve is
        in use."""
        return self._reserve.is_low

    def ensure_reserve(self) -> bool:
        """Check the free space, and create the disk reserve if it is missing. False if there is too little.
        Raises OSError."""
        return self._reserve.ensure()

    def save(self, snapshot: Snapshot | None, entries: Iterable[Entry], hard_state: HardState | None) -> None:
        """One write and one fsync. A snapshot from the leader is written first, to its own file."""
        require(not self._broken, "the write-ahead log failed before")
        self._broken = True
        self._hard_state = hard_state or self._hard_state
        if snapshot is not None:
            self._write_snapshot(snapshot)
            self._reset_log(snapshot, entries)
        else:
            records: tuple[WalRecord, ...] = (*entries, *((hard_state,) if hard_state else ()))
            if self._end >= self._segment_bytes:
                self._start_segment((self._hard_state, *records))
            else:
                self._write(records)
        self._broken = False

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Make a snapshot of this node's own image durable, then delete the segments that it covers."""
        require(not self._broken, "the write-ahead log failed before")
        self._write_snapshot(snapshot)
        covered = 0
        while covered < len(self._segments) - 1 and self._segments[covered].last_index <= snapshot.index:
            covered += 1
        self._drop_segments(covered)

    # --- the log

    @safeguard("a vote is synced before it is sent")
    @safeguard("log entries are synced before they are acknowledged")
    def _write(self, records: tuple[WalRecord, ...]) -> None:
        frames = [encode_frames(records)]
        self._end += self._with_reserve(lambda: self._files.writev_at(self._fd, frames, self._end))
        self._files.sync(self._fd)
        segment = self._segments[-1]
        segment.last_index = max(segment.last_index, _last_index(records))

    def _reset_log(self, snapshot: Snapshot, entries: Iterable[Entry]) -> None:
        """Discard all entries of the log and continue after the snapshot."""
        self._start_segment((Reset(snapshot.index, snapshot.term), self._hard_state, *entries))
        self._drop_segments(len(self._segments) - 1)

    def _start_segment(self, records: tuple[WalRecord, ...]) -> None:
        """The segment begins with the hard state, so that no older segment is needed for it."""
        number = self._segments[-1].number + 1 if self._segments else 1
        self.close()
        self._fd = self._with_reserve(lambda: self._files.open(self._segment_path(number), create=True))
        self._files.truncate(self._fd, 0)
        self._end = self._with_reserve(lambda: self._files.writev_at(self._fd, [MAGIC], 0))
        self._segments.append(_Segment(number))
        self._write(records)
        self._files.sync_directory(self.directory)

    def _with_reserve(self, write: Callable[[], R]) -> R:
        """If the disk is full, release the reserve and repeat `write`, which must start from scratch."""
        try:
            return write()
        except OSError as failure:
            if failure.errno not in DISK_FULL or not self._reserve.release():
                raise
        return write()

    def _drop_segments(self, count: int) -> None:
        """Oldest first, so that a crash in between leaves no gap."""
        for segment in self._segments[:count]:
            self._files.unlink(self._segment_path(segment.number))
            self._files.sync_directory(self.directory)
        del self._segments[:count]

    def _load_log(self) -> list[Entry]:
        entries: list[Entry] = []
        numbers = self._numbers(".wal")
        if numbers and numbers != list(range(numbers[0], numbers[-1] + 1)):
            raise DamagedLog(f"{self.directory}: a segment of the write-ahead log is missing")
        for number in numbers:
            content = self._files.read_whole(self._segment_path(number))
            end = len(MAGIC)
            segment = _Segment(number)
            for frame in read_segment(content):
                end = frame.end
                self._replay(frame.record, entries)
                segment.last_index = max(segment.last_index, _last_index((frame.record,)))
            self._segments.append(segment)
            if end != len(content) and number != numbers[-1]:
                raise DamagedLog(f"segment {number} of the write-ahead log is damaged at {end}")
            self._end = end
        if not self._segments:
            self._start_segment((self._hard_state,))
        else:
            self._truncate_torn_tail()
        return entries

    def _replay(self, record: WalRecord, entries: list[Entry]) -> None:
        if isinstance(record, HardState):
            self._hard_state = record
        elif isinstance(record, Reset):
            entries.clear()
        else:
            if entries and not entries[0].index <= record.index <= entries[-1].index + 1:
                raise DamagedLog(f"entry {record.index} follows {entries[-1].index}")
            if entries:
                del entries[record.index - entries[0].index :]
            entries.append(record)

    def _truncate_torn_tail(self) -> None:
        """Truncate what a crash left half-written; it was never acknowledged."""
        self._fd = self._files.open(self._segment_path(self._segments[-1].number))
        if self._files.size(self._fd) < len(MAGIC) or self._end == len(MAGIC):
            self._files.writev_at(self._fd, [MAGIC], 0)
        if self._files.size(self._fd) != self._end:
            self._files.truncate(self._fd, self._end)
        self._files.sync(self._fd)

    def _segment_path(self, number: int) -> Path:
        return self.directory / f"{number:020d}.wal"

    def _numbers(self, suffix: str) -> list[int]:
        names = self._files.list_directory(self.directory)
        return sorted(int(name.removesuffix(suffix)) for name in names if name.endswith(suffix))

    # --- the snapshot

    def _snapshot_path(self, index: int) -> Path:
        return self.directory / f"{index:020d}.snapshot"

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        content = encode_snapshot_file(snapshot)
        self._with_reserve(
            lambda: write_atomically(self._files, self._snapshot_path(snapshot.index), content)
        )
        for index in self._numbers(".snapshot"):
            if index < snapshot.index:
                self._files.unlink(self._snapshot_path(index))

    def _load_snapshot(self) -> Snapshot:
        indexes = self._numbers(".snapshot")
        if not indexes:
            return Snapshot()
        return decode_snapshot_file(self._files.read_whole(self._snapshot_path(indexes[-1])))

    # --- the owner of the directory

    def _check_owner(self) -> None:
        """The directory id distinguishes a node with its log from one whose disk was replaced (KIP-853)."""
        path = self.directory / PROPERTIES
        found = self._files.read_whole(path).decode(errors="replace") if self._files.exists(path) else ""
        if not found.startswith(self._owner) and found:
            raise ForeignDirectory(f"{path} contains {found!r}, expected {self._owner!r}")
        directory_id = found.removeprefix(self._owner).removeprefix(_DIRECTORY_ID).strip()
        if directory_id:
            try:
                self.directory_id = UUID(directory_id)
            except ValueError:
                raise ForeignDirectory(f"{path}: {directory_id!r} is not a directory id") from None
        else:
            self.set_directory_id(self.directory_id)

    def set_directory_id(self, directory_id: UUID) -> None:
        """Nodes that know the directory by another id treat it as a new one."""
        self.directory_id = directory_id
        own = f"{self._owner}{_DIRECTORY_ID}{directory_id}\n"
        write_atomically(self._files, self.directory / PROPERTIES, own.encode())


class StorageThread:
    """The single thread that writes a node's files, and how long its present job has taken.

    A disk may hang: a write neither fails nor ends. It cannot be cancelled, so callers need to know.
    """

    def __init__(self, clock: Clock, executor: Executor | None, name: str) -> None:
        """`executor`: single-threaded; None: create one with this thread name."""
        self._clock = clock
        self._own = None if executor else ThreadPoolExecutor(1, name)
        self._executor = executor or self._own
        self._waiting = 0
        self._since_ms = 0

    @property
    def busy_ms(self) -> int:
        """How long the present job has been running; 0 if there is none."""
        return self._clock.monotonic_ms() - self._since_ms if self._waiting else 0

    async def run(self, job: Callable[[], R]) -> R:
        """Waits for the job to end even if the caller is cancelled."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, job)
        if not self._waiting:
            self._since_ms = self._clock.monotonic_ms()
        self._waiting += 1
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.gather(future, return_exceptions=True)
            raise
        finally:
            self._waiting -= 1
            self._since_ms = self._clock.monotonic_ms()

    def close(self) -> None:
        if self._own is not None:
            self._own.shutdown()


@dataclass(slots=True)
class ThreadedStorage:
    """Storage, and the thread in which its owner runs it."""

    storage: MetadataStorage
    thread: StorageThread
    is_closed: bool = False

    async def open(self) -> LoadedMetadata:
        """Raises as `MetadataStorage.open`."""
        return await self.thread.run(self.storage.open)

    async def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            await self.thread.run(self.storage.close)
            self.thread.close()


def read_owner(files: Files, directory: Path) -> tuple[str, int] | None:
    """Cluster id and node id; None if the directory is not a metadata directory, or they cannot be read."""
    path = directory / PROPERTIES
    if not files.exists(path):
        return None
    lines = files.read_whole(path).decode(errors="replace").splitlines()
    properties = {key: value for key, _, value in (line.partition("=") for line in lines)}
    node_id = properties.get("node.id", "")
    is_valid = "cluster.id" in properties and node_id.isdigit()
    return (properties["cluster.id"], int(node_id)) if is_valid else None


def encode_snapshot_file(snapshot: Snapshot) -> bytes:
    magic, data = SNAPSHOT_MAGIC, snapshot.data
    if snapshot.configuration is not None:
        configuration = encode_configuration(snapshot.configuration)
        magic, data = SNAPSHOT_MAGIC_2, len(configuration).to_bytes(4, "big") + configuration + data
    head = _SNAPSHOT_HEADER.pack(magic, snapshot.index, snapshot.term, len(data), 0)
    crc = crc32c(data, crc32c(head[8:-4]))
    return head[:-4] + crc.to_bytes(4, "big") + data


def decode_snapshot_file(content: bytes) -> Snapshot:
    """Raises DamagedLog, also for an incomplete file, since the file is written atomically."""
    if len(content) < _SNAPSHOT_HEADER.size or content[:8] not in (SNAPSHOT_MAGIC, SNAPSHOT_MAGIC_2):
        if content.startswith(SNAPSHOT_MAGIC[:-1]) and len(content) >= _SNAPSHOT_HEADER.size:
            raise DamagedLog(newer_file("a metadata snapshot", content[len(SNAPSHOT_MAGIC) - 1]))
        raise DamagedLog("a metadata snapshot has an unknown magic")
    _, index, term, length, crc = _SNAPSHOT_HEADER.unpack_from(content)
    data = content[_SNAPSHOT_HEADER.size :]
    if len(data) != length or crc32c(data, crc32c(content[8 : _SNAPSHOT_HEADER.size - 4])) != crc:
        raise DamagedLog(f"the metadata snapshot at index {index} is damaged")
    if content[:8] == SNAPSHOT_MAGIC:
        return Snapshot(index, term, data)
    end = 4 + int.from_bytes(data[:4], "big")
    return Snapshot(index, term, data[end:], decode_configuration(data[4:end]))


def _diverged(snapshot: Snapshot, entries: list[Entry]) -> bool:
    """Whether a crash came between writing a snapshot from the leader and the Reset that follows it.

    Then the log ends before the snapshot, or has another term there, so later entries would not fit."""
    if not entries or entries[0].index > snapshot.index:
        return False
    at = snapshot.index - entries[0].index
    return at >= len(entries) or entries[at].term != snapshot.term


def _entries_after(snapshot: Snapshot, entries: list[Entry]) -> tuple[Entry, ...]:
    """The entries after the snapshot."""
    if not entries or entries[-1].index <= snapshot.index:
        return ()
    first = entries[0].index
    if first > snapshot.index + 1:
        raise DamagedLog(f"entries {snapshot.index + 1} to {first - 1} are missing")
    return tuple(entries[snapshot.index + 1 - first :])


def _last_index(records: Iterable[WalRecord]) -> int:
    return max((record.index for record in records if isinstance(record, Entry)), default=0)
