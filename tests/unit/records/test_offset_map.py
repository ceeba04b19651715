"""Offset map compared with a dictionary: content, memory and capacity."""

import json
import random
import subprocess
import sys
import tracemalloc
from hashlib import blake2b

import pytest

from tierlog.records.offset_map import (
    CHUNK_PAGES,
    DIGEST_BYTES,
    PAGE_BYTES,
    PAGE_SLOTS,
    OffsetMap,
)
from tierlog.records.rewrite import Span

PLENTY = 1 << 20


def span(key: bytes | None, offset: int) -> Span:
    return Span(0, 0, 0, 0, 0, offset, key, False)


def add(keys: OffsetMap, records: dict[bytes, int] | list[tuple[bytes, int]]) -> bool:
    pairs = list(records.items()) if isinstance(records, dict) else records
    return keys.add_batch([span(*pair) for pair in pairs], len(pairs), max(offset for _, offset in pairs) + 1)


@pytest.mark.parametrize("load_factor", [0.5, 0.9, 1.0])
def test_map_agrees_with_a_dictionary(load_factor: float) -> None:
    rng, last = random.Random(1), dict[bytes, int]()
    keys = OffsetMap(PLENTY, 0, 2000, load_factor)
    for batch in range(100):
        records = [(b"key %d" % rng.randrange(2000), batch * 50 + n) for n in range(50)]
        assert add(keys, records)
        last.update(records)
    assert len(keys) == len(last)
    for key, offset in last.items():
        assert keys.is_last(key, offset)
        assert not keys.is_last(key, offset - 1)
    assert all(keys.is_last(b"unknown %d" % n, 0) for n in range(2000))


def test_key_takes_24_bytes_plus_the_load_factor() -> None:
    budget, offset = 1 << 20, 1 << 40
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    keys = OffsetMap(budget, 0, 1 << 40)
    while add(keys, {b"a key %d" % offset: offset}):
        offset += 1
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert len(keys) == int(budget // PAGE_BYTES * PAGE_SLOTS * 0.9)
    assert peak < 1.01 * budget
    assert peak / len(keys) < 27
    assert keys.end_offset == offset


@pytest.mark.parametrize(("most_keys", "bytes_at_most"), [(100, 10_000), (1 << 40, 1 << 20)])
def test_memory_is_allocated_only_for_possible_and_existing_keys(most_keys: int, bytes_at_most: int) -> None:
    """Zeroing memory blocks the event loop, so little is allocated at a time."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    keys = OffsetMap(128 << 20, 0, most_keys)
    assert add(keys, {b"key": 0})
    assert tracemalloc.get_traced_memory()[1] - before < bytes_at_most
    assert add(keys, {b"%d" % n: n for n in range(100)})
    tracemalloc.stop()


def test_map_of_many_chunks_finds_all_its_keys() -> None:
    count = 3 * CHUNK_PAGES * PAGE_SLOTS
    keys = OffsetMap(128 << 20, 0, count)
    assert keys.add_batch((span(b"%d" % n, n) for n in range(count)), count, count)
    assert len(keys) == count
    assert all(keys.is_last(b"%d" % n, n) and not keys.is_last(b"%d" % n, n - 1) for n in range(count))


def test_full_map_ends_at_the_batch_that_does_not_fit_unless_it_is_the_first() -> None:
    keys = OffsetMap(0, 7, 1 << 40)
    first = {b"%d" % n: 7 + n for n in range(500)}  # far above the one page that there is
    assert add(keys, first)
    while add(keys, {b"more %d" % len(keys): 1000 + len(keys)}):
        pass
    end = keys.end_offset
    assert not add(keys, {b"0": 5000, b"new": 5001})
    assert keys.end_offset == end
    assert add(keys, {b"0": 5000})  # known keys cost nothing
    assert not keys.is_last(b"0", 7)


def test_keys_as_long_as_a_digest_are_hashed_too() -> None:
    long = b"a key that is longer than its digest"
    keys = OffsetMap(PLENTY, 0, 4)
    assert add(keys, {b"k" * 16: 1, b"k" * 15: 2, b"k" * 17: 3, long: 4})
    assert keys.is_last(blake2b(long, digest_size=DIGEST_BYTES).digest(), 0)
    assert all(keys.is_last(b"k" * (15 + n), offset) for n, offset in ((1, 1), (0, 2), (2, 3)))


def test_digest_does_not_match_across_two_others() -> None:
    """The end of one digest and the beginning of the next may equal a third digest."""
    keys = OffsetMap(PLENTY, 0, 2)
    assert add(keys, {b"one": 1, b"two": 2})
    one, two = (blake2b(key, digest_size=DIGEST_BYTES).digest() for key in (b"one", b"two"))
    for at in range(1, DIGEST_BYTES):
        assert keys._slot_of((one + two)[at : at + DIGEST_BYTES]) < 0


def test_records_without_a_key_are_skipped() -> None:
    keys = OffsetMap(PLENTY, 0, 2)
    assert keys.add_batch([span(None, 0), span(b"k", 1)], 2, 2)
    assert (len(keys), keys.end_offset) == (1, 2)


FILL_AND_FORGET = """
import json, random, sys, threading
from pathlib import Path
from tierlog.base.process_limits import keep_malloc_small
from tierlog.records.offset_map import OffsetMap
from tierlog.records.rewrite import Span

def resident_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

def build():
    keys = OffsetMap(64 << 20, 0, 1_000_000)
    for n in range(1_000_000):
        keys.add_batch([Span(0, 0, 0, 0, 0, n, b"key %d" % n, False)], 1, n + 1)
        if n % 1000 == 0:
            kept.append(bytes(1024))  # what other parts of the process keep meanwhile
    return resident_kib()

assert keep_malloc_small()
kept, shown = [], {"before": resident_kib()}
thread = threading.Thread(target=lambda: shown.update(full=build()))
thread.start()
thread.join()
print(json.dumps(shown | {"after": resident_kib()}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and tunes glibc")
def test_memory_of_a_map_returns_to_the_kernel() -> None:
    run = subprocess.run([sys.executable, "-c", FILL_AND_FORGET], check=True, capture_output=True, text=True)
    resident = json.loads(run.stdout)
    grown = resident["full"] - resident["before"]
    assert grown > 20 << 10
    assert resident["after"] - resident["before"] < grown // 4
