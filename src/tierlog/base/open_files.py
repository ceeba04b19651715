"""Which files stay open: a bounded number of descriptors, and those that nobody used for a while go first.

A `SharedFile` is a descriptor with holders, closed when the last one lets go. Whoever reads, writes, syncs or
sends holds the object meanwhile, never the bare number: so no descriptor is closed, or its number given
to another file, under anybody. `OpenFiles` makes owners let go when there are too many; an owner opens its
file again at its next use.

Invariants: at most `most` files are kept, save those that somebody else holds too (answers that are being
sent count, but cannot be closed); a file with unsynced bytes is closed only if no other is left in sight.
Owners belong to any thread; built by the composition root, used through the file port.
"""

import errno
import threading
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

SWEEP = 32
"""Files looked at to close one: the nearest to the longest unused that a bounded time finds."""

TRIM = 1000
"""Files closed in one go: they take a few milliseconds."""

OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class Opener(Protocol):
    """The part of the file port that is needed here."""

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int: ...
    def close(self, fd: int) -> None: ...


class SharedFile:
    """An open descriptor that is closed when the last holder lets go; readers survive an unlink."""

    __slots__ = ("__weakref__", "_files", "fd", "path", "unsynced", "used")

    def __init__(self, files: Opener, path: Path, *, create: bool = False) -> None:
        self._files = files
        self.path = path
        self.used = True
        """Since the bound last looked at it: its second chance."""
        self.unsynced = False
        """Whether writes went through it that no fsync has covered. Set after a write, cleared before a
        sync.
        """
        self.fd = -1
        self.fd = files.open(path, create=create)

    def __del__(self) -> None:
        if self.fd >= 0:
            self._files.close(self.fd)


class Owner(Protocol):
    """Whose file it is, such as a segment. It may be lost without a word: it is referred to weakly."""

    open_file: SharedFile | None


class OpenFiles:
    """All owners with an open file, in the order in which the second-chance hand meets them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.opened = 0
        """Times that an owner's file had to be opened; every other use found it open."""
        self.evicted = 0
        self._lock = threading.Lock()
        self._ring: OrderedDict[weakref.ref[Owner], None] = OrderedDict()
        self._opening: dict[weakref.ref[Owner], object] = {}  # and not let go of since

    def __len__(self) -> int:
        return len(self._ring)

    def open(self, owner: Owner, files: Opener, path: Path, *, create: bool = False) -> SharedFile:
        """The owner's file, kept until there are too many; one that the owner let go of while it was being
        opened is the caller's alone. Raises OSError.
        """
        entry = weakref.ref(owner)
        with self._lock:
            if owner.open_file is not None:  # another thread was faster
                return owner.open_file
            opening = self._opening.setdefault(entry, object())
            self._make_room()
        try:
            file = self._open(files, path, create=create)
        except OSError:
            self._opening.pop(entry, None)
            raise
        with self._lock:
            if (kept := owner.open_file) is not None:  # another thread was faster: marks are made in its file
                return kept
            if self._opening.pop(entry, None) is opening:
                owner.open_file = file
                self._ring[entry] = None
            self.opened += 1
        return file

    def let_go(self, owner: Owner) -> None:
        """The owner needs its file no more; slices of it that were handed out keep it open."""
        entry = weakref.ref(owner)
        with self._lock:
            self._ring.pop(entry, None)
            self._opening.pop(entry, None)
            owner.open_file = None

    def trim(self) -> None:
        """Down to the bound again, after answers held more; to be called now and then."""
        for _ in range(min(TRIM, len(self._ring) - self.most)):
            with self._lock:
                if not self._close_one():
                    return

    def _open(self, files: Opener, path: Path, *, create: bool) -> SharedFile:
        try:
            return SharedFile(files, path, create=create)
        except OSError as failure:
            if failure.errno not in OUT_OF_DESCRIPTORS:
                raise
            with self._lock:  # somebody else of the process has taken what was ours: do with fewer
                for _ in range(SWEEP):
                    self._close_one()
            return SharedFile(files, path, create=create)

    def _make_room(self) -> None:
        """For one more; and one more than that, as there may be more than the bound."""
        for _ in range(2):
            if len(self._ring) < self.most or not self._close_one():
                return

    def _close_one(self) -> bool:
        """Closes the first file that nobody used since the hand was here; failing that one in use, then one
        with unsynced bytes. After the latter the kernel tells a failed write to the next fsync that opens
        the file (Linux 4.17, `errseq`), unless it has forgotten the inode by then: hence last.
        """
        used: list[weakref.ref[Owner]] = []
        unsynced: list[weakref.ref[Owner]] = []
        for _ in range(min(SWEEP, len(self._ring))):
            entry = next(iter(self._ring))
            owner = entry()
            if owner is None or owner.open_file is None:
                del self._ring[entry]
                return True
            self._ring.move_to_end(entry)
            if owner.open_file.unsynced:
                unsynced.append(entry)
            elif owner.open_file.used:
                owner.open_file.used = False
                used.append(entry)
            elif self._close(entry):
                return True
        return any(map(self._close, used + unsynced))

    def _close(self, entry: "weakref.ref[Owner]") -> bool:
        """False if somebody else holds the file: then its owner keeps it, for a second descriptor would be
        no gain.
        """
        owner = entry()
        if owner is None or owner.open_file is None:
            del self._ring[entry]
            return True
        still_held = weakref.ref(owner.open_file)
        owner.open_file = None
        if (file := still_held()) is not None:
            owner.open_file = file
            return False
        del self._ring[entry]
        self.evicted += 1
        return True
