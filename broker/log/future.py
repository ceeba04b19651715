"""The copy of a log in another directory, which is to take its place (KIP-113).

Files are copied as they are, batches are not appended anew: so offsets, indexes, leader epochs and snapshots
of producers are those of the log. What the log is made of is looked at on the event loop (`look`), copied in
a thread (`copy`, then `sync`) while appends go on, and looked at again: rolled segments do not change, the
active one only grows, and whatever was dropped, compacted or cut meanwhile is told by the segment object and
the times that it was cut, and copied anew. The end that is still missing is short at last, and is copied on
the event loop itself (`append_rest`): then both are the same, and the copy can become the log. Everything up
to the last `sync`, beside which no flush of the log was under way, is on disk by then. A crash before that
leaves a copy which nobody reads. Called by the directory moves of the runtime.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tierlog.broker.log.log import PartitionLog
from tierlog.broker.log.names import EPOCH_CHECKPOINT, INDEXES, LOG, SNAPSHOT, segment_file
from tierlog.broker.log.segment import Segment
from tierlog.broker.ports.files import Files, write_atomically
from tierlog.broker.ports.open_files import SharedFile

CHUNK_BYTES = 1 << 20
"""Read and written at a time."""

SYNC_BYTES = 64 << 20
"""Written between two fsyncs, so that those of others on that disk do not wait behind a whole segment."""

Spend = Callable[[int], None]
"""Told before so many bytes are copied: waits, or raises to stop."""


class LogChanged(Exception):
    """A file is not what it was when the log was looked at: look again."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment as it was when the log was looked at; segments are the same if they are one object."""

    segment: Segment
    size: int
    end_offset: int
    rolled: bool
    cuts: int

    def has_become(self, later: "Piece") -> bool:
        """Whether nothing happened to it since but appends, and perhaps a roll."""
        same = self.segment is later.segment and self.cuts == later.cuts
        return same and self.size <= later.size and self.rolled <= later.rolled


@dataclass(frozen=True, slots=True)
class Look:
    """A log at a moment; its active segment is the last piece."""

    pieces: tuple[Piece, ...]
    epochs: bytes

    @property
    def end_offset(self) -> int:
        return self.pieces[-1].end_offset


def look(log: PartitionLog) -> Look:
    """On the event loop."""
    segments = (*log.rolled_below(log.log_end_offset), log.active)
    pieces = tuple(Piece(one, one.size, one.end_offset, one.rolled, one.cuts) for one in segments)
    return Look(pieces, log.epochs.encode())


class FutureLog:
    """`files` are those of the target, `source` those of the log."""

    def __init__(self, directory: Path, files: Files, source: Files, start_offset: int) -> None:
        self.directory = directory
        self.end_offset = start_offset
        """Everything that the log had below it when it was copied is here."""
        self.copied_bytes = 0
        self._files = files
        self._source = source
        self._pieces: dict[int, Piece] = {}  # by base offset
        self.unsynced: set[Path] = set()
        """Files that `copy` has written, until `sync` is called for them."""
        self._begun: set[int] = set()  # those of which there may be files
        self._epochs = b""
        self._chunk_bytes = CHUNK_BYTES

    def missing_bytes(self, seen: Look) -> int:
        """What `copy` would copy."""
        return sum(piece.size - self._had(piece) for piece in seen.pieces)

    def lacks_the_end_only(self, seen: Look) -> bool:
        """Whether since the last `copy` there were but appends, and rolls."""
        count = len(self._pieces)
        if not 0 < count <= len(seen.pieces):
            return False
        *same, last = seen.pieces[:count]
        known = self._pieces.get(last.segment.base_offset)
        if known is None or not known.has_become(last):
            return False
        return all(self._pieces.get(piece.segment.base_offset) == piece for piece in same)

    # -- in a thread --

    def copy(self, seen: Look, spend: Spend, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        """On disk once `unsynced` is, and its names. Raises OSError of either disk, LogChanged, and what
        `spend` raises.
        """
        self._chunk_bytes = chunk_bytes
        wanted = {piece.segment.base_offset: piece for piece in seen.pieces}
        for base in list(self._begun):
            had = self._pieces.get(base)
            if had is None or base not in wanted or not had.has_become(wanted[base]):
                self._remove(base)
        for base, piece in wanted.items():
            if self._pieces.get(base) != piece:
                self._copy_piece(piece, spend)
            self.end_offset = piece.end_offset
        if seen.epochs != self._epochs:
            write_atomically(self._files, self.directory / EPOCH_CHECKPOINT, seen.epochs)
            self._epochs = seen.epochs

    def sync(self, paths: Sequence[Path]) -> None:
        """Several at the same time, since a file system commits them together. Raises OSError."""
        for path in paths:
            target = SharedFile(self._files, path)
            self._files.sync(target.fd)
            self.unsynced.discard(path)

    def sync_names(self) -> None:
        self._files.sync_directory(self.directory)

    def _copy_piece(self, piece: Piece, spend: Spend) -> None:
        segment = piece.segment
        base, is_new = segment.base_offset, segment.base_offset not in self._begun
        self._begun.add(base)
        source = self._open(segment.path(LOG), may_lack=piece.size == 0)
        if source is not None:
            target = SharedFile(self._files, segment_file(self.directory, base, LOG), create=True)
            self._copy_bytes(source, target, self._had(piece), piece.size, spend)
        if is_new:
            snapshot = segment_file(segment.directory, base, SNAPSHOT)
            self._copy_small(snapshot, snapshot.name)
        if piece.rolled:
            for suffix in INDEXES:
                name = segment_file(self.directory, base, suffix).name
                self._copy_small(segment.path(suffix), name)
        self._pieces[base] = piece

    def _copy_bytes(self, source: SharedFile, target: SharedFile, at: int, end: int, spend: Spend) -> None:
        synced = at
        while at < end:
            count = min(self._chunk_bytes, end - at)
            spend(count)
            chunk = self._source.read_at(source.fd, count, at)
            if not chunk:
                raise LogChanged(f"{source.path}: cut at {at}")
            self._files.writev_at(target.fd, (chunk,), at)
            at += len(chunk)
            self.copied_bytes += len(chunk)
            if at - synced >= SYNC_BYTES:
                self._files.sync(target.fd)
                synced = at
        self.unsynced.add(target.path)

    def _copy_small(self, path: Path, name: str) -> None:
        """A file that is not there has nothing to say: no snapshot where nobody wrote before, no aborts."""
        source = self._open(path, may_lack=True)
        if source is None:
            return
        content = self._source.read_at(source.fd, self._source.size(source.fd), 0)
        target = SharedFile(self._files, self.directory / name, create=True)
        self._files.writev_at(target.fd, (content,), 0)
        self._files.truncate(target.fd, len(content))
        self.unsynced.add(target.path)

    def _open(self, path: Path, *, may_lack: bool) -> SharedFile | None:
        try:
            return SharedFile(self._source, path)
        except FileNotFoundError:
            if may_lack:
                return None
            raise LogChanged(f"{path} is gone") from None

    def _remove(self, base: int) -> None:
        """The log first, as everywhere: no file of another segment is to be taken for one of its own."""
        self._pieces.pop(base, None)
        self.copied_bytes = sum(piece.size for piece in self._pieces.values())
        for suffix in (LOG, *INDEXES, SNAPSHOT):
            path = segment_file(self.directory, base, suffix)
            self._files.unlink(path, missing_ok=True)
            self.unsynced.discard(path)
        self._begun.discard(base)

    # -- on the event loop --

    def append_rest(self, seen: Look) -> None:
        """What is missing if it `lacks_the_end_only`; no flush has seen it, and the next flush of the log
        syncs it, in whatever directory. Raises OSError and LogChanged.
        """
        for piece in seen.pieces[len(self._pieces) - 1 :]:
            if self._pieces.get(piece.segment.base_offset) != piece:
                self._copy_piece(piece, _at_once)
        self.end_offset = seen.end_offset

    def _had(self, piece: Piece) -> int:
        """Bytes of its log that are here."""
        known = self._pieces.get(piece.segment.base_offset)
        return known.size if known is not None and known.has_become(piece) else 0


def _at_once(count: int) -> None:
    return
