"""The delete queue of the image: what the manifest dropped, by id and by the time at which it was queued.

Immutable, as all of the image. A deleted topic may queue hundreds of thousands of lines at once, and the
controller takes a few hundred at a time; so the oldest lines are found without a look at the others. Their
order follows from the lines alone. Called by evolve, the controller and the broker that deletes.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import islice
from uuid import UUID

import msgspec
from immutables import Map

SPAN_MS = 60_000
"""Lines are grouped by spans of this length, then by millisecond. To find the oldest one takes a look at each
span, 10,000 if a week's deletions wait, and at each millisecond of the first that has lines."""

_Ids = Map[UUID, None]
_Spans = Map[int, Map[int, _Ids]]


class QueuedDelete(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """A line of the durable delete queue: what the manifest dropped, to be deleted after the grace.

    A page that a manifest named is deleted after the segments that it names; one that was only begun goes
    alone. Keys are derived in tiering.format.
    """

    uuid: UUID
    is_page: bool
    topic_id: UUID
    partition: int
    base_offset: int
    last_offset: int
    leader_epoch: int  # of the attempt; -1 for a page that a manifest named
    queued_ms: int  # in the quorum's time; the grace begins here

    @property
    def is_unfinished_page(self) -> bool:
        """Put, or about to be, but in no manifest: the segments that it names are not given up."""
        return self.is_page and self.leader_epoch >= 0


class DeleteQueue(Mapping[UUID, QueuedDelete]):
    """Lines by id, and in the order of their times."""

    __slots__ = ("_lines", "_spans")

    def __init__(self, lines: Iterable[QueuedDelete] = ()) -> None:
        self._lines: Map[UUID, QueuedDelete] = Map()
        self._spans: _Spans = Map()
        if added := {line.uuid: line for line in lines}:
            self._lines, self._spans = Map(added), _with(self._spans, added.values())

    def with_deletes(self, lines: Iterable[QueuedDelete]) -> "DeleteQueue":
        """A line of an id that is queued replaces that one."""
        added = {line.uuid: line for line in lines}
        if not added:
            return self
        queue = self.without(added)
        return _made(queue._lines.update(added), _with(queue._spans, added.values()))

    def without(self, ids: Iterable[UUID]) -> "DeleteQueue":
        gone = {uuid: self._lines[uuid] for uuid in ids if uuid in self._lines}
        if not gone:
            return self
        lines = self._lines.mutate()
        for uuid in gone:
            del lines[uuid]
        return _made(lines.finish(), _without(self._spans, gone.values()))

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest line was queued; None if there is none."""
        return min(self._spans[min(self._spans)]) if self._spans else None

    def oldest(self, queued_by_ms: int, limit: int, exclude: Container[UUID] = ()) -> tuple[UUID, ...]:
        """The oldest lines queued by `queued_by_ms`, at most `limit`, without those in `exclude`."""
        return tuple(islice((uuid for uuid in self._until(queued_by_ms) if uuid not in exclude), limit))

    def _until(self, queued_by_ms: int) -> Iterator[UUID]:
        for number in sorted(number for number in self._spans if number <= queued_by_ms // SPAN_MS):
            span = self._spans[number]
            for queued_ms in sorted(span):
                if queued_ms > queued_by_ms:
                    return
                yield from span[queued_ms]

    def __getitem__(self, uuid: UUID) -> QueuedDelete:
        return self._lines[uuid]

    def __iter__(self) -> Iterator[UUID]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeleteQueue) and self._lines == other._lines

    def __repr__(self) -> str:
        return f"DeleteQueue({list(self._lines.values())})"

    def __hash__(self) -> int:
        return hash(self._lines)


def _made(lines: Map[UUID, QueuedDelete], spans: _Spans) -> DeleteQueue:
    queue = DeleteQueue()
    queue._lines, queue._spans = lines, spans
    return queue


def _with(spans: _Spans, lines: Iterable[QueuedDelete]) -> _Spans:
    for queued_ms, ids in _by_time(lines).items():
        number = queued_ms // SPAN_MS
        span = spans.get(number, Map())
        there: _Ids = span.get(queued_ms, Map())
        spans = spans.set(number, span.set(queued_ms, there.update(dict.fromkeys(ids))))
    return spans


def _without(spans: _Spans, lines: Iterable[QueuedDelete]) -> _Spans:
    for queued_ms, ids in _by_time(lines).items():
        number = queued_ms // SPAN_MS
        there = spans[number][queued_ms].mutate()
        for uuid in ids:
            del there[uuid]
        left = there.finish()
        span = spans[number].set(queued_ms, left) if left else spans[number].delete(queued_ms)
        spans = spans.set(number, span) if span else spans.delete(number)
    return spans


def _by_time(lines: Iterable[QueuedDelete]) -> dict[int, list[UUID]]:
    times: dict[int, list[UUID]] = {}
    for line in lines:
        times.setdefault(line.queued_ms, []).append(line.uuid)
    return times
