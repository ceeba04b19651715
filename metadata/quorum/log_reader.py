"""The committed log, read from the members of the quorum by nodes to which no leader sends it.

Those are brokers that are no controllers (`MetadataObserver`), and nodes of the quorum that are no members
any more, or not yet (KIP-853: a removed voter goes on as an observer). A node keeps what it reads in its own
log, as if a leader had sent it, so that it can be taken in again. A member may have missed its own removal:
one that hears of no leader for long reads as well.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable

import structlog
from crc32c import crc32c

from tierlog.base.tasks import TaskGroup
from tierlog.metadata.quorum.log_pages import LogPage
from tierlog.metadata.quorum.peers import MetadataUnavailable, Peers
from tierlog.metadata.quorum.recovery import TERM_GAP
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.raft.messages import NO_NODE
from tierlog.metadata.raft.settings import RaftSettings

WAIT_MS = 1_000  # of a long poll; who is hung is noticed only a little later
SILENT_TICKS = 20  # without a leader, after which a member looks for its removal: elections take less

_log = structlog.get_logger("tierlog.metadata")


class LogReader:
    """`sources`: whom to ask, in this order. `position`: the last index that is here. `take`: is given each
    page, and the data of the snapshot that it names if the position is before that, else nothing; False if
    that cannot be of the log that is here. `settings`: for the largest snapshot. `remedy`: for a log that is
    another one, in words."""

    def __init__(
        self,
        peers: Peers,
        sources: Callable[[], Iterable[int]],
        position: Callable[[], int],
        take: Callable[[LogPage, bytes], bool],
        settings: RaftSettings | None = None,
        *,
        remedy: str = "This node's metadata has to be deleted for it to follow that one",
    ) -> None:
        self._peers, self._sources, self._position, self._take = peers, sources, position, take
        self._remedy = remedy
        self._asked = self._doubted = NO_NODE
        self._patience: asyncio.Timeout | None = None
        self._most_bytes = (settings or RaftSettings()).snapshot_bytes
        self._refused: dict[int, str] = {}  # source -> why, as it was told

    def doubt(self, source: int) -> None:
        """Another question to it was not answered. If it is being read from, the next is asked at once."""
        self._doubted = source
        if source == self._asked and self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def read(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """One source as long as it knows of a leader, then the next: it may be cut off. Returns after the
        last, or when no more is wanted."""
        for source in self._sources():
            if source == self._doubted:
                self._doubted = NO_NODE  # it has its turn again after the others
                continue
            wait_ms = 0  # the first page tells of the leader, news or not
            with contextlib.suppress(MetadataUnavailable):
                while wanted() and await self._read_page(source, wait_ms):
                    wait_ms = WAIT_MS

    async def _read_page(self, source: int, wait_ms: int) -> bool:
        """Whether this source is worth asking again: one that is no voter reads itself, perhaps from here."""
        page = await self._page(source, wait_ms)
        jumps = page.snapshot_index > self._position()
        if not self._take(page, await self._read_snapshot(source, page) if jumps else b""):
            raise self._refusal(
                source,
                "its log is not the one that is here: it was recovered (`tierlog quorum recover`), or made "
                f"anew. {self._remedy}",
            )
        self._refused.pop(source, None)
        return page.leader != NO_NODE and source in page.voters

    async def _page(self, source: int, wait_ms: int) -> LogPage:
        self._asked = source
        try:
            async with asyncio.timeout(None) as self._patience:
                return await self._peers.log(source, self._position(), wait_ms)
        except TimeoutError:
            raise MetadataUnavailable(f"node {source} is silent", applied_unknown=False) from None
        finally:
            self._patience = None

    async def _read_snapshot(self, source: int, page: LogPage) -> bytes:
        """Into memory, hence no larger than it says, nor than is taken from a leader."""
        if page.snapshot_bytes > self._most_bytes:
            raise self._refusal(
                source,
                f"its snapshot has {page.snapshot_bytes} bytes, and {self._most_bytes} at the most are taken",
            )
        data, checksum = bytearray(), 0
        while len(data) < page.snapshot_bytes:
            chunk = await self._peers.snapshot(source, page.snapshot_index, len(data))
            if not chunk or len(data) + len(chunk) > page.snapshot_bytes:
                break
            data += chunk
            checksum = crc32c(chunk, checksum)
        if len(data) != page.snapshot_bytes or checksum != page.snapshot_crc32c:
            raise MetadataUnavailable(f"the snapshot of node {source} came damaged", applied_unknown=False)
        return bytes(data)

    def _refusal(self, source: int, why: str) -> MetadataUnavailable:
        """An operator has to know; once."""
        if self._refused.get(source) != why:
            self._refused[source] = why
            _log.error("what a node of the quorum has committed is not taken", node=source, why=why)
        return MetadataUnavailable(f"node {source}: {why}", applied_unknown=False)


class CatchUpReader:
    """Has a node of the quorum read for as long as no leader sends to it."""

    def __init__(
        self,
        core: RaftCore,
        peers: Peers,
        tasks: TaskGroup,
        take: Callable[[LogPage, bytes], bool],
        addresses: Collection[int] = (),
        settings: RaftSettings | None = None,
    ) -> None:
        """`addresses`: nodes that the settings name."""
        self._core, self._tasks, self._take, self._addresses = core, tasks, take, addresses
        self._reader = LogReader(peers, self._sources, lambda: core.log.commit, self._take_own, settings)
        self._reading: asyncio.Task[None] | None = None
        self._silent_ticks = 0
        self._was_member = True

    def tick(self) -> None:
        core = self._core
        if self._was_member is not core.is_member:
            self._was_member = core.is_member
            if not core.is_member:
                _log.info("no member of the quorum: follows it as an observer", node=core.node_id)
        if core.knows_leader_first_hand:
            self._silent_ticks = 0
            return
        self._silent_ticks += 1
        if self._reading is not None and not self._reading.done():
            return
        if not core.is_member or self._silent_ticks % SILENT_TICKS == 0:
            self._reading = self._tasks.spawn(
                f"metadata {core.node_id} reads the log",
                self._reader.read(lambda: not core.knows_leader_first_hand),
            )

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _take_own(self, page: LogPage, data: bytes) -> bool:
        """Not by a voter what a recovered quorum goes on with: it may hold what that one has lost, and have
        seen terms of which that one had not heard."""
        core = self._core
        if core.is_member and core.log.last_index and page.term - core.term >= TERM_GAP // 2:
            return False
        return self._take(page, data)

    def _sources(self) -> list[int]:
        """The leader last: it has more to do than the others. Then nodes that the settings name: this one may
        have missed that the voters that it knows were replaced."""
        core = self._core
        voters = core.voters - {core.node_id}
        others = sorted(set(self._addresses) - voters - {core.node_id})
        return [*sorted(voters, key=lambda voter: (voter == core.leader, voter)), *others]
