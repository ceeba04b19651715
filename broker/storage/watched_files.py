"""File port of one log directory: reports write errors to the directory.

All writers of a directory (logs, recovery, cleaner, checkpoints) use it, so a failed device is noticed
wherever it happens, in any thread. Read errors are not reported: a bad sector costs one response, not the
directory. Built by LogDirectory.
"""

import errno
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tierlog.base.files import Files

DEVICE_ERRORS = frozenset(
    {errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.EUCLEAN, errno.ESTALE, errno.EREMOTEIO}
)
"""Errors of a device that is broken, gone, or was made read-only by the kernel."""

P = ParamSpec("P")
R = TypeVar("R")


OnError = Callable[[OSError], None]
"""Called in any thread."""


class WatchedFiles:
    def __init__(self, files: Files, on_error: OnError, on_sync_error: OnError) -> None:
        self.open_files, self.lock = files.open_files, files.lock
        self.close, self.size, self.read_at = files.close, files.size, files.read_at
        self.list_directory, self.read_whole = files.list_directory, files.read_whole
        self.exists, self.size_of, self.space = files.exists, files.size_of, files.space
        self.reserve = files.reserve  # optional: a failure does not matter
        self.open = _watched(files.open, on_error)  # always for writing too
        self.writev_at = _watched(files.writev_at, on_error)
        self.truncate = _watched(files.truncate, on_error)
        self.sync = _watched(files.sync, on_sync_error)
        self.sync_directory = _watched(files.sync_directory, on_error)
        self.rename = _watched(files.rename, on_error)
        self.unlink = _watched(files.unlink, on_error)
        self.make_directory = _watched(files.make_directory, on_error)
        self.remove_directory = _watched(files.remove_directory, on_error)


def _watched(operation: Callable[P, R], on_error: OnError) -> Callable[P, R]:
    def watched(*args: P.args, **named: P.kwargs) -> R:
        try:
            return operation(*args, **named)
        except OSError as error:
            on_error(error)
            raise

    return watched
