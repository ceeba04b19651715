"""Log directories (`log.dirs`): which partition is in which directory, where to place new ones, and what is
offline.

A directory that cannot be locked goes offline and the others serve, unless the metadata is in it. A directory
of another node stops the start, as no retry fixes a configuration error. A partition is in one directory. If
it is found in two, one of them has a marker that the partition moved (KIP-113), or the older copy is set
aside: a directory was offline while the partition was removed from the broker, and the partition was then
created elsewhere. The older copy is in the directory that was last used under a lower broker epoch. If that
does not show, or no other broker is in sync, the partition is refused, since no rule could choose between two
histories. While a directory is offline, a partition that is not found elsewhere, or was being moved there,
may be in it, so it is not created again.

Called by app.py, the replica manager and the directory moves, on the event loop.
"""

import asyncio
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from tierlog.base.files import Files
from tierlog.base.types import TopicPartition, random_uuid
from tierlog.broker.storage.checkpoints import MalformedCheckpoint, NeverSynced, encode_uuid, require_no_flip
from tierlog.broker.storage.disk_threads import wait_for_disk
from tierlog.broker.storage.log_dir import (
    CheckpointRow,
    DirectoryUnusable,
    ForeignDirectory,
    LogDirectory,
)
from tierlog.broker.storage.unclean_restart import UNKNOWN_EPOCH, previous_broker_epoch

PLACEMENT_UNIT_BYTES = 1 << 20
"""Free space is compared in this unit: a smaller difference is only due to recent appends."""

NOT_FULL_BYTES = 2 << 20
"""Least free bytes above log.dir.free.bytes.min from which a full directory accepts appends again: more than
a batch of the default size."""

NOT_FULL_SHARE = 10
"""With a larger log.dir.free.bytes.min, one part in this many of it instead: a directory must not change its
state with every segment."""

PREFERRED_MAX = 10_000
"""Maximum number of absent partitions with a preferred directory; the oldest are forgotten."""

_log = structlog.get_logger("tierlog.directories")


@dataclass(frozen=True, slots=True)
class Claimed:
    cluster_id: str
    directory_ids: tuple[uuid.UUID, ...]


class LogDirectories:
    def __init__(self, paths: Sequence[Path], files: Files, rng: random.Random) -> None:
        self.all = tuple(LogDirectory(path, files, rng) for path in paths)
        self.open_files = files.open_files
        self.on_moved: Callable[[], object] = lambda: None
        """Called after a partition has moved to another directory."""
        self.free_bytes_min = 0
        """log.dir.free.bytes.min."""
        self.may_have_lost = False
        """Whether unsynced data may have been lost since the last use (unclean_restart.py), so that logs may
        end torn.
        """
        self.same_boot = False
        """Whether it is known that no unsynced data was lost. After a power failure of a standalone broker,
        neither is set."""
        self._forgetting: list[asyncio.Future[None]] = []
        self._rng = rng
        self._have_been_read = False
        self._with_refused_copies: set[LogDirectory] = set()
        self._directory_by_partition: dict[TopicPartition, LogDirectory] = {}
        self._preferred: dict[TopicPartition, LogDirectory] = {}  # partitions that have no directory yet
        self._partitions: dict[LogDirectory, set[TopicPartition]] = {
            directory: set() for directory in self.all
        }

    @property
    def online(self) -> list[LogDirectory]:
        return [directory for directory in self.all if directory.failure is None]

    @property
    def offline(self) -> list[LogDirectory]:
        return [directory for directory in self.all if directory.failure is not None]

    @property
    def some_full(self) -> bool:
        return any(directory.is_full for directory in self.all)

    @property
    def enough_free_bytes(self) -> int:
        """Free bytes from which a full or low directory no longer is."""
        return self.free_bytes_min + max(NOT_FULL_BYTES, self.free_bytes_min // NOT_FULL_SHARE)

    def require_one(self) -> None:
        """Raise DirectoryUnusable if all are offline."""
        if not self.online:
            why = "; ".join(directory.refusal or "" for directory in self.all)
            raise DirectoryUnusable(None, why, "log.dirs")

    def forget_boot(self) -> None:
        """A failed directory may have lost writes. Clear the boot ids, so that no later start takes them as
        proof that nothing was lost. In the threads of each directory, as one that hangs delays no other."""
        for directory in self.all:
            end = asyncio.get_running_loop().run_in_executor(directory.threads, directory.forget_boot)
            if not directory.is_hung:
                self._forgetting.append(end)

    async def boot_is_forgotten(self, timeout_s: float) -> None:
        """Wait until the boot ids are cleared, or nothing ends for `timeout_s`. Process exit waits for no
        thread."""
        forgetting, self._forgetting = self._forgetting, []
        await wait_for_disk(forgetting, timeout_s)

    # -- owner --

    def claim(self, node_id: int, cluster_id: str, *, metadata: Path | None = None) -> Claimed:
        """Lock and identify them. If `cluster_id` is empty, use the one they have, or a new one.

        Raises DirectoryUnusable if one belongs to another node or cluster, if none can be locked, or if the
        one with the metadata cannot.
        """
        try:
            return self._claim(node_id, cluster_id, metadata)
        except BaseException:
            self.release()
            raise

    def _claim(self, node_id: int, cluster_id: str, metadata: Path | None) -> Claimed:
        failures: dict[LogDirectory, OSError] = {}
        known: dict[LogDirectory, dict[str, str]] = {}
        for directory in self.all:
            try:
                known[directory] = directory.lock()
            except OSError as failure:
                failures[directory] = failure
        found = (properties["cluster.id"] for properties in known.values() if properties.get("cluster.id"))
        cluster_id = cluster_id or next(found, "") or encode_uuid(random_uuid(self._rng))
        ids: dict[uuid.UUID, LogDirectory] = {}
        for directory, properties in known.items():
            try:
                identity = directory.identify(properties, node_id, cluster_id)
            except ForeignDirectory:
                raise
            except OSError as failure:
                failures[directory] = failure
                continue
            if (twin := ids.get(identity.directory_id)) is not None:
                what = f"it has the same directory.id as {twin.path}: one is a copy of the other"
                raise ForeignDirectory(None, what, str(directory.path))
            ids[identity.directory_id] = directory
        for directory, why in failures.items():
            if not ids or (metadata is not None and holds(directory, metadata)):
                raise why
            directory.fail(why.strerror or str(why))
            _log.error("log_dir.offline", directory=str(directory.path), error=str(why))
        return Claimed(cluster_id, tuple(ids))

    def release(self) -> None:
        for directory in self.all:
            directory.release()

    def read_broker_epochs(self) -> int:
        """The lowest broker epoch under which the online directories were last used; UNKNOWN_EPOCH if one
        does not say. Call it before the logs are opened.
        """
        for directory in self.online:
            directory.last_broker_epoch = previous_broker_epoch(directory.files, [directory.path])
        return min((directory.last_broker_epoch for directory in self.online), default=UNKNOWN_EPOCH)

    def record_broker_epoch(self, broker_epoch: int) -> None:
        """Record the epoch of a registered broker in the online directories. Does nothing before `find`: a
        directory whose partitions could not be read was not used under this epoch. A directory with one of
        two copies of a refused partition keeps its last epoch: it shows which copy is older.
        """
        for directory in self.online if self._have_been_read else ():
            is_kept = directory in self._with_refused_copies
            directory.record_broker_epoch(directory.last_broker_epoch if is_kept else broker_epoch)

    # -- placement --

    def find(
        self,
        wanted: Mapping[TopicPartition, uuid.UUID],
        *,
        may_be_missing: bool = False,
        in_sync_elsewhere: Set[TopicPartition] = frozenset(),
    ) -> tuple[dict[TopicPartition, str], list[Path]]:
        """Locate these partitions and assign each to its directory; set aside directories of others.

        Returns why some are refused, and the paths set aside. An unreadable directory goes offline.
        `may_be_missing`: other replicas may have what is not here. Then a partition that may have moved to a
        directory not in `log.dirs` is set aside too and counts as not found; else it is refused.
        `in_sync_elsewhere`: another broker has all acknowledged records; older copies are set aside.
        """
        found: dict[TopicPartition, list[LogDirectory]] = defaultdict(list)
        left = defaultdict[TopicPartition, dict[LogDirectory, set[uuid.UUID | None]]](dict)
        refused: dict[TopicPartition, str] = {}
        aside: list[Path] = []
        for directory in self.online:
            try:
                for name, targets in directory.moved_partitions().items():
                    left[name][directory] = targets
                for name, topic_id in _identified(directory, wanted):
                    never_synced = isinstance(topic_id, NeverSynced)
                    if (topic_id is None or never_synced) and directory.remove_uninitialized(name):
                        continue
                    if never_synced:
                        aside.append(directory.rename_stray(name))
                        continue
                    damaged = isinstance(topic_id, MalformedCheckpoint)
                    if name not in wanted or not (damaged or topic_id in (None, wanted[name])):
                        aside.append(directory.rename_stray(name))
                        continue
                    found[name].append(directory)
                    if damaged:
                        refused[name] = f"{directory.directory(name)}: {topic_id}"
            except OSError as failure:
                directory.fail(failure.strerror or str(failure))
        for name in wanted:
            directories = found.get(name, [])
            if name in left and len(directories) > 1:
                directories = self._drop_moved_sources(name, directories, left[name])
            elif len(directories) > 1 and name in in_sync_elsewhere - refused.keys():
                directories = self._set_older_aside(name, directories)
            targets = left.get(name, {}).get(directories[0], set()) if len(directories) == 1 else set()
            if self._may_be_in_unavailable(targets):
                refused[name] = self._offline_message("it was being moved, and may lie in")
                self._partitions[directories[0]].add(name)
            elif name not in refused and (gone := self._unknown_targets(targets)):
                if not may_be_missing or not self._rename_stale(name, directories[0]):
                    refused[name] = _unknown_target_message(name, directories[0], gone)
                    self._partitions[directories[0]].add(name)
            elif len(directories) > 1:
                refused[name] = self._refuse_copies(name, directories)
            elif len(directories) == 1:
                self._put(name, directories[0])
            elif name not in refused and self.offline:
                refused[name] = self._offline_message("it may lie in")
        self._have_been_read = True
        for name in left.keys() - refused.keys():
            current = self._directory_by_partition.get(name)
            if current is not None and current.failure is not None:
                continue  # the name of its directory may not be durable
            for directory in left[name]:
                if directory.failure is None:
                    with suppress(OSError):  # the next start tries again
                        directory.remove_move_marker(name)
        return refused, aside

    def _refuse_copies(self, name: TopicPartition, directories: list[LogDirectory]) -> str:
        """The partition belongs to none of them, but their checkpoints and last broker epochs are kept."""
        self._with_refused_copies.update(directories)
        for directory in directories:
            self._partitions[directory].add(name)
        return _found_twice_message(name, directories)

    def _drop_moved_sources(
        self,
        name: TopicPartition,
        directories: list[LogDirectory],
        left: Mapping[LogDirectory, Set[uuid.UUID | None]],
    ) -> list[LogDirectory]:
        """The directories of a partition without the one it was moved from when the node stopped.

        That one is renamed for deletion once the name of the new one is durable, and durably before the
        marker of the move is removed. If that fails, the directory goes offline, and the marker stays.
        """
        stayed = [directory for directory in directories if directory not in left]
        if len(stayed) != 1:
            return directories
        if any(left[one].isdisjoint((stayed[0].directory_id, None)) for one in directories if one in left):
            return directories  # it moved to a third directory
        try:
            stayed[0].sync_names()
        except OSError as failure:
            stayed[0].fail(failure.strerror or str(failure))
            return stayed
        for directory in directories:
            if directory is not stayed[0]:
                _log.warning(
                    "log_dir.partition.move_completed",
                    partition=str(name),
                    left=str(directory.path),
                    directory=str(stayed[0].path),
                )
                try:
                    directory.rename_deleted(name)
                    directory.sync_names()
                except OSError as failure:
                    directory.fail(failure.strerror or str(failure))
        return stayed

    def _set_older_aside(self, name: TopicPartition, directories: list[LogDirectory]) -> list[LogDirectory]:
        """The directory of a partition that was used last, if the broker epochs in the directories show it;
        else all of them. The older copies are kept under another name.
        """
        epochs = sorted(directory.last_broker_epoch for directory in directories)
        if epochs[0] == UNKNOWN_EPOCH or epochs[-1] == epochs[-2]:
            return directories
        newest = max(directories, key=lambda directory: directory.last_broker_epoch)
        for directory in directories:
            if directory is not newest:
                try:
                    path = directory.rename_stray(name)
                except OSError as failure:
                    directory.fail(failure.strerror or str(failure))
                    continue
                _log.warning(
                    "log_dir.partition.duplicate",
                    partition=str(name),
                    directory=str(newest.path),
                    aside=str(path),
                )
        return [newest]

    def _may_be_in_unavailable(self, targets: Iterable[uuid.UUID | None]) -> bool:
        """Whether a partition that was being moved to one of these directories may be in one that is
        unavailable.
        """
        seen = {directory.directory_id for directory in self.online}
        return bool(self.offline) and any(target is None or target not in seen for target in targets)

    def _unknown_targets(self, targets: Set[uuid.UUID | None]) -> list[str]:
        """Targets that are not in `log.dirs`. An offline directory with an unknown id may be any of them."""
        known = {None, *(directory.directory_id for directory in self.all)}
        return sorted(encode_uuid(target) for target in targets if target not in known and target is not None)

    def _rename_stale(self, name: TopicPartition, directory: LogDirectory) -> bool:
        try:
            path = directory.rename_stray(name)
        except OSError as failure:
            directory.fail(failure.strerror or str(failure))
            return False
        _log.error(
            "log_dir.partition.moved",
            partition=str(name),
            directory=str(path),
        )
        return True

    def _offline_message(self, what: str) -> str:
        return f"{what} {', '.join(str(directory.path) for directory in self.offline)}, which is offline"

    def by_path(self, path: str) -> LogDirectory | None:
        """The directory with an absolute path."""
        return next((one for one in self.all if str(one.path.absolute()) == path), None)

    def set_preferred(self, name: TopicPartition, directory: LogDirectory) -> None:
        """Set where an absent partition is created, if it is before the next start."""
        self._preferred.pop(name, None)
        self._preferred[name] = directory
        if len(self._preferred) > PREFERRED_MAX:
            del self._preferred[next(iter(self._preferred))]

    def set_directory(self, name: TopicPartition, directory: LogDirectory) -> None:
        self._put(name, directory)
        self.on_moved()

    def directory_of(self, name: TopicPartition) -> LogDirectory | None:
        return self._directory_by_partition.get(name)

    def partitions_in(self, directory: LogDirectory) -> list[TopicPartition]:
        return sorted(self._partitions[directory])

    def choose(self, name: TopicPartition) -> LogDirectory:
        """The directory of a partition; for a new one, that with the most free space, then the fewest
        partitions. Raises DirectoryUnusable if all are offline.
        """
        known = self._directory_by_partition.get(name)
        if known is not None and (known.failure is not None or known.holds(name)):
            return known
        candidates = self.online
        if not candidates:
            raise DirectoryUnusable(None, "every log directory is offline", str(self.all[0].path))
        chosen = max(candidates, key=self._rank) if len(candidates) > 1 else candidates[0]
        preferred = self._preferred.pop(name, chosen)
        chosen = preferred if preferred in candidates else chosen
        self._put(name, chosen)
        return chosen

    def has_checkpoint(self, name: TopicPartition) -> bool:
        """Whether a checkpoint has the partition, possibly of a deleted topic of the same name."""
        return any(directory.has_checkpoint(name) for directory in self.online)

    def recheck_full(self, not_beside: Path | None = None) -> bool:
        """Accept appends again in full directories with enough free space, except on the disk of
        `not_beside`. Returns whether there was one. May run in a thread.
        """
        found = False
        for directory in self.online:
            if not directory.is_full or (not_beside is not None and _share_disk(directory.path, not_beside)):
                continue
            if directory.space().usable >= self.enough_free_bytes:
                directory.mark_not_full()
                found = True
        return found

    def mark_full_if_short(self, directory: LogDirectory) -> None:
        """Mark it full unless it has the space that a full one needs to accept appends again."""
        try:
            is_short = directory.space().usable < self.enough_free_bytes
        except OSError as failure:
            directory.on_error(failure)
            return
        if is_short:
            directory.mark_full()

    def sharing_full_disks(self) -> list[LogDirectory]:
        """Directories on disks of full ones. May run in a thread."""
        full = [directory.path for directory in self.online if directory.is_full]
        return [one for one in self.online if any(_share_disk(one.path, path) for path in full)]

    def mark_full_beside(self, path: Path) -> None:
        """Stop appends on the disk of a path: the remaining space is for the metadata. Any thread may call
        it.
        """
        for directory in self.online:
            if _share_disk(directory.path, path):
                directory.mark_full()

    def forget(self, name: TopicPartition) -> None:
        self._directory_by_partition.pop(name, None)
        for partitions in self._partitions.values():
            partitions.discard(name)

    def unopened_checkpoints(
        self, directory: LogDirectory, opened: Mapping[TopicPartition, object]
    ) -> list[CheckpointRow]:
        """Checkpoint rows of partitions in it that are not open, as the last run left them."""
        left = directory.checkpoints
        points, starts, marks = left.recovery_points or {}, left.log_starts, left.high_watermarks
        return [
            CheckpointRow(name, points.get(name, 0), starts.get(name, 0), marks.get(name))
            for name in tuple(self._partitions[directory])
            if name not in opened and (name in points or name in starts or name in marks)
        ]

    def deleted_partitions(self) -> Iterator[tuple[LogDirectory, Path]]:
        """Directories of deleted partitions that have not been removed yet."""
        for directory in self.online:
            try:
                for path in directory.deleted_partitions():
                    yield directory, path
            except OSError as failure:
                directory.fail(failure.strerror or str(failure))

    def _put(self, name: TopicPartition, directory: LogDirectory) -> None:
        self.forget(name)
        self._directory_by_partition[name] = directory
        self._partitions[directory].add(name)

    def _rank(self, directory: LogDirectory) -> tuple[bool, int, int]:
        try:
            usable = directory.space().usable
        except OSError as failure:
            directory.on_error(failure)
            return False, 0, 0
        return not directory.is_full, usable // PLACEMENT_UNIT_BYTES, -len(self._partitions[directory])


def _identified(
    directory: LogDirectory, wanted: Mapping[TopicPartition, uuid.UUID]
) -> Iterator[tuple[TopicPartition, uuid.UUID | MalformedCheckpoint | None]]:
    """The partitions of a directory. A topic id with a flipped bit is damage: the directory must not be set
    aside as that of an older topic, which would let the partition start empty.
    """
    for name, found in directory.partitions().items():
        try:
            if isinstance(found, uuid.UUID) and name in wanted:
                require_no_flip(found, wanted[name])
        except MalformedCheckpoint as flipped:
            yield name, flipped
        else:
            yield name, found


def _found_twice_message(name: TopicPartition, directories: Sequence[LogDirectory]) -> str:
    paths = " and ".join(str(directory.directory(name)) for directory in directories)
    return f"found twice, in {paths}: stop the node and move one of them away"


def _unknown_target_message(name: TopicPartition, directory: LogDirectory, gone: Sequence[str]) -> str:
    return (
        f"{directory.directory(name)}: when the node stopped, the partition was being moved to the directory "
        f"with the directory.id {' or '.join(gone)}, which is not in log.dirs, and may be there. Add that "
        f"directory to log.dirs, or remove {directory.path / str(name)}.*.moved-away to use the copy here"
    )


def _share_disk(one: Path, other: Path) -> bool:
    try:
        return one.stat().st_dev == other.stat().st_dev
    except OSError:  # a missing or broken one is detected elsewhere
        return True


def holds(directory: LogDirectory, path: Path) -> bool:
    """Whether a path is inside a log directory."""
    return path.absolute().is_relative_to(directory.path.absolute())
