"""A disk that counts fsyncs, can hold them or make them fail, and knows what a power loss would leave."""

import os
import threading
from collections import Counter
from pathlib import Path

from tierlog.base.files import OsFiles


class WatchedDisk(OsFiles):
    """By directory name: `syncs` counts fsyncs of logs, `hold` makes them wait, `broken` makes them fail."""

    def __init__(self) -> None:
        self.syncs: Counter[str] = Counter()
        self.broken: set[str] = set()
        self.full: set[str] = set()
        self.durable: dict[Path, bytes] = {}
        self._paths: dict[int, Path] = {}
        self._gates: dict[str, tuple[threading.Event, threading.Event]] = {}

    def hold(self, directory: str) -> threading.Event:
        """Make fsyncs wait until `release`; the event is set when one of them waits."""
        self._gates[directory] = (threading.Event(), threading.Event())
        return self._gates[directory][0]

    def release(self, directory: str) -> None:
        self._gates.pop(directory)[1].set()

    def surviving(self, directory: Path) -> dict[str, bytes]:
        """The content of the files after a power loss: only synced bytes."""
        return {path.name: content for path, content in self.durable.items() if path.parent == directory}

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if exclusive and path.parent.name in self.full:
            raise OSError(28, "No space left on device")
        fd = super().open(path, create=create, exclusive=exclusive)
        self._paths[fd] = path
        return fd

    def sync(self, fd: int) -> None:  # type: ignore[override]
        path = self._paths[fd]
        directory = path.parent.name
        content = os.pread(fd, os.fstat(fd).st_size, 0)  # later writes are not covered
        if path.suffix == ".log":
            self.syncs[directory] += 1
            if directory in self._gates:
                entered, go_on = self._gates[directory]
                entered.set()
                go_on.wait()
        if directory in self.broken:
            raise OSError(5, "Input/output error")
        OsFiles.sync(fd)
        self.durable[path] = content

    def rename(self, source: Path, target: Path) -> None:  # type: ignore[override]
        OsFiles.rename(source, target)
        if source in self.durable:
            self.durable[target] = self.durable.pop(source)
