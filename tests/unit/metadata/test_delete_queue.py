"""Delete queue: a mapping that finds its oldest deletions without reading the others."""

import random
import uuid
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tierlog.metadata.delete_queue import SPAN_MS, DeleteQueue, QueuedDelete


def delete(number: int, queued_ms: int) -> QueuedDelete:
    return QueuedDelete(
        uuid=uuid.UUID(int=number),
        is_page=False,
        topic_id=uuid.UUID(int=1),
        partition=0,
        base_offset=0,
        last_offset=9,
        leader_epoch=1,
        queued_ms=queued_ms,
    )


NUMBERS = st.integers(0, 20)
TIMES = st.integers(0, 5).flatmap(lambda span: st.integers(span * SPAN_MS - 2, span * SPAN_MS + 2))
DELETES = st.lists(st.tuples(NUMBERS, TIMES), max_size=8)


@given(
    steps=st.lists(st.one_of(DELETES, st.sets(NUMBERS)), max_size=8),
    marked=st.sets(NUMBERS),
    queued_by_ms=TIMES,
    limit=st.integers(0, 5),
)
def test_delete_queue_behaves_like_a_sorted_dict(
    steps: list[Any], marked: set[int], queued_by_ms: int, limit: int
) -> None:
    queue, model = DeleteQueue(), dict[uuid.UUID, QueuedDelete]()
    for step in steps:
        if isinstance(step, set):
            removed = [uuid.UUID(int=number) for number in step]
            queue = queue.without(removed)
            model = {one: queued for one, queued in model.items() if one not in removed}
        else:
            deletes = [delete(*one) for one in step]
            queue = queue.with_deletes(deletes)
            model |= {one.uuid: one for one in deletes}
    assert dict(queue) == model and queue == DeleteQueue(model.values())
    assert len(queue) == len(model)
    assert queue.oldest_ms == min((one.queued_ms for one in model.values()), default=None)
    exclude = {uuid.UUID(int=number) for number in marked}
    due = [one for one in model.values() if one.queued_ms <= queued_by_ms and one.uuid not in exclude]
    found = queue.oldest(queued_by_ms, limit, lambda line: line.uuid not in exclude)
    assert [one.queued_ms for one in found] == sorted(one.queued_ms for one in due)[:limit]
    assert set(found) <= set(due) and len(set(found)) == len(found)


class LookedUp(dict[uuid.UUID, QueuedDelete]):
    """A dict that fails when it is iterated."""

    def __iter__(self) -> Iterator[uuid.UUID]:
        raise AssertionError("all deletions are read")

    values = items = keys = __iter__  # type: ignore[assignment]


def test_oldest_deletions_are_found_without_reading_the_others() -> None:
    """Of 200,000 deletions, 500 are marked at a time (MAX_DELETES)."""
    rng = random.Random(1)
    queue = DeleteQueue(delete(number, rng.randrange(100 * SPAN_MS)) for number in range(2_000))
    deletes = {one: queue[one] for one in queue}
    queue._deletes = LookedUp(deletes)  # type: ignore[assignment]
    found = queue.oldest(SPAN_MS, 5, lambda line: True)
    times = sorted(one.queued_ms for one in deletes.values())
    assert [one.queued_ms for one in found] == times[:5]
    assert queue.oldest_ms == times[0]
