"""Segment swap: replaces source segments with the one cleaned segment that was made from them (compaction).

After a crash, the log has either all source segments or the cleaned one. The files of the cleaned segment are
durable, with the suffix `.cleaned`, before the swap starts. The directory is synced between the steps:

- `begin` renames these files to `.swap`, the `.log` file last. After that, a crash keeps the cleaned segment;
- `install` makes readers use the cleaned segment, and renames the files of the sources to `.deleted`;
- `finish` removes the suffix `.swap`, from the `.log` file last.

After a crash, `complete_swaps` does the remaining steps when the log is opened. Called on the event loop by
PartitionLog and the log cleaner.
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
from tierlog.broker.storage.names import INDEXES, LOG, SNAPSHOT, SWAP, offsets_of, segment_file
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
    """`cleaned` replaces `sources`: contiguous segments, the first with the same base offset as `cleaned`."""

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
        """Change the suffix of the cleaned segment's files. Raises OSError, and can be repeated."""
        segment = self.cleaned
        files, directory, base = segment.files, segment.directory, segment.base_offset
        for suffix in (*INDEXES, LOG):
            source = segment.path(suffix)
            if files.exists(source):
                files.rename(source, segment_file(directory, base, suffix + file_suffix))
        segment.file_suffix = file_suffix


class SwappableLog(Protocol):
    """The part of a log that a swap uses."""

    @property
    def config(self) -> TopicConfig: ...
    def has(self, segment: Segment) -> bool: ...
    def replace(self, sources: Sequence[Segment], cleaned: Segment) -> None: ...


class Swaps:
    """The pending swap of one log, if any.

    All steps may raise OSError and can be repeated. After a failed step, the swap stays pending until the
    next cleaning, or an earlier deletion of segments, completes it.
    """

    __slots__ = ("_delayed_deletion", "_directory", "_files", "pending")

    def __init__(self, files: Files, directory: Path, delayed_deletion: DelayedDeletion) -> None:
        self._files = files
        self._directory = directory
        self._delayed_deletion = delayed_deletion
        self.pending: Swap | None = None

    def begin(self, log: SwappableLog, swap: Swap) -> bool:
        """Returns False and does nothing if a swap is pending, or if a source is no longer in the log."""
        if self.pending is not None or not all(log.has(source) and source.rolled for source in swap.sources):
            return False
        self.pending = swap  # before its first step, which may fail halfway
        swap.begin()
        return True

    def after_begin(self, log: SwappableLog, swap: Swap, now_ms: int) -> tuple[Callable[[], None], ...]:
        """The steps after `begin`, in order. Sync the directory before each of them."""
        return partial(self.install, log, swap, now_ms), partial(self.finish, swap)

    def install(self, log: SwappableLog, swap: Swap, now_ms: int) -> None:
        """Does nothing if `complete` has already done this step."""
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
        """Does nothing if `complete` has already done this step."""
        if swap.stage is SwapStage.INSTALLED:
            swap.finish()
            self.pending = None

    def complete(self, log: SwappableLog, now_ms: int) -> bool:
        """Complete a pending swap, with two directory syncs, before segments are deleted or truncated.

        Returns whether a swap was pending.
        """
        swap = self.pending
        if swap is None:
            return False
        swap.begin()
        for step in self.after_begin(log, swap, now_ms):
            self._files.sync_directory(self._directory)
            step()
        return True

    def close(self) -> None:
        """Close the files of a pending swap. `complete_swaps` completes it when the log is opened again."""
        if self.pending is not None:
            self.pending.cleaned.close()


def discard(cleaned: Segment) -> None:
    """Delete the files of a cleaned segment that will not be swapped in. Raises OSError."""
    cleaned.close()
    for suffix in (LOG, *INDEXES):
        cleaned.files.unlink(cleaned.path(suffix), missing_ok=True)


def complete_swaps(files: Files, directory: Path, now_ms: int) -> None:
    """Complete swaps that a crash interrupted after `begin`.

    The cleaned segment ends with the last batch of its sources, so its offset range shows which segments it
    replaces. Its index files are deleted, because some may not have been renamed before the crash; they are
    rebuilt afterwards. Raises OSError and CorruptLog.
    """
    names = files.list_directory(directory)
    bases = offsets_of(names, LOG)
    swapped = [int(match[1]) for name in names if (match := _SWAPPED_LOG.fullmatch(name))]
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
    """End offset of a cleaned segment with the suffix `.swap`."""
    segment = Segment(files, directory, base, now_ms)
    segment.file_suffix = SWAP
    segment.size = files.size_of(segment.path())
    return max((batch.header.next_offset for batch in segment.scan(0)), default=base)
