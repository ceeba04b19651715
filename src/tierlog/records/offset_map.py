"""Offset map: the last offset of each key, built by one pass of compaction, in a table of bounded size.

A slot takes 24 bytes, as in Kafka's offset map: a 16-byte digest of the key and an 8-byte offset. The digest
is cryptographic, since a collision would lose a record. The table consists of pages. The search for a digest
starts in the page given by its hash and continues in the next page if that one is full. The digests of a page
are contiguous, so one search over bytes finds a key; comparing slot by slot in Python would be many times
slower. Memory is allocated in chunks on first use, since zeroing all of it at once would block the event
loop. Both arrays of a chunk are so large that the allocator maps them separately (`MAPPED_FROM_BYTES`):
smaller ones can stay in the process after a pass. Called by the log cleaner, and by Spark's job `compact`.
"""

from array import array
from collections.abc import Iterable
from hashlib import blake2b
from math import ceil

from tierlog.records.rewrite import Span

DIGEST_BYTES = 16
PAGE_SLOTS = 32
PAGE_BYTES = PAGE_SLOTS * (DIGEST_BYTES + 8) + 1
"""Digests, offsets, and their count."""

CHUNK_PAGES = 1024
LOAD_FACTOR = 0.9
"""Default of log.cleaner.io.buffer.load.factor."""

_CHUNK_SLOTS = CHUNK_PAGES * PAGE_SLOTS
_DIGESTS_BYTES = PAGE_SLOTS * DIGEST_BYTES


class OffsetMap:
    __slots__ = (
        "_capacity",
        "_counts",
        "_digests",
        "_len",
        "_load_factor",
        "_offsets",
        "_pages",
        "end_offset",
    )

    def __init__(
        self, budget_bytes: int, first_offset: int, most_keys: int, load_factor: float = LOAD_FACTOR
    ) -> None:
        """Allocate at most `budget_bytes` (but at least one page), and no more than `most_keys` keys need."""
        self.end_offset = first_offset
        """Every record from the first offset up to here is in the map."""
        self._load_factor = load_factor
        self._resize(min(budget_bytes // PAGE_BYTES, self._pages_for(most_keys)))

    def __len__(self) -> int:
        return self._len

    def add_batch(self, records: Iterable[Span], count: int, next_offset: int) -> bool:
        """Add the `count` records of a batch, in order. Returns False when the map is full: keys added before
        are kept, but `end_offset` stays. The first batch always fits, so that each pass makes progress.
        """
        if not self._len and count > self._capacity:
            self._resize(self._pages_for(count))
        for record in records:
            if record.key is None:
                continue
            digest = blake2b(record.key, digest_size=DIGEST_BYTES).digest()
            slot = self._slot_of(digest)
            if slot < 0:
                if self._len >= self._capacity:
                    return False
                slot = ~slot
                self._insert(slot, digest)
            self._offsets[slot // _CHUNK_SLOTS][slot % _CHUNK_SLOTS] = record.offset
        self.end_offset = next_offset
        return True

    def is_last(self, key: bytes, offset: int) -> bool:
        """Whether the map has no higher offset for this key."""
        slot = self._slot_of(blake2b(key, digest_size=DIGEST_BYTES).digest())
        return slot < 0 or offset >= self._offsets[slot // _CHUNK_SLOTS][slot % _CHUNK_SLOTS]

    def _slot_of(self, digest: bytes) -> int:
        """The slot of a digest, or the complement of the free slot where it belongs."""
        counts, pages = self._counts, self._pages
        page = hash(digest) % pages
        while True:
            count = counts[page]
            chunk, in_chunk = divmod(page, CHUNK_PAGES)
            if count:
                start = in_chunk * _DIGESTS_BYTES
                end = start + count * DIGEST_BYTES
                find = self._digests[chunk].find
                at = find(digest, start, end)
                while at >= 0 and at % DIGEST_BYTES:  # a match across two digests
                    at = find(digest, at + 1, end)
                if at >= 0:
                    return chunk * _CHUNK_SLOTS + at // DIGEST_BYTES
            if count < PAGE_SLOTS:
                return ~(page * PAGE_SLOTS + count)
            page = (page + 1) % pages

    def _insert(self, slot: int, digest: bytes) -> None:
        chunk, in_chunk = divmod(slot, _CHUNK_SLOTS)
        digests = self._digests[chunk]
        if not digests:
            slots = min(_CHUNK_SLOTS, self._pages * PAGE_SLOTS - chunk * _CHUNK_SLOTS)
            self._digests[chunk] = digests = bytearray(slots * DIGEST_BYTES)
            self._offsets[chunk] = array("q", (0,)) * slots
        digests[in_chunk * DIGEST_BYTES : (in_chunk + 1) * DIGEST_BYTES] = digest
        self._counts[slot // PAGE_SLOTS] += 1
        self._len += 1

    def _pages_for(self, keys: int) -> int:
        return ceil((keys + 1) / (PAGE_SLOTS * self._load_factor))

    def _resize(self, pages: int) -> None:
        """Allocate an empty table."""
        self._pages = pages = max(pages, 1)
        chunks = ceil(pages / CHUNK_PAGES)
        self._digests = [bytearray()] * chunks
        self._offsets = [array("q")] * chunks
        self._counts = bytearray(pages)
        slots = pages * PAGE_SLOTS
        self._capacity = min(int(slots * self._load_factor), slots - 1)  # a search ends at a free slot
        self._len = 0
