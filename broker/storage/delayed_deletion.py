"""Delayed deletion of segment files: renamed at once, unlinked after file.delete.delay.ms, so that readers
can finish.
"""

from pathlib import Path

from tierlog.base.files import Files
from tierlog.broker.storage.names import DELETED, INDEXES, LOG, SNAPSHOT, segment_file


class DelayedDeletion:
    __slots__ = ("_directory", "_due", "_files")

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._due: dict[Path, int] = {}  # by path: a base offset may be deleted twice within the delay

    def rename(self, base_offset: int, due_ms: int, *, keep_snapshot: bool = False) -> None:
        """Rename a segment's files, the log first: without it, the next start removes the rest."""
        for suffix in (LOG, *INDEXES) if keep_snapshot else (LOG, *INDEXES, SNAPSHOT):
            path = segment_file(self._directory, base_offset, suffix)
            if self._files.exists(path):
                target = path.with_name(path.name + DELETED)
                self._files.rename(path, target)
                self._due[target] = due_ms

    def take_due(self, now_ms: int) -> list[Path]:
        """The files whose delay has passed; the caller deletes them."""
        due = [path for path, due_ms in self._due.items() if due_ms <= now_ms]
        for path in due:
            del self._due[path]
        return due
