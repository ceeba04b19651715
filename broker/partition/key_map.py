"""Key -> offset of its last record: what one pass of compaction knows of a log, in a table of fixed size.

A slot takes 24 bytes, as in Kafka's offset map: a digest of 16 and an offset of 8. The digest is a
cryptographic one, since two keys taken for one would cost the record of one of them. The table is made of
pages; a digest begins its search in a page of its own, and goes on to the next page where that one is full.
The digests of a page stand side by side, so that one search over its bytes finds a key: to compare slot by
slot in Python takes many times as long. Called by the log cleaner.
"""

from collections.abc import Iterable
from hashlib import blake2b
from math import ceil

from tierlog.broker.records.rewrite import Span

DIGEST_BYTES = 16
PAGE_SLOTS = 32
PAGE_BYTES = PAGE_SLOTS * (DIGEST_BYTES + 8) + 1
"""Digests, offsets, and how many of them there are."""

_DIGESTS_BYTES = PAGE_SLOTS * DIGEST_BYTES
LOAD_FACTOR = 0.9
"""Default of log.cleaner.io.buffer.load.factor."""


class KeyMap:
    __slots__ = ("_counts", "_digests", "_len", "_load_factor", "_offsets", "_pages", "_room", "end_offset")

    def __init__(
        self, budget_bytes: int, first_offset: int, most_keys: int, load_factor: float = LOAD_FACTOR
    ) -> None:
        """Takes no more memory than `most_keys` need, or the budget allows; that of one page at least."""
        self.end_offset = first_offset
        """Every record below it and at or above the first offset is in the map."""
        self._load_factor = load_factor
        self._allocate(min(budget_bytes // PAGE_BYTES, self._pages_for(most_keys)))

    def __len__(self) -> int:
        return self._len

    def add_batch(self, records: Iterable[Span], count: int, next_offset: int) -> bool:
        """Takes the `count` records of a batch, in order; False once there is no room for a key. Those before
        it count, but `end_offset` stays. The first batch always fits, so that each pass gets on.
        """
        if not self._len and count > self._room:
            self._allocate(self._pages_for(count))
        digests, offsets, counts = self._digests, self._offsets, self._counts
        for record in records:
            if record.key is None:
                continue
            digest = blake2b(record.key, digest_size=DIGEST_BYTES).digest()
            slot = self._slot_of(digest)
            if slot < 0:
                if self._len >= self._room:
                    return False
                slot = ~slot
                digests[slot * DIGEST_BYTES : (slot + 1) * DIGEST_BYTES] = digest
                counts[slot // PAGE_SLOTS] += 1
                self._len += 1
            offsets[slot] = record.offset
        self.end_offset = next_offset
        return True

    def is_last(self, key: bytes, offset: int) -> bool:
        """Whether no record of this key with a higher offset is known."""
        slot = self._slot_of(blake2b(key, digest_size=DIGEST_BYTES).digest())
        return slot < 0 or offset >= self._offsets[slot]

    def _slot_of(self, digest: bytes) -> int:
        """Where a digest is; if it is not there, the complement of the slot where it belongs."""
        find, counts, pages = self._digests.find, self._counts, self._pages
        page = hash(digest) % pages
        while True:
            start = page * _DIGESTS_BYTES
            end = start + counts[page] * DIGEST_BYTES
            at = find(digest, start, end)
            while at >= 0 and at % DIGEST_BYTES:  # the end of one and the beginning of the next
                at = find(digest, at + 1, end)
            if at >= 0:
                return at // DIGEST_BYTES
            if end < start + _DIGESTS_BYTES:
                return ~(end // DIGEST_BYTES)
            page = (page + 1) % pages

    def _pages_for(self, keys: int) -> int:
        return ceil((keys + 1) / (PAGE_SLOTS * self._load_factor))

    def _allocate(self, pages: int) -> None:
        """Zeroed memory of the system, which counts only as far as it is written to."""
        self._pages = pages = max(pages, 1)
        self._digests = bytearray(pages * _DIGESTS_BYTES)
        self._offsets = memoryview(bytearray(pages * PAGE_SLOTS * 8)).cast("q")
        self._counts = bytearray(pages)
        slots = pages * PAGE_SLOTS
        self._room = min(int(slots * self._load_factor), slots - 1)  # a search ends at a free slot
        self._len = 0
