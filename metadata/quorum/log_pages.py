"""Log pages: the committed log for nodes to which no leader replicates it.

A page holds entries, or names the snapshot to read in chunks if the entries are no longer in the log.
Used by the node's HTTP routes (`api`), and read by `log_reader`.
"""

import asyncio
import contextlib

import msgspec
from msgspec.structs import replace

from tierlog.metadata.quorum.publisher import MetadataPublisher
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.raft.membership import Configuration
from tierlog.metadata.raft.messages import NO_NODE, Entry

PAGE_BYTES = 1 << 20
CHUNK_BYTES = 1 << 20
WAIT_MS_MAX = 30_000
UNKNOWN_TERM = -1


class LogPage(msgspec.Struct, frozen=True, array_like=True):
    """Entries after the reader's position. None if nothing is new, or the snapshot has to be read first."""

    entries: tuple[Entry, ...]
    leader: int  # -1: this node knows of no leader, so other nodes may hold newer entries
    voters: dict[int, str]
    snapshot_index: int = 0  # 0: not needed
    snapshot_term: int = 0
    snapshot_bytes: int = 0
    snapshot_crc32c: int = 0
    snapshot_configuration: Configuration | None = None  # for readers that keep a log of their own
    term: int = 0  # term of the node that sends the page
    after_term: int = UNKNOWN_TERM  # term of the entry before `entries`


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LogPage)


def encode_page(page: LogPage) -> bytes:
    return _encoder.encode(page)


def decode_page(body: bytes) -> LogPage:
    """Raises msgspec.DecodeError."""
    return _decoder.decode(body)


async def read_page(
    core: RaftCore, publisher: MetadataPublisher, voters: dict[int, str], after: int, wait_ms: int
) -> LogPage:
    """Applied entries only, so all are committed. Waits up to `wait_ms` for new ones.

    The page names the leader only if this node is the leader or is led by it. Otherwise two nodes that read
    from each other would each take the other's stale knowledge of the leader for news."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(wait_ms, WAIT_MS_MAX) / 1000):
            while publisher.image.index <= after:
                await publisher.changed.wait()
    page = LogPage((), core.leader if core.knows_leader_first_hand else NO_NODE, voters, term=core.term)
    log = core.log
    if publisher.image.index <= after:
        return page
    if after + 1 < log.first_index:
        snapshot = log.snapshot
        return replace(
            page,
            snapshot_index=snapshot.index,
            snapshot_term=snapshot.term,
            snapshot_bytes=len(snapshot.data),
            snapshot_crc32c=log.snapshot_crc32c,
            snapshot_configuration=snapshot.configuration,
        )
    entries, before = log.between(after + 1, publisher.image.index + 1, PAGE_BYTES), log.term_at(after)
    return replace(page, entries=entries, after_term=UNKNOWN_TERM if before is None else before)


def read_chunk(core: RaftCore, index: int, offset: int) -> bytes | None:
    """None: the snapshot at that index was replaced by a newer one."""
    snapshot = core.log.snapshot
    return snapshot.data[offset : offset + CHUNK_BYTES] if snapshot.index == index else None
