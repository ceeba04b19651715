"""The committed log for nodes to which no leader sends it: pages of entries, or a snapshot in chunks where
those are gone."""

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
UNKNOWN = -1


class LogPage(msgspec.Struct, frozen=True, array_like=True):
    """Entries that follow the asker's last; none: nothing new, or the snapshot has to be read instead."""

    entries: tuple[Entry, ...]
    leader: int  # -1: this node hears of none, so others may know more
    voters: dict[int, str]
    snapshot_index: int = 0  # 0: not needed
    snapshot_term: int = 0
    snapshot_bytes: int = 0
    snapshot_crc32c: int = 0
    snapshot_configuration: Configuration | None = None  # for who keeps a log of its own
    term: int = 0  # of this node
    after_term: int = UNKNOWN  # of the entry that those here follow


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
    """Only what is applied here, and so committed. Waits for news, up to `wait_ms`.

    It names the leader only if that one sends to this node, or is it: of two that read from each other, each
    would hold the other's word for news of it."""
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
    return replace(page, entries=entries, after_term=UNKNOWN if before is None else before)


def read_chunk(core: RaftCore, index: int, offset: int) -> bytes | None:
    """None: the snapshot of that index was replaced by a newer one."""
    snapshot = core.log.snapshot
    return snapshot.data[offset : offset + CHUNK_BYTES] if snapshot.index == index else None
