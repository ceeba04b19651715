"""Sequential readers: recognised by their offsets; their read-ahead grows while they read on."""

import uuid

from tierlog.base.types import TopicIdPartition
from tierlog.tiering.chunk_cache import ChunkKey
from tierlog.tiering.sequential_readers import (
    ACTIVE_S,
    IDLE_S,
    READERS_MAX,
    WINDOW_MAX,
    SequentialReader,
    SequentialReaders,
)

PARTITION, OTHER = (TopicIdPartition(uuid.UUID(int=2), number) for number in range(2))


def chunk(number: int) -> ChunkKey:
    return ChunkKey(PARTITION, uuid.UUID(int=1), number * 100, (number + 1) * 100)


def test_window_doubles_with_each_chunk_of_a_sequential_reader() -> None:
    readers, windows = SequentialReaders(), []
    for read in range(12):
        reader = readers.at(PARTITION, read * 50, read)
        reader.enter(chunk(read // 2))
        windows.append(reader.window)
        readers.advance(reader, (read + 1) * 50, read)
    assert windows == [1, 1, 2, 2, 4, 4, 8, 8, *[WINDOW_MAX] * 4]


def test_reader_that_jumps_begins_with_a_window_of_one_chunk() -> None:
    readers = SequentialReaders()
    reader = readers.at(PARTITION, 0, 0)
    for number in range(3):
        reader.enter(chunk(number))
    readers.advance(reader, 300, 0)
    for partition, offset in ((PARTITION, 800), (OTHER, 300)):
        jumped = readers.at(partition, offset, 1)
        assert jumped.window == 0
        jumped.enter(chunk(8))
        assert jumped.window == 1
    assert readers.at(PARTITION, 300, 1).window == 4


def test_read_that_was_given_up_is_repeated_by_the_same_reader() -> None:
    readers = SequentialReaders()
    assert readers.at(PARTITION, 7, 0) is readers.at(PARTITION, 7, 1)


def test_readers_at_the_same_offset_keep_the_widest_window() -> None:
    readers = SequentialReaders()
    first = readers.at(PARTITION, 0, 0)
    for number in range(3):
        first.enter(chunk(number))
    readers.advance(first, 300, 0)
    second = readers.at(PARTITION, 250, 1)
    second.enter(chunk(2))
    readers.advance(second, 300, 1)
    assert readers.at(PARTITION, 300, 2).window == 4


def test_chunk_is_awaited_by_the_readers_before_its_end_until_they_are_idle() -> None:
    readers = SequentialReaders()
    readers.advance(readers.at(PARTITION, 0, 0), 100, 0)
    assert readers.is_awaited(PARTITION, 101, 1)
    assert not readers.is_awaited(PARTITION, 100, 1)
    assert not readers.is_awaited(OTHER, 101, 1)
    assert not readers.is_awaited(PARTITION, 101, IDLE_S)


def entered(readers: SequentialReaders, offset: int, chunks: int, now_s: float = 0) -> SequentialReader:
    """A reader that has read so many chunks."""
    reader = readers.at(PARTITION, offset, now_s)
    for number in range(chunks):
        reader.enter(chunk(number))
    return reader


def test_readers_share_the_read_ahead_equally() -> None:
    readers = SequentialReaders()
    first, second = (entered(readers, offset, 10) for offset in (0, 5000))
    assert (readers.share(first, 8), readers.share(second, 8)) == (4, 4)
    assert readers.share(first, 1) == 1, "each reads one chunk ahead"


def test_reader_may_use_the_read_ahead_that_others_do_not_want() -> None:
    readers = SequentialReaders()
    looked, reader = entered(readers, 0, 1), entered(readers, 5000, 10)
    assert (readers.share(looked, 8), readers.share(reader, 8)) == (1, 7)
    again = entered(readers, 5000, 0, ACTIVE_S)
    assert readers.share(again, 8) == 8, "the other one has not read for some time"


def test_reader_whose_read_took_long_shares_the_read_ahead() -> None:
    readers = SequentialReaders()
    slow = entered(readers, 0, 10)
    first, second = (entered(readers, offset, 10, 9) for offset in (5000, 9000))
    readers.advance(slow, 1000, 10)
    assert [readers.share(each, 9) for each in (first, second)] == [3, 3]
    assert readers.share(readers.at(PARTITION, 1000, 11), 9) == 3


def test_reader_that_is_joined_has_read_just_now() -> None:
    for windows in ((10, 1), (1, 10)):
        readers = SequentialReaders()
        there, joining = entered(readers, 1000, windows[0]), entered(readers, 0, windows[1], 9)
        other = entered(readers, 5000, 10, 9)
        readers.advance(joining, 1000, 10)
        assert readers.share(other, 8) == 4
        assert readers.at(PARTITION, 1000, 10) is (there if windows[0] > 1 else joining)


def test_readers_are_bounded() -> None:
    readers = SequentialReaders()
    for number in range(READERS_MAX + 5):
        entered(readers, number, 10)
    last = readers.at(PARTITION, READERS_MAX + 4, 0)
    assert (readers.share(last, READERS_MAX), readers.share(last, 2 * READERS_MAX)) == (1, 2)
