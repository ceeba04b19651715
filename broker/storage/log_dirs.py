"""The directories of `log.dirs` as one: which partition lies where, where the next one goes, what is offline.

One that cannot be claimed goes offline and the others serve, except where the metadata lies in it; a foreign
one stops the start, for no waiting heals a mistake in the settings. A partition has one place: found twice,
it is refused, and nobody chooses between two histories, unless one of them says that it was left (KIP-113).
While a directory is offline, a partition that is nowhere to be found, or was being moved there, may lie in
it, so it is not begun anew. Called by app.py, the replica manager and the directory moves, on the event loop.
"""

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
from tierlog.broker.storage.log_dir import (
    CheckpointRow,
    DirectoryUnusable,
    ForeignDirectory,
    LogDirectory,
)

PLACEMENT_UNIT_BYTES = 1 << 20
"""Free space is compared in this unit: less of a difference is somebody's append between two looks."""

ROOM_AGAIN_BYTES = 2 << 20
"""Free bytes from which on a full directory takes appends again: more than a batch of the default size."""

PREFERRED_MAX = 10_000
"""Partitions that are not here and were given a directory; of more, the first are forgotten."""

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
        """Called after a partition got another place."""
        self.may_have_lost = False
        """Whether the power went, or the like, since they were used last (boots.py): logs may end torn."""
        self._rng = rng
        self._place: dict[TopicPartition, LogDirectory] = {}
        self._preferred: dict[TopicPartition, LogDirectory] = {}  # of those that are not here
        self._held: dict[LogDirectory, set[TopicPartition]] = {directory: set() for directory in self.all}

    @property
    def online(self) -> list[LogDirectory]:
        return [directory for directory in self.all if directory.failure is None]

    @property
    def offline(self) -> list[LogDirectory]:
        return [directory for directory in self.all if directory.failure is not None]

    @property
    def some_full(self) -> bool:
        return any(directory.is_full for directory in self.all)

    def require_one(self) -> None:
        """Raises DirectoryUnusable if all are offline."""
        if not self.online:
            why = "; ".join(directory.refusal or "" for directory in self.all)
            raise DirectoryUnusable(None, why, "log.dirs")

    # -- whose they are --

    def claim(self, node_id: int, cluster_id: str, *, metadata: Path | None = None) -> Claimed:
        """Locks and identifies them (`cluster_id` may be empty: then the one that they know, or a new one).

        Raises DirectoryUnusable if one is foreign, none can be claimed, or not the one with the metadata.
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
        said = (properties["cluster.id"] for properties in known.values() if properties.get("cluster.id"))
        cluster_id = cluster_id or next(said, "") or encode_uuid(random_uuid(self._rng))
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
                what = f"it has the directory.id of {twin.path}: one is a copy of the other"
                raise ForeignDirectory(None, what, str(directory.path))
            ids[identity.directory_id] = directory
        for directory, why in failures.items():
            if not ids or (metadata is not None and holds(directory, metadata)):
                raise why
            directory.fail(why.strerror or str(why))
            _log.error("a log directory is offline", directory=str(directory.path), error=str(why))
        return Claimed(cluster_id, tuple(ids))

    def release(self) -> None:
        for directory in self.all:
            directory.release()

    def record_broker_epoch(self, broker_epoch: int) -> None:
        """The broker has registered: all that are online are used under this epoch."""
        for directory in self.online:
            directory.record_broker_epoch(broker_epoch)

    # -- which partition lies where --

    def find(
        self, wanted: Mapping[TopicPartition, uuid.UUID], *, may_be_missing: bool = False
    ) -> tuple[dict[TopicPartition, str], list[Path]]:
        """Locate these partitions and assign each to its directory; set aside directories of other
        partitions.

        Returns why some partitions are refused, and the paths that were set aside. A directory that cannot be
        read goes offline. `may_be_missing`: other replicas may have what is not here. Then a partition that
        may have moved to a directory that `log.dirs` no longer names is set aside too and counts as not
        found; else it is refused.
        """
        found: dict[TopicPartition, list[LogDirectory]] = defaultdict(list)
        left = defaultdict[TopicPartition, dict[LogDirectory, set[uuid.UUID | None]]](dict)
        refused: dict[TopicPartition, str] = {}
        aside: list[Path] = []
        for directory in self.online:
            try:
                for name, targets in directory.recorded_moves().items():
                    left[name][directory] = targets
                for name, topic_id in _identified(directory, wanted):
                    if topic_id is None and directory.remove_uninitialized(name):
                        continue
                    if isinstance(topic_id, NeverSynced):
                        if not directory.remove_uninitialized(name):
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
            places = found.get(name, [])
            if name in left and len(places) > 1:
                places = self._drop_moved_sources(name, places, left[name])
            targets = left.get(name, {}).get(places[0], set()) if len(places) == 1 else set()
            if self._may_have_left(targets):
                refused[name] = self._may_lie_elsewhere("it was being moved, and may lie in")
                self._held[places[0]].add(name)
            elif name not in refused and (gone := self._gone(targets)):
                if not may_be_missing or not self._rename_stale(name, places[0]):
                    refused[name] = _may_have_gone(name, places[0], gone)
                    self._held[places[0]].add(name)
            elif len(places) > 1:
                paths = " and ".join(str(directory.directory(name)) for directory in places)
                refused[name] = f"found twice, in {paths}: stop the node and move one of them away"
                for directory in places:  # no place, but their checkpoints are kept
                    self._held[directory].add(name)
            elif len(places) == 1:
                self._put(name, places[0])
            elif name not in refused and self.offline:
                refused[name] = self._may_lie_elsewhere("it may lie in")
        for name in left.keys() - refused.keys():
            place = self._place.get(name)
            if place is not None and place.failure is not None:
                continue  # its name there may not be durable
            for directory in left[name]:
                if directory.failure is None:
                    with suppress(OSError):  # the next start looks again
                        directory.clear_move(name)
        return refused, aside

    def _drop_moved_sources(
        self,
        name: TopicPartition,
        places: list[LogDirectory],
        left: Mapping[LogDirectory, Set[uuid.UUID | None]],
    ) -> list[LogDirectory]:
        """Where it lies, without the place that it was moved from when the node stopped: that is buried, once
        the name of the new one is sure to be durable, and for good before the note is taken away. If that
        fails, the directory goes offline, and the note stays.
        """
        stayed = [directory for directory in places if directory not in left]
        if len(stayed) != 1:
            return places
        if any(left[one].isdisjoint((stayed[0].directory_id, None)) for one in places if one in left):
            return places  # it went to a third one
        try:
            stayed[0].sync_names()
        except OSError as failure:
            stayed[0].fail(failure.strerror or str(failure))
            return stayed
        for directory in places:
            if directory is not stayed[0]:
                _log.warning(
                    "a partition had moved when the node stopped",
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

    def _may_have_left(self, targets: Iterable[uuid.UUID | None]) -> bool:
        """Whether what was to move there, and is in none that could be looked at, may be there."""
        seen = {directory.directory_id for directory in self.online}
        return bool(self.offline) and any(target is None or target not in seen for target in targets)

    def _gone(self, targets: Set[uuid.UUID | None]) -> list[str]:
        """Those that are not in `log.dirs`; nobody knows that of one that is offline."""
        known = {None, *(directory.directory_id for directory in self.all)}
        return sorted(encode_uuid(target) for target in targets if target not in known and target is not None)

    def _rename_stale(self, name: TopicPartition, directory: LogDirectory) -> bool:
        try:
            path = directory.rename_stray(name)
        except OSError as failure:
            directory.fail(failure.strerror or str(failure))
            return False
        _log.error(
            "a partition may have moved to a directory that is not in log.dirs; what it left is kept aside",
            partition=str(name),
            directory=str(path),
        )
        return True

    def _may_lie_elsewhere(self, what: str) -> str:
        return f"{what} {', '.join(str(directory.path) for directory in self.offline)}, which is offline"

    def by_path(self, path: str) -> LogDirectory | None:
        """By its absolute path."""
        return next((one for one in self.all if str(one.path.absolute()) == path), None)

    def set_preferred(self, name: TopicPartition, directory: LogDirectory) -> None:
        """Where it is to be made, if it ever is before the next start."""
        self._preferred.pop(name, None)
        self._preferred[name] = directory
        if len(self._preferred) > PREFERRED_MAX:
            del self._preferred[next(iter(self._preferred))]

    def set_directory(self, name: TopicPartition, directory: LogDirectory) -> None:
        self._put(name, directory)
        self.on_moved()

    def directory_of(self, name: TopicPartition) -> LogDirectory | None:
        return self._place.get(name)

    def partitions_in(self, directory: LogDirectory) -> list[TopicPartition]:
        return sorted(self._held[directory])

    def choose(self, name: TopicPartition) -> LogDirectory:
        """The place of a partition; of a new one where most is free, among equals where there are fewest.

        Raises DirectoryUnusable if all are offline.
        """
        known = self._place.get(name)
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
        """Whether a checkpoint speaks of it, be it of a deleted topic of the name."""
        return any(directory.has_checkpoint(name) for directory in self.online)

    def recheck_full(self, not_beside: Path | None = None) -> bool:
        """Opens full directories that have room again, but none on the disk of `not_beside`; whether there
        was one. May run in a thread.
        """
        found = False
        for directory in self.online:
            if not directory.is_full or (not_beside is not None and _share_disk(directory.path, not_beside)):
                continue
            if directory.space().usable >= ROOM_AGAIN_BYTES:
                directory.mark_not_full()
                found = True
        return found

    def mark_full_if_short(self, directory: LogDirectory) -> None:
        """Takes it for full unless there is as much room as one that was full needs to be taken for roomy."""
        try:
            is_short = directory.space().usable < ROOM_AGAIN_BYTES
        except OSError as failure:
            directory.on_error(failure)
            return
        if is_short:
            directory.mark_full()

    def sharing_full_disks(self) -> list[LogDirectory]:
        """Those that are full, and their neighbours. May run in a thread."""
        full = [directory.path for directory in self.online if directory.is_full]
        return [one for one in self.online if any(_share_disk(one.path, path) for path in full)]

    def mark_full_beside(self, path: Path) -> None:
        """Appends stop on the disk of a path: what room it has left is the metadata's. In any thread."""
        for directory in self.online:
            if _share_disk(directory.path, path):
                directory.mark_full()

    def forget(self, name: TopicPartition) -> None:
        self._place.pop(name, None)
        for held in self._held.values():
            held.discard(name)

    def unopened_checkpoints(
        self, directory: LogDirectory, opened: Mapping[TopicPartition, object]
    ) -> list[CheckpointRow]:
        """Checkpoint rows of those in it that are not open now: as the last run left them."""
        left = directory.checkpoints
        points, starts, marks = left.recovery_points or {}, left.log_starts, left.high_watermarks
        return [
            CheckpointRow(name, points.get(name, 0), starts.get(name, 0), marks.get(name))
            for name in tuple(self._held[directory])
            if name not in opened and (name in points or name in starts or name in marks)
        ]

    def deleted_partitions(self) -> Iterator[tuple[LogDirectory, Path]]:
        """Directories of deleted partitions that a stop left behind."""
        for directory in self.online:
            try:
                for path in directory.deleted_partitions():
                    yield directory, path
            except OSError as failure:
                directory.fail(failure.strerror or str(failure))

    def _put(self, name: TopicPartition, directory: LogDirectory) -> None:
        self.forget(name)
        self._place[name] = directory
        self._held[directory].add(name)

    def _rank(self, directory: LogDirectory) -> tuple[bool, int, int]:
        try:
            usable = directory.space().usable
        except OSError as failure:
            directory.on_error(failure)
            return False, 0, 0
        return not directory.is_full, usable // PLACEMENT_UNIT_BYTES, -len(self._held[directory])


def _identified(
    directory: LogDirectory, wanted: Mapping[TopicPartition, uuid.UUID]
) -> Iterator[tuple[TopicPartition, uuid.UUID | MalformedCheckpoint | None]]:
    """`partitions` of a directory. A topic id with a flipped bit is damage: the directory is not set aside as
    that of an older topic, which would let the partition begin from scratch."""
    for name, found in directory.partitions().items():
        try:
            if isinstance(found, uuid.UUID) and name in wanted:
                require_no_flip(found, wanted[name])
        except MalformedCheckpoint as flipped:
            yield name, flipped
        else:
            yield name, found


def _may_have_gone(name: TopicPartition, directory: LogDirectory, gone: Sequence[str]) -> str:
    return (
        f"{directory.directory(name)}: when the node stopped, the partition was being moved to the directory "
        f"with the directory.id {' or '.join(gone)}, which is not in log.dirs, and may lie there. Add that "
        f"one again, or remove {directory.path / str(name)}.*.moved-away to go on with what was left here"
    )


def _share_disk(one: Path, other: Path) -> bool:
    try:
        return one.stat().st_dev == other.stat().st_dev
    except OSError:  # the one that is gone or broken is found out by others
        return True


def holds(directory: LogDirectory, path: Path) -> bool:
    """Whether a path lies in a log directory."""
    return path.absolute().is_relative_to(directory.path.absolute())
