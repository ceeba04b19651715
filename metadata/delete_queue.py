"""Delete queue of the image: objects that left a manifest, by id and by the time when they were queued.

Immutable, like the whole image. A deleted topic is one deletion, however many segments it has. Retention of
many partitions may queue hundreds of thousands, of which a few hundred are marked at a time, so the oldest
are found without scanning the others. Their order depends only on the deletions. Called by evolve, the
controller and the remote storage cleaner.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from uuid import UUID

import msgspec
from immutables import Map

SPAN_MS = 60_000
"""Deletions are grouped by spans of this length, then by millisecond. Finding the oldest one reads the key of
each span (10,000 for a week of deletions) and of each millisecond in the first span."""

_Ids = Map[UUID, None]
_Spans = Map[int, Map[int, _Ids]]


WITH_SEGMENTS = -1
ALONE = -2


class QueuedDelete(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """A deletion in the durable queue: an object that left a manifest, to be deleted after the grace.

    A page that was in a manifest is deleted after all segments and pages below it, or alone if another page
    has replaced it. An unfinished page is deleted alone. Object keys are derived in tiering.format.
    """

    uuid: UUID
    is_page: bool
    topic_id: UUID
    partition: int
    base_offset: int
    last_offset: int
    leader_epoch: int  # epoch of the attempt; WITH_SEGMENTS or ALONE for a page that was in a manifest
    queued_ms: int  # in the quorum's time; start of the grace
    log_bytes: int = 0  # bytes of its segments; 0: unknown, as for a copy that was not finished
    segments: int = 1  # segments deleted with it; 0 for a page that is deleted alone

    @property
    def is_unfinished_page(self) -> bool:
        """Announced, and perhaps put, but in no manifest: the segments that it names are still in use."""
        return self.is_page and self.leader_epoch >= 0

    @property
    def is_alone(self) -> bool:
        """A page whose deletion spares what it names."""
        return self.is_page and self.leader_epoch != WITH_SEGMENTS


class DeletedTopic(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """A deleted topic in the queue. After the grace, all objects of its partitions are deleted."""

    uuid: UUID  # id of the topic
    partitions: int  # their number
    queued_ms: int


Deletion = QueuedDelete | DeletedTopic


class DeleteQueue(Mapping[UUID, Deletion]):
    """Queued deletions by id, and in the order of their times."""

    __slots__ = ("_deletes", "_spans")

    def __init__(self, deletes: Iterable[Deletion] = ()) -> None:
        self._deletes: Map[UUID, Deletion] = Map()
        self._spans: _Spans = Map()
        if added := {delete.uuid: delete for delete in deletes}:
            self._deletes, self._spans = Map(added), _with(self._spans, added.values())

    def with_deletes(self, deletes: Iterable[Deletion]) -> "DeleteQueue":
        """A deletion with the id of a queued one replaces it."""
        added = {delete.uuid: delete for delete in deletes}
        if not added:
            return self
        queue = self.without(added)
        return _build(queue._deletes.update(added), _with(queue._spans, added.values()))

    def without(self, ids: Iterable[UUID]) -> "DeleteQueue":
        removed = {uuid: self._deletes[uuid] for uuid in ids if uuid in self._deletes}
        if not removed:
            return self
        deletes = self._deletes.mutate()
        for uuid in removed:
            del deletes[uuid]
        return _build(deletes.finish(), _without(self._spans, removed.values()))

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest deletion was queued; None if there is none."""
        return min(self._spans[min(self._spans)]) if self._spans else None

    def oldest(self, by_ms: int, limit: int, where: Callable[[Deletion], bool]) -> tuple[Deletion, ...]:
        """The oldest deletions for which `where` holds, at most `limit`, of those queued by `by_ms`."""
        lines = (self._deletes[uuid] for uuid in self._until(by_ms))
        return tuple(islice(filter(where, lines), limit))

    def _until(self, queued_by_ms: int) -> Iterator[UUID]:
        for number in sorted(number for number in self._spans if number <= queued_by_ms // SPAN_MS):
            span = self._spans[number]
            for queued_ms in sorted(span):
                if queued_ms > queued_by_ms:
                    return
                yield from span[queued_ms]

    def __getitem__(self, uuid: UUID) -> Deletion:
        return self._deletes[uuid]

    def __iter__(self) -> Iterator[UUID]:
        return iter(self._deletes)

    def __len__(self) -> int:
        return len(self._deletes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeleteQueue) and self._deletes == other._deletes

    def __repr__(self) -> str:
        return f"DeleteQueue({list(self._deletes.values())})"

    def __hash__(self) -> int:
        return hash(self._deletes)


def _build(deletes: Map[UUID, Deletion], spans: _Spans) -> DeleteQueue:
    queue = DeleteQueue()
    queue._deletes, queue._spans = deletes, spans
    return queue


def _with(spans: _Spans, deletes: Iterable[Deletion]) -> _Spans:
    for queued_ms, ids in _by_time(deletes).items():
        number = queued_ms // SPAN_MS
        span = spans.get(number, Map())
        ids_at: _Ids = span.get(queued_ms, Map())
        spans = spans.set(number, span.set(queued_ms, ids_at.update(dict.fromkeys(ids))))
    return spans


def _without(spans: _Spans, deletes: Iterable[Deletion]) -> _Spans:
    for queued_ms, ids in _by_time(deletes).items():
        number = queued_ms // SPAN_MS
        ids_at = spans[number][queued_ms].mutate()
        for uuid in ids:
            del ids_at[uuid]
        left = ids_at.finish()
        span = spans[number].set(queued_ms, left) if left else spans[number].delete(queued_ms)
        spans = spans.set(number, span) if span else spans.delete(number)
    return spans


def _by_time(deletes: Iterable[Deletion]) -> dict[int, list[UUID]]:
    times: dict[int, list[UUID]] = {}
    for delete in deletes:
        times.setdefault(delete.queued_ms, []).append(delete.uuid)
    return times
