"""A cleaned segment takes the place of those that it was made from, and a crash leaves one or the other.

The cleaned files are durable as `.cleaned` before any of this. Then, with the directory synced between two
steps:
  begin    they are renamed to `.swap`, the log last: from here on the new content is the one that counts;
  install  readers get the new segment, and the old files are renamed to `.deleted`;
  finish   `.swap` goes off the names, the log last.
`complete_swaps` does the rest of it when a log is opened. Called on the event loop, by PartitionLog and by
the cleaner of the runtime.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Protocol

from tierlog.base.files import Files
from tierlog.broker.storage.delayed_deletion import DelayedDeletion
from tierlog.broker.storage.names import INDEXES, LOG, SNAPSHOT, SWAP, parse_segment_file, segment_file
from tierlog.broker.storage.segment import Segment
from tierlog.config.topic import TopicConfig

_SWAPPED_LOG = re.compile(r"(\d{20})\.log\.swap")


class SwapStage(IntEnum):
    CLEANED = 0
    BEGUN = 1
    INSTALLED = 2
    FINISHED = 3


@dataclass(slots=True)
class Swap:
    """`cleaned` holds what is left of `sources`, neighbours, the first of which has its base offset."""

    cleaned: Segment
    sources: tuple[Segment, ...]
    stage: SwapStage = SwapStage.CLEANED

    def begin(self) -> None:
        if self.stage is SwapStage.CLEANED:
            self._rename(SWAP)
            self.stage = SwapStage.BEGUN

    def finish(self) -> None:
        self._rename("")
        self.stage = SwapStage.FINISHED

    def _rename(self, file_suffix: str) -> None:
        """May be called again after it failed half way."""
        segment = self.cleaned
        files, directory, base = segment.files, segment.directory, segment.base_offset
        for suffix in (*INDEXES, LOG):
            source = segment.path(suffix)
            if files.exists(source):
                files.rename(source, segment_file(directory, base, suffix + file_suffix))
        segment.file_suffix = file_suffix


class SwappableLog(Protocol):
    """What is asked of the log."""

    @property
    def config(self) -> TopicConfig: ...
    def has(self, segment: Segment) -> bool: ...
    def replace(self, sources: Sequence[Segment], cleaned: Segment) -> None: ...


class Swaps:
    """The swap of one log that is under way, if there is one. All steps raise OSError and can be repeated.

    A step that failed leaves it pending: the next cleaning goes on with it, or a deletion that comes first.
    """

    __slots__ = ("_delayed_deletion", "_directory", "_files", "pending")

    def __init__(self, files: Files, directory: Path, delayed_deletion: DelayedDeletion) -> None:
        self._files = files
        self._directory = directory
        self._delayed_deletion = delayed_deletion
        self.pending: Swap | None = None

    def begin(self, log: SwappableLog, swap: Swap) -> bool:
        """False, and nothing was done, if the log has changed since the cleaning began."""
        if self.pending is not None or not all(log.has(source) and source.rolled for source in swap.sources):
            return False
        self.pending = swap  # before its first step, which may fail half way
        swap.begin()
        return True

    def after_begin(self, log: SwappableLog, swap: Swap, now_ms: int) -> tuple[Callable[[], None], ...]:
        """What is still to do, each of it after a sync of the directory."""
        return partial(self.install, log, swap, now_ms), partial(self.finish, swap)

    def install(self, log: SwappableLog, swap: Swap, now_ms: int) -> None:
        """Nothing happens if a deletion was faster and did it."""
        if swap.stage is not SwapStage.BEGUN:
            return
        first = swap.sources[0]
        if log.has(first):
            log.replace(swap.sources, swap.cleaned)
        due_ms = now_ms + log.config.file_delete_delay_ms
        for source in reversed(swap.sources):
            self._delayed_deletion.rename(source.base_offset, due_ms, keep_snapshot=source is first)
        swap.stage = SwapStage.INSTALLED

    def finish(self, swap: Swap) -> None:
        if swap.stage is SwapStage.INSTALLED:
            swap.finish()
            self.pending = None

    def complete(self, log: SwappableLog, now_ms: int) -> bool:
        """Before segments are dropped or cut, at the price of two fsyncs here; True if there was one."""
        swap = self.pending
        if swap is None:
            return False
        swap.begin()
        for step in self.after_begin(log, swap, now_ms):
            self._files.sync_directory(self._directory)
            step()
        return True

    def close(self) -> None:
        """The next start completes it."""
        if self.pending is not None:
            self.pending.cleaned.close()


def discard(cleaned: Segment) -> None:
    """Unlinks the files of a cleaned segment that is not wanted."""
    cleaned.close()
    for suffix in (LOG, *INDEXES):
        cleaned.files.unlink(cleaned.path(suffix), missing_ok=True)


def complete_swaps(files: Files, directory: Path, now_ms: int) -> None:
    """Carries out what a crash interrupted after `begin`. What it replaces is told by the offsets in it,
    since its last batch is always the last one of what it was made from. Its indexes are built anew: which
    of them were renamed before the crash cannot be known.
    """
    names = files.list_directory(directory)
    bases = sorted(parsed[0] for name in names if (parsed := parse_segment_file(name)) and parsed[1] == LOG)
    swapped = [int(found[1]) for name in names if (found := _SWAPPED_LOG.fullmatch(name))]
    for base in swapped:
        end = _end_of(files, directory, base, now_ms)
        for replaced in reversed([other for other in bases if base < other < end]):
            for suffix in (SNAPSHOT, *INDEXES, LOG):
                files.unlink(segment_file(directory, replaced, suffix), missing_ok=True)
        for suffix in INDEXES:
            files.unlink(segment_file(directory, base, suffix), missing_ok=True)
        files.sync_directory(directory)
        files.rename(segment_file(directory, base, LOG + SWAP), segment_file(directory, base, LOG))
    if swapped:
        files.sync_directory(directory)


def _end_of(files: Files, directory: Path, base: int, now_ms: int) -> int:
    segment = Segment(files, directory, base, now_ms)
    segment.file_suffix = SWAP
    segment.size = files.size_of(segment.path())
    return max((batch.header.next_offset for batch in segment.scan(0)), default=base)
