"""The delete queue: a mapping of its lines, and the oldest of them without a look at the others."""

import random
import uuid
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tierlog.metadata.delete_queue import SPAN_MS, DeleteQueue, QueuedDelete


def line(number: int, queued_ms: int) -> QueuedDelete:
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
LINES = st.lists(st.tuples(NUMBERS, TIMES), max_size=8)


@given(
    steps=st.lists(st.one_of(LINES, st.sets(NUMBERS)), max_size=8),
    marked=st.sets(NUMBERS),
    queued_by_ms=TIMES,
    most=st.integers(0, 5),
)
def test_it_is_what_a_sorted_dict_is(
    steps: list[Any], marked: set[int], queued_by_ms: int, most: int
) -> None:
    queue, model = DeleteQueue(), dict[uuid.UUID, QueuedDelete]()
    for step in steps:
        if isinstance(step, set):
            gone = [uuid.UUID(int=number) for number in step]
            queue = queue.without(gone)
            model = {one: queued for one, queued in model.items() if one not in gone}
        else:
            lines = [line(*one) for one in step]
            queue = queue.with_deletes(lines)
            model |= {one.uuid: one for one in lines}
    assert dict(queue) == model and queue == DeleteQueue(model.values())
    assert len(queue) == len(model)
    assert queue.oldest_ms == min((one.queued_ms for one in model.values()), default=None)
    but = {uuid.UUID(int=number) for number in marked}
    due = [one for one in model.values() if one.queued_ms <= queued_by_ms and one.uuid not in but]
    found = queue.oldest(queued_by_ms, most, exclude=but)
    assert [model[one].queued_ms for one in found] == sorted(one.queued_ms for one in due)[:most]
    assert set(found) <= {one.uuid for one in due} and len(set(found)) == len(found)


class LookedUp(dict[uuid.UUID, QueuedDelete]):
    """Lines that nobody may walk through."""

    def __iter__(self) -> Iterator[uuid.UUID]:
        raise AssertionError("all lines are walked through")

    values = items = keys = __iter__  # type: ignore[assignment]


def test_the_oldest_lines_are_found_without_a_look_at_the_others() -> None:
    """A controller with 200,000 lines marks 500 at a time (MAX_DELETES), and its event loop must not stop."""
    rng = random.Random(1)
    queue = DeleteQueue(line(number, rng.randrange(100 * SPAN_MS)) for number in range(2_000))
    lines = {one: queue[one] for one in queue}
    queue._lines = LookedUp(lines)  # type: ignore[assignment]
    found = queue.oldest(SPAN_MS, 5)
    times = sorted(one.queued_ms for one in lines.values())
    assert [lines[one].queued_ms for one in found] == times[:5]
    assert queue.oldest_ms == times[0]
