"""Quarantine: ranges of remote objects whose bytes contradict the manifest, or which do not exist.

A range that fails its checks is read once more, because the connection may have damaged it. If it fails
again, the damage is logged, and the range is not read before a back-off has passed, which doubles with each
re-check that fails. A range that reads well again leaves. An object that does not exist is treated the same
if the newest manifest lists it. Kept in memory: after a restart the next read finds the damage. Called by the
remote log and its indexes for each load from the store, on one event loop.
"""

import sys
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

import structlog

from tierlog.base.clock import Clock
from tierlog.base.types import TopicIdPartition, TopicPartition
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound, ObjectStoreError

RECHECK_FIRST_MS = 10_000
RECHECK_MAX_MS = 600_000
"""Re-checks of a range of 8 MiB cost at most 14 KiB a second then; an object that an operator has restored is
served within ten minutes."""

RANGES_MAX = 1000
"""Further ranges are refused too, but read each time."""

LOG_LINES_PER_MINUTE = 20

T = TypeVar("T")
Recheck = Callable[[], Awaitable[object]]
"""Reads a damaged range again, through `Quarantine.read`."""
_log = structlog.get_logger("tierlog.tiering")


@dataclass(frozen=True, slots=True)
class ObjectRange:
    """A chunk of a segment, or a complete index bundle or manifest page, and the offsets whose reads need it.

    `first_offset` is one of the range's first batch. `end_offset` is the first that can be read after it; if
    the segment continues, that is the last one of the batch behind the chunk, since reads of its other
    offsets begin in the chunk."""

    partition: TopicIdPartition
    key: str
    position: int
    first_offset: int
    end_offset: int


@dataclass(slots=True, kw_only=True)
class DamagedRange:
    """A range that is not read before `recheck_at_ms` (monotonic)."""

    place: ObjectRange
    name: TopicPartition
    error: str
    is_missing: bool  # the object does not exist
    recheck: Recheck
    backoff_ms: int
    recheck_at_ms: int


class Quarantine:
    def __init__(self, clock: Clock, name_of: Callable[[TopicIdPartition], TopicPartition]) -> None:
        self._clock = clock
        self._name_of = name_of
        self._damaged: dict[tuple[str, int], DamagedRange] = {}
        self._log_lines = _LogLines()
        self.is_listed: Callable[[ObjectRange], bool | None] = lambda place: True
        """Whether the newest manifest lists the object; None: only a read of the store would tell. Set by the
        remote log."""
        self.damaged_reads = 0
        """Reads whose bytes were wrong, also if the next read was right."""

    @property
    def damaged(self) -> list[DamagedRange]:
        """The ranges that are not served, by topic, partition and offset."""
        return sorted(self._damaged.values(), key=lambda one: (one.name, one.place.first_offset))

    @property
    def keys(self) -> set[str]:
        """The objects with such a range."""
        return {key for key, _ in self._damaged}

    @property
    def objects(self) -> int:
        return len(self.keys)

    @property
    def missing_objects(self) -> int:
        """Number of objects in quarantine that do not exist."""
        return len({one.place.key for one in self._damaged.values() if one.is_missing})

    def damaged_from(self, partition: TopicIdPartition, above: int) -> int:
        """First offset of the partition's damaged ranges that end above an offset; sys.maxsize if there are
        none. Local copies from there on may be the last intact ones."""
        return min(
            (
                one.place.first_offset
                for one in self._damaged.values()
                if one.place.partition == partition
                and one.place.end_offset > above
                and self.is_listed(one.place) is not False
            ),
            default=sys.maxsize,
        )

    def due(self) -> list[Recheck]:
        """Re-checks of the ranges whose back-off has passed. Forgets those that no manifest lists."""
        self._damaged = {
            where: one for where, one in self._damaged.items() if self.is_listed(one.place) is not False
        }
        now_ms = self._clock.monotonic_ms()
        return [one.recheck for one in self._damaged.values() if one.recheck_at_ms <= now_ms]

    async def read(
        self, place: ObjectRange, load: Callable[[], Awaitable[T]], recheck: Recheck | None = None
    ) -> T:
        """Load a range with `load`, which verifies it and raises CorruptObject or ObjectNotFound. Also raises
        them for a range in quarantine, without a load. `recheck`: for a load that cannot be repeated
        later."""
        known = self._damaged.get((place.key, place.position))
        if known is None:
            return await self._read_twice(place, load, recheck or (lambda: self.read(place, load)))
        now_ms = self._clock.monotonic_ms()
        if now_ms < known.recheck_at_ms:
            raise ObjectNotFound(known.error) if known.is_missing else CorruptObject(known.error)
        known.recheck_at_ms = now_ms + known.backoff_ms  # one re-check at a time
        try:
            value = await load()
        except (CorruptObject, ObjectNotFound) as error:
            if self._is_expected(place, error):
                self._damaged.pop((place.key, place.position), None)
                raise
            known.error, known.is_missing = _why(place, error), isinstance(error, ObjectNotFound)
            known.backoff_ms = min(2 * known.backoff_ms, RECHECK_MAX_MS)
            known.recheck_at_ms = self._clock.monotonic_ms() + known.backoff_ms
            raise
        self._damaged.pop((place.key, place.position), None)
        _log.warning("remote_object.well", **_described(known))
        return value

    def end_backoff(self, keys: Collection[str]) -> None:
        """Let the next read of each range of these objects load it again."""
        for one in self._damaged.values():
            if one.place.key in keys:
                one.recheck_at_ms = min(one.recheck_at_ms, self._clock.monotonic_ms())

    def forget(self, partition: TopicIdPartition, below: int) -> None:
        """Forget the partition's ranges that end at or below an offset, because they left the manifest."""
        if not self._damaged:
            return
        self._damaged = {
            where: one
            for where, one in self._damaged.items()
            if one.place.partition != partition or one.place.end_offset > below
        }

    async def _read_twice(self, place: ObjectRange, load: Callable[[], Awaitable[T]], recheck: Recheck) -> T:
        try:
            return await load()
        except (CorruptObject, ObjectNotFound) as error:
            if self._is_expected(place, error):
                raise
        try:
            return await load()
        except (CorruptObject, ObjectNotFound) as error:
            if not self._is_expected(place, error):
                self._add(place, error, recheck)
            raise

    def _is_expected(self, place: ObjectRange, error: ObjectStoreError) -> bool:
        """Whether the object is gone because it left the manifest. If that is not known, the caller reads the
        newest manifest. Counts wrong bytes."""
        if isinstance(error, ObjectNotFound):
            return not self.is_listed(place)
        self.damaged_reads += 1
        return False

    def _add(self, place: ObjectRange, error: ObjectStoreError, recheck: Recheck) -> None:
        now_ms = self._clock.monotonic_ms()
        damaged = DamagedRange(
            place=place,
            name=self._name_of(place.partition),
            error=_why(place, error),
            is_missing=isinstance(error, ObjectNotFound),
            recheck=recheck,
            backoff_ms=RECHECK_FIRST_MS,
            recheck_at_ms=now_ms + RECHECK_FIRST_MS,
        )
        if len(self._damaged) < RANGES_MAX:
            self._damaged[place.key, place.position] = damaged
        self._log_lines.error(now_ms, missing=damaged.is_missing, error=damaged.error, **_described(damaged))


def _why(place: ObjectRange, error: ObjectStoreError) -> str:
    return f"{place.key}: the object does not exist" if isinstance(error, ObjectNotFound) else str(error)


def _described(damaged: DamagedRange) -> dict[str, object]:
    return {
        "partition": str(damaged.name),
        "first_offset": damaged.place.first_offset,
        "end_offset": damaged.place.end_offset,
        "object": damaged.place.key,
    }


class _LogLines:
    """At most LOG_LINES_PER_MINUTE lines about damage, and one that says that there is more."""

    def __init__(self) -> None:
        self._minute = -1
        self._lines = 0

    def error(self, now_ms: int, *, missing: bool, **what: object) -> None:
        if now_ms // 60_000 != self._minute:
            self._minute, self._lines = now_ms // 60_000, 0
        self._lines += 1
        if self._lines <= LOG_LINES_PER_MINUTE:
            _log.error("remote_object.missing" if missing else "remote_object.damaged", **what)
        elif self._lines == LOG_LINES_PER_MINUTE + 1:
            _log.error("remote_object.damaged.more")
