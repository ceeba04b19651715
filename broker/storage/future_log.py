"""The copy of a log in another directory, which is to take its place (KIP-113).

Files are copied as they are, batches are not appended anew: so offsets, indexes, leader epochs and snapshots
of producers are those of the log. What the log is made of is looked at on the event loop (`look`), copied in
a thread (`copy`, then `sync`) while appends go on, and looked at again: rolled segments do not change, the
active one only grows, and whatever was dropped, compacted or cut meanwhile is told by the segment object and
the times that it was cut, and copied anew. The end that is still missing is short at last, and is copied by
`append_rest`, in the end on the event loop itself: then both are the same, and the copy can become the log.
Everything up to the last `sync`, beside which no flush of the log was under way, is on disk by then. A crash
before that leaves a copy which nobody reads. A log may have very many segments: of those that are known, a
look costs next to nothing. Called by the directory moves of the runtime.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tierlog.base.files import Files, write_atomically
from tierlog.base.open_files import SharedFile
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.names import (
    DAMAGED,
    EPOCH_CHECKPOINT,
    INDEXES,
    LOG,
    SNAPSHOT,
    TXN_INDEX,
    segment_file,
)
from tierlog.broker.storage.segment import Segment

CHUNK_BYTES = 1 << 20
"""Read and written at a time."""

SYNC_BYTES = 64 << 20
"""Written between two fsyncs, of however many files: others on that disk do not wait behind all of it, and
whoever writes there, above all the event loop, is not held up by a kernel with too much to write back.
"""

NEW_SEGMENTS_ON_LOOP = 2
"""Begun since the last copy: each costs some files, and a busy disk takes its time to make one."""

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
    content_version: int

    def has_become(self, later: "Piece") -> bool:
        """Whether nothing happened to it since but appends, and perhaps a roll."""
        same = self.segment is later.segment and self.content_version == later.content_version
        return same and self.size <= later.size and self.rolled <= later.rolled


@dataclass(frozen=True, slots=True)
class Look:
    """A log at a moment; its active segment is the last piece. `damaged`: a start found it so, and that was
    not told yet.
    """

    pieces: tuple[Piece, ...]
    epochs: bytes
    damaged: bool

    @property
    def end_offset(self) -> int:
        return self.pieces[-1].end_offset


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
        self._latest: tuple[Piece, ...] = ()  # all of them in order, unless a copy was cut short
        self.unsynced: set[Path] = set()
        """Files that `copy` has written, until `sync` is called for them."""
        self._begun: set[int] = set()  # those of which there may be files
        self._epochs = b""
        self._damaged = False
        self._chunk_bytes = CHUNK_BYTES
        self._unsynced_bytes = 0

    # -- on the event loop --

    def look(self, log: PartitionLog) -> Look:
        """While no copy is under way."""
        pieces = tuple(map(self._piece, (*log.rolled_below(log.log_end_offset), log.active)))
        damaged = log.was_damaged and log.active.files.exists(log.directory / DAMAGED)
        return Look(pieces, log.epochs.encode(), damaged)

    def _piece(self, segment: Segment) -> Piece:
        known = self._pieces.get(segment.base_offset)
        if (
            known is not None
            and known.segment is segment
            and known.rolled
            and known.content_version == segment.content_version
        ):
            return known
        return Piece(segment, segment.size, segment.end_offset, segment.rolled, segment.content_version)

    def missing_bytes(self, seen: Look) -> int:
        """What `copy` would copy."""
        pieces = seen.pieces
        if self.lacks_the_end_only(seen):
            pieces = pieces[len(self._latest) - 1 :]
        return sum(piece.size - self._had(piece) for piece in pieces)

    def lacks_the_end_only(self, seen: Look) -> bool:
        """Whether since the last `copy` there were but appends, and rolls."""
        count = len(self._latest)
        if not 0 < count <= len(seen.pieces):
            return False
        if not self._latest[-1].has_become(seen.pieces[count - 1]):
            return False
        return self._latest[:-1] == seen.pieces[: count - 1]

    def is_close_to(self, seen: Look, most_bytes: int) -> bool:
        """Whether the end that it lacks may be copied on the event loop."""
        new = len(seen.pieces) - len(self._latest)
        return new <= NEW_SEGMENTS_ON_LOOP and self.missing_bytes(seen) <= most_bytes

    # -- in a thread --

    def copy(self, seen: Look, spend: Spend, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[None]:
        """In parts, one with each `next`, after which `unsynced` is to be synced: then the part is on disk,
        and once all of it is, so are its names after `sync_names`. Raises OSError of either disk, LogChanged,
        and what `spend` raises.
        """
        self._chunk_bytes = chunk_bytes
        self._latest = ()
        wanted = {piece.segment.base_offset: piece for piece in seen.pieces}
        if void := [base for base in self._begun if self._is_void(base, wanted)]:
            for base in void:
                self._remove(base)
            self.copied_bytes = sum(piece.size for piece in self._pieces.values())
        for base, piece in wanted.items():
            known = self._pieces.get(base)
            if known is not piece and known != piece:
                yield from self._copy_piece(piece, spend)
            self.end_offset = piece.end_offset
        if seen.epochs != self._epochs:
            write_atomically(self._files, self.directory / EPOCH_CHECKPOINT, seen.epochs)
            self._epochs = seen.epochs
        self._mark(seen.damaged)
        self._latest = seen.pieces

    def step(self, parts: Iterator[None]) -> bool:
        """The next part of a copy; False if it was the last one."""
        for _ in parts:
            return True
        return False

    def sync(self, paths: Sequence[Path]) -> None:
        """Several at the same time, since a file system commits them together. Raises OSError."""
        for path in paths:
            target = SharedFile(self._files, path)
            self._files.sync(target.fd)
            self.unsynced.discard(path)
        self._unsynced_bytes = 0

    def sync_names(self) -> None:
        self._files.sync_directory(self.directory)

    def _is_void(self, base: int, wanted: dict[int, Piece]) -> bool:
        """Whether what there is of a segment is nothing that can be gone on with."""
        had, now = self._pieces.get(base), wanted.get(base)
        return had is None or now is None or not (had is now or had.has_become(now))

    def _mark(self, damaged: bool) -> None:
        """As the log is; else the next start could not tell what this one has not told yet."""
        marker = self.directory / DAMAGED
        if damaged and not self._damaged:
            self._files.close(self._files.open(marker, create=True))
        elif self._damaged and not damaged:
            self._files.unlink(marker, missing_ok=True)
        self._damaged = damaged

    def _copy_piece(self, piece: Piece, spend: Spend) -> Iterator[None]:
        segment = piece.segment
        base, is_new = segment.base_offset, segment.base_offset not in self._begun
        self._begun.add(base)
        source = self._open(segment.path(LOG), may_be_missing=piece.size == 0)
        if source is not None:
            target = SharedFile(self._files, segment_file(self.directory, base, LOG), create=True)
            yield from self._copy_bytes(source, target, self._had(piece), piece.size, spend)
        if is_new:
            snapshot = segment_file(segment.directory, base, SNAPSHOT)
            self._copy_small(snapshot, snapshot.name, may_be_missing=True)  # nobody wrote before
        if piece.rolled:
            for suffix in INDEXES:
                name = segment_file(self.directory, base, suffix).name
                may_be_missing = suffix == TXN_INDEX and not segment.has_aborts
                self._copy_small(segment.path(suffix), name, may_be_missing=may_be_missing)
        self._pieces[base] = piece

    def _copy_bytes(
        self, source: SharedFile, target: SharedFile, at: int, end: int, spend: Spend
    ) -> Iterator[None]:
        while at < end:
            count = min(self._chunk_bytes, end - at)
            spend(count)
            chunk = self._source.read_at(source.fd, count, at)
            if not chunk:
                raise LogChanged(f"{source.path}: cut at {at}")
            self._files.writev_at(target.fd, (chunk,), at)
            at += len(chunk)
            self.copied_bytes += len(chunk)
            self.unsynced.add(target.path)
            self._unsynced_bytes += len(chunk)
            if self._unsynced_bytes >= SYNC_BYTES:
                yield

    def _copy_small(self, path: Path, name: str, *, may_be_missing: bool) -> None:
        """One that has to be there may have another name for a moment, when a compaction ends."""
        source = self._open(path, may_be_missing=may_be_missing)
        if source is None:
            return
        content = self._source.read_at(source.fd, self._source.size(source.fd), 0)
        target = SharedFile(self._files, self.directory / name, create=True)
        self._files.writev_at(target.fd, (content,), 0)
        self._files.truncate(target.fd, len(content))
        self.unsynced.add(target.path)

    def _open(self, path: Path, *, may_be_missing: bool) -> SharedFile | None:
        try:
            return SharedFile(self._source, path)
        except FileNotFoundError:
            if may_be_missing:
                return None
            raise LogChanged(f"{path} is gone") from None

    def _remove(self, base: int) -> None:
        """The log first, as everywhere: no file of another segment is to be taken for one of its own."""
        self._pieces.pop(base, None)
        for suffix in (LOG, *INDEXES, SNAPSHOT):
            path = segment_file(self.directory, base, suffix)
            self._files.unlink(path, missing_ok=True)
            self.unsynced.discard(path)
        self._begun.discard(base)

    # -- in a thread, or on the event loop --

    def append_rest(self, seen: Look, spend: Spend) -> None:
        """What is missing if it `lacks_the_end_only`; no flush has seen it, and the next flush of the log
        syncs it, in whatever directory. Raises as `copy` does.
        """
        for piece in seen.pieces[len(self._latest) - 1 :]:
            if self._pieces.get(piece.segment.base_offset) != piece:
                for _ in self._copy_piece(piece, spend):
                    continue  # nobody waits for a sync of it
        self._mark(seen.damaged)
        self._latest = seen.pieces
        self.end_offset = seen.end_offset

    def _had(self, piece: Piece) -> int:
        """Bytes of its log that are here."""
        known = self._pieces.get(piece.segment.base_offset)
        return known.size if known is not None and known.has_become(piece) else 0
