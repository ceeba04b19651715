"""Log reader: reads the committed log from the voters, for nodes to which no leader replicates it.

Such nodes are brokers that are not controllers (`MetadataObserver`), and nodes of the quorum that are not
members (KIP-853: a removed voter continues as an observer). The latter append what they read to their own
log, as if a leader had sent it, so that they can be added again. A member may have missed its own removal, so
it reads as well after a long time without a leader.
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

WAIT_MS = 1_000  # duration of a long poll; a source that hangs is noticed only a little later
LEADERLESS_TICKS = 20  # without a leader, after which a member looks for its removal; elections take less

_log = structlog.get_logger("tierlog.metadata")


class LogReader:
    """`sources`: nodes to ask, in this order. `position`: last index that the caller holds.

    `accept`: called with each page and the data of the snapshot that it names, or b"" if the page names none
    beyond the position. Returns False if the page does not continue the caller's log.

    `settings`: bounds the size of a snapshot. `remedy`: text for the operator if the logs differ."""

    def __init__(
        self,
        peers: Peers,
        sources: Callable[[], Iterable[int]],
        position: Callable[[], int],
        accept: Callable[[LogPage, bytes], bool],
        settings: RaftSettings | None = None,
        *,
        remedy: str = "Delete this node's metadata directory to follow the other log",
    ) -> None:
        self._peers, self._sources, self._position, self._accept = peers, sources, position, accept
        self._remedy = remedy
        self._source = self._unresponsive = NO_NODE
        self._poll_timeout: asyncio.Timeout | None = None
        self._snapshot_bytes_max = (settings or RaftSettings()).max_snapshot_bytes
        self._rejected: dict[int, str] = {}  # source -> reason, as logged

    def on_no_response(self, source: int) -> None:
        """Another request to this node was not answered: stop polling it, and skip it once."""
        self._unresponsive = source
        timeout = self._poll_timeout
        if source == self._source and timeout is not None and not timeout.expired():
            timeout.reschedule(asyncio.get_running_loop().time())

    async def read(self, is_needed: Callable[[], bool] = lambda: True) -> None:
        """Read from each source in turn, for as long as it knows of a leader. Returns after the last source,
        or once `is_needed` returns False."""
        for source in self._sources():
            if source == self._unresponsive:
                self._unresponsive = NO_NODE
                continue
            wait_ms = 0  # the first page shows at once whether the source knows of a leader
            with contextlib.suppress(MetadataUnavailable):
                while is_needed() and await self._read_page(source, wait_ms):
                    wait_ms = WAIT_MS

    async def _read_page(self, source: int, wait_ms: int) -> bool:
        """Whether to continue with this source. One that is not a voter may itself read from this node."""
        page = await self._page(source, wait_ms)
        needs_snapshot = page.snapshot_index > self._position()
        if not self._accept(page, await self._read_snapshot(source, page) if needs_snapshot else b""):
            raise self._rejection(
                source,
                "its log is not a continuation of this node's: the quorum was recovered "
                f"(`tierlog quorum recover`) or created again. {self._remedy}",
            )
        self._rejected.pop(source, None)
        return page.leader != NO_NODE and source in page.voters

    async def _page(self, source: int, wait_ms: int) -> LogPage:
        self._source = source
        try:
            async with asyncio.timeout(None) as self._poll_timeout:
                return await self._peers.log_page(source, self._position(), wait_ms)
        except TimeoutError:
            raise MetadataUnavailable(f"node {source} does not respond", applied_unknown=False) from None
        finally:
            self._poll_timeout = None

    async def _read_snapshot(self, source: int, page: LogPage) -> bytes:
        """Reads into memory, so no more than the announced size and the limit for a leader's snapshots."""
        if page.snapshot_bytes > self._snapshot_bytes_max:
            raise self._rejection(
                source,
                f"its snapshot has {page.snapshot_bytes} bytes, more than {self._snapshot_bytes_max}",
            )
        data, checksum = bytearray(), 0
        while len(data) < page.snapshot_bytes:
            chunk = await self._peers.snapshot_chunk(source, page.snapshot_index, len(data))
            if not chunk or len(data) + len(chunk) > page.snapshot_bytes:
                break
            data += chunk
            checksum = crc32c(chunk, checksum)
        if len(data) != page.snapshot_bytes or checksum != page.snapshot_crc32c:
            raise MetadataUnavailable(f"the snapshot of node {source} is damaged", applied_unknown=False)
        return bytes(data)

    def _rejection(self, source: int, why: str) -> MetadataUnavailable:
        """Logged once per source and reason: an operator has to act."""
        if self._rejected.get(source) != why:
            self._rejected[source] = why
            _log.error("metadata.log.rejected", node=source, why=why)
        return MetadataUnavailable(f"node {source}: {why}", applied_unknown=False)


class CatchUpReader:
    """Reads the log for a node of the quorum while no leader replicates to it. Owned by the metadata node."""

    def __init__(
        self,
        core: RaftCore,
        peers: Peers,
        tasks: TaskGroup,
        accept: Callable[[LogPage, bytes], bool],
        addresses: Collection[int] = (),
        settings: RaftSettings | None = None,
    ) -> None:
        """`addresses`: node ids in the settings."""
        self._core, self._tasks, self._accept, self._addresses = core, tasks, accept, addresses
        self._reader = LogReader(peers, self._sources, lambda: core.log.commit, self._accept_page, settings)
        self._reading: asyncio.Task[None] | None = None
        self._leaderless_ticks = 0
        self._was_member = True

    def tick(self) -> None:
        core = self._core
        if self._was_member is not core.is_member:
            self._was_member = core.is_member
            if not core.is_member:
                _log.info("metadata.observing", node=core.node_id)
        if core.knows_leader_first_hand:
            self._leaderless_ticks = 0
            return
        self._leaderless_ticks += 1
        if self._reading is not None and not self._reading.done():
            return
        if not core.is_member or self._leaderless_ticks % LEADERLESS_TICKS == 0:
            self._reading = self._tasks.spawn(
                f"metadata {core.node_id} reads the log",
                self._reader.read(lambda: not core.knows_leader_first_hand),
            )

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _accept_page(self, page: LogPage, data: bytes) -> bool:
        """A voter rejects the log of a recovered quorum: it may hold entries that the recovery lost, and have
        seen terms that the recovered node had not."""
        core = self._core
        if core.is_member and core.log.last_index and page.term - core.term >= TERM_GAP // 2:
            return False
        return self._accept(page, data)

    def _sources(self) -> list[int]:
        """The voters, the leader last because it has the most to do; then other nodes in the settings, in
        case this node missed that all the voters it knows were replaced."""
        core = self._core
        voters = core.voters - {core.node_id}
        others = sorted(set(self._addresses) - voters - {core.node_id})
        return [*sorted(voters, key=lambda voter: (voter == core.leader, voter)), *others]
