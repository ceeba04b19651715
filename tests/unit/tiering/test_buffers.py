"""Buffer pool: buffers return with the last view of them, and stay within the budget."""

import mmap

import pytest

from tierlog.records.chunks import CHUNK_BYTES
from tierlog.tiering.buffers import SMALLEST_BYTES, Buffer, BufferPool

PAGE = mmap.PAGESIZE


def taken(pool: BufferPool, size: int) -> Buffer:
    buffer = pool.take(size)
    assert buffer is not None
    return buffer


def test_buffer_returns_to_the_pool_with_the_last_slice_of_its_views() -> None:
    returned: list[int] = []
    pool = BufferPool(8 * PAGE, lambda: returned.append(pool.used_bytes))
    buffer = taken(pool, PAGE)
    view = buffer.view(0, 100)
    view[:5] = b"hello"
    part = view[1:4]
    del buffer, view
    assert (bytes(part), pool.used_bytes, returned) == (b"ell", PAGE, [])
    del part
    assert (pool.used_bytes, returned) == (0, [0])


def test_region_that_was_returned_is_used_again() -> None:
    pool = BufferPool(8 * PAGE)
    first = taken(pool, 2 * PAGE)
    first.view(0, 5)[:] = b"bytes"
    del first
    again = taken(pool, 2 * PAGE - 10)
    assert bytes(again.view(0, 5)) == b"bytes"


def test_view_starts_at_a_page_and_covers_the_size() -> None:
    pool = BufferPool(8 * PAGE)
    for size in (1, SMALLEST_BYTES, SMALLEST_BYTES + 1):
        buffer = taken(pool, size)
        assert buffer.size >= size and buffer.size % PAGE == 0
        assert len(buffer.view(0, size)) == size


def test_pool_gives_no_more_than_its_budget() -> None:
    pool = BufferPool(4 * PAGE)
    buffers = [taken(pool, PAGE) for _ in range(4)]
    assert pool.take(PAGE) is None
    buffers.pop()
    assert pool.take(2 * PAGE) is None
    buffers.append(taken(pool, PAGE))
    buffers.clear()
    large = taken(pool, 4 * PAGE)  # the memory of the small ones is given up
    assert pool.take(1) is None
    del large


def test_buffer_larger_than_the_budget_is_given_while_no_other_is_in_use() -> None:
    pool = BufferPool(4 * PAGE)
    small = taken(pool, PAGE)
    assert pool.take(CHUNK_BYTES + 1) is None
    del small
    large = taken(pool, CHUNK_BYTES + 1)
    assert len(large.view(0, CHUNK_BYTES + 1)) == CHUNK_BYTES + 1
    assert pool.take(PAGE) is None


def test_responses_hold_at_most_half_of_the_budget() -> None:
    pool = BufferPool(4 * PAGE)
    buffers = [taken(pool, PAGE) for _ in range(3)]
    held = [pool.lend(buffer, 0, 10) for buffer in buffers[:2]]
    assert None not in held and pool.lent_bytes == 2 * PAGE
    assert pool.lend(buffers[2], 0, 10) is None
    assert pool.lend(buffers[0], 5, 20) is not None, "it is held already"
    assert pool.lent_bytes == 2 * PAGE
    held.pop()
    assert pool.lent_bytes == PAGE
    assert pool.lend(buffers[2], 0, 10) is not None


@pytest.mark.parametrize("loans", [1, 3])
def test_lent_buffer_is_released_with_its_last_loan(loans: int) -> None:
    released: list[int] = []
    pool = BufferPool(4 * PAGE, lambda: released.append(pool.lent_bytes))
    buffer = taken(pool, PAGE)
    held = [pool.lend(buffer, 0, 10) for _ in range(loans)]
    while held:
        assert (pool.lent_bytes, released) == (PAGE, [])
        held.pop()
    assert (pool.lent_bytes, released) == (0, [0])


def test_failed_allocation_leaves_the_budget_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BufferPool(8 * PAGE)

    def fail(*_: object, **__: object) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="allocate"):
        patch.setattr(mmap, "mmap", fail)
        pool.take(PAGE)
    assert pool.used_bytes == 0
    assert taken(pool, 8 * PAGE).size == 8 * PAGE
