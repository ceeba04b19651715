"""The file port of one data directory: passes every operation on, and tells the directory what went wrong.

So a failed device is noticed at the one door that all its writers use (logs, recovery, cleaner, checkpoints),
in whatever thread they run. Reads are passed on unwatched: a bad sector costs one answer, not a directory.
Built by DataDirectory.
"""

import errno
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from tierlog.base.files import Files

DEVICE_ERRORS = frozenset(
    {errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.EUCLEAN, errno.ESTALE, errno.EREMOTEIO}
)
"""What a device says that is broken, gone, or was made read-only by a kernel that found it damaged."""

P = ParamSpec("P")
R = TypeVar("R")


class Watcher(Protocol):
    """Who is told; in any thread."""

    def note(self, error: OSError) -> None: ...
    def note_sync(self, error: OSError) -> None: ...


class WatchedFiles:
    def __init__(self, files: Files, watcher: Watcher) -> None:
        self.open_files = files.open_files
        self.close, self.size, self.read_at = files.close, files.size, files.read_at
        self.list_directory, self.read_whole = files.list_directory, files.read_whole
        self.exists, self.size_of, self.space = files.exists, files.size_of, files.space
        self.reserve = files.reserve  # a courtesy: no room for it is no trouble
        self.open = _watched(files.open, watcher.note)  # always for writing too
        self.writev_at = _watched(files.writev_at, watcher.note)
        self.truncate = _watched(files.truncate, watcher.note)
        self.sync = _watched(files.sync, watcher.note_sync)
        self.sync_directory = _watched(files.sync_directory, watcher.note)
        self.rename = _watched(files.rename, watcher.note)
        self.unlink = _watched(files.unlink, watcher.note)
        self.make_directory = _watched(files.make_directory, watcher.note)
        self.remove_directory = _watched(files.remove_directory, watcher.note)


def _watched(operation: Callable[P, R], note: Callable[[OSError], None]) -> Callable[P, R]:
    def watched(*args: P.args, **named: P.kwargs) -> R:
        try:
            return operation(*args, **named)
        except OSError as error:
            note(error)
            raise

    return watched
