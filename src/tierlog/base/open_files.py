"""Open files: a bounded number of descriptors that stay open, closed in about least-recently-used order.

A `SharedFile` is a reference-counted descriptor, closed with its last reference. Code that reads, writes,
syncs or sends holds the object, never the bare number, so that no descriptor is closed or reused while it is
in use. `OpenFiles` drops owners' references when there are too many; an owner opens its file again at its
next use.

Invariants: at most `limit` files stay open, except files that others hold too (responses that are being sent
count, but cannot be closed). A file with unsynced bytes is closed only if no other is found. Owners may
belong to any thread. Built by the composition root, used through the file port.
"""

import errno
import threading
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

SWEEP = 32
"""Files checked to close one, which bounds the time."""

TRIM = 1000
"""Files closed at once, which takes a few milliseconds."""

OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class Opener(Protocol):
    """The part of the file port that this module uses."""

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int: ...
    def close(self, fd: int) -> None: ...


class SharedFile:
    """An open descriptor that is closed with its last reference; readers survive an unlink."""

    __slots__ = ("__weakref__", "_files", "fd", "path", "unsynced", "used")

    def __init__(self, files: Opener, path: Path, *, create: bool = False) -> None:
        self._files = files
        self.path = path
        self.used = True
        """Whether it was used since it was last checked (the reference bit of a second-chance algorithm)."""
        self.unsynced = False
        """Whether it has writes that no fsync covers. Set after a write, cleared before a sync."""
        self.fd = -1
        self.fd = files.open(path, create=create)

    def __del__(self) -> None:
        if self.fd >= 0:
            self._files.close(self.fd)


class Owner(Protocol):
    """The owner of a file, such as a segment. Referenced weakly."""

    open_file: SharedFile | None


class OpenFiles:
    """All owners with an open file, in the order of the second-chance algorithm."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.opened = 0
        """Uses that had to open a file; every other use found it open."""
        self.evicted = 0
        self._lock = threading.Lock()
        self._ring: OrderedDict[weakref.ref[Owner], None] = OrderedDict()
        self._opening: dict[weakref.ref[Owner], object] = {}  # until released

    def __len__(self) -> int:
        return len(self._ring)

    def open(self, owner: Owner, files: Opener, path: Path, *, create: bool = False) -> SharedFile:
        """The owner's file, which stays open until there are too many. If the owner releases it during the
        open, only the caller holds it. Raises OSError.
        """
        entry = weakref.ref(owner)
        with self._lock:
            if owner.open_file is not None:  # another thread was faster
                return owner.open_file
            opening = self._opening.setdefault(entry, object())
            self._close_for_new()
        try:
            file = self._open(files, path, create=create)
        except OSError:
            self._opening.pop(entry, None)
            raise
        with self._lock:
            if (kept := owner.open_file) is not None:  # another thread was faster: use its file
                return kept
            if self._opening.pop(entry, None) is opening:
                owner.open_file = file
                self._ring[entry] = None
            self.opened += 1
        return file

    def release(self, owner: Owner) -> None:
        """The owner no longer needs its file; slices in use keep it open."""
        entry = weakref.ref(owner)
        with self._lock:
            self._ring.pop(entry, None)
            self._opening.pop(entry, None)
            owner.open_file = None

    def trim(self) -> None:
        """Close files above the limit, which responses held before. Called periodically."""
        for _ in range(min(TRIM, len(self._ring) - self.limit)):
            with self._lock:
                if not self._close_one():
                    return

    def _open(self, files: Opener, path: Path, *, create: bool) -> SharedFile:
        try:
            return SharedFile(files, path, create=create)
        except OSError as failure:
            if failure.errno not in OUT_OF_DESCRIPTORS:
                raise
            with self._lock:  # other parts of the process use too many: close some
                for _ in range(SWEEP):
                    self._close_one()
            return SharedFile(files, path, create=create)

    def _close_for_new(self) -> None:
        """Close a file for a new one; and another, as there may be more than the limit."""
        for _ in range(2):
            if len(self._ring) < self.limit or not self._close_one():
                return

    def _close_one(self) -> bool:
        """Close the first file that was not used since it was last checked; else a used one, else one with
        unsynced bytes. The kernel reports a failed write to the next fsync of a reopened file (Linux 4.17,
        `errseq`) unless the inode was evicted, so these come last.
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
        """False if the file has other references: the owner keeps it then, since it stays open anyway."""
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
