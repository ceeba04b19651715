"""Metadata node: drives the Raft core, its storage, the controller and the peers on one event loop.

One task takes each `Ready` and carries it out in order. Writes run in a storage thread, and everything that
was proposed while one runs shares the next fsync (group commit). The parts: `leadership` evaluates commands,
`membership` changes the voters, `node_snapshots` compacts the log. Subscribers see committed images only. If
the storage fails, the node stops.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import TypeVar, cast
from uuid import UUID

import structlog

from tierlog.base.clock import Clock
from tierlog.base.safeguards import safeguard
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import Rng
from tierlog.metadata.controller.commands import (
    Acknowledged,
    Command,
    Heartbeat,
    HeartbeatReply,
    RegisterBroker,
    Reply,
    UpdateFeatures,
)
from tierlog.metadata.controller.features import FORMAT
from tierlog.metadata.controller.sessions import BrokerSessions
from tierlog.metadata.quorum.balancing import BalanceSettings, LeaderBalancer
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.heartbeat_manager import BrokerHeartbeatManager
from tierlog.metadata.quorum.leadership import Leadership
from tierlog.metadata.quorum.log_pages import LogPage, read_chunk, read_page
from tierlog.metadata.quorum.log_reader import CatchUpReader
from tierlog.metadata.quorum.membership import Membership
from tierlog.metadata.quorum.node_snapshots import (
    KEEP_ENTRIES,
    SNAPSHOT_BYTES,
    SNAPSHOT_ENTRIES,
    NodeSnapshots,
)
from tierlog.metadata.quorum.peers import LeadershipLost, MetadataUnavailable, NotTheLeader, Peers
from tierlog.metadata.quorum.publisher import wait_for_event
from tierlog.metadata.quorum.replay import image_of, replay
from tierlog.metadata.quorum.status import NodeStatus
from tierlog.metadata.quorum.storage import LoadedMetadata, ThreadedStorage
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.membership import Configuration, Member
from tierlog.metadata.raft.messages import NO_NODE, AnyMessage, Entry, Snapshot
from tierlog.metadata.raft.ready import Ready
from tierlog.metadata.raft.settings import RaftSettings
from tierlog.metadata.records import NoOp, encode_records
from tierlog.metadata.versions import spans
from tierlog.protocol.errors import ErrorCode

TICK_MS = 100  # elections start after 1 to 2 s without a leader
DISK_HANG_FACTOR = 2
DISK_HANG_MIN_MS = 2_000
"""The disk hangs if a write takes DISK_HANG_FACTOR times as long as a leader stays without a majority. Writes
of a busy disk may take up to DISK_HANG_MIN_MS."""

R = TypeVar("R", bound=Reply)
_log = structlog.get_logger("tierlog.metadata")


class MetadataNode(MetadataClient):
    """`voters`: initial voters, id -> URL of the admin server; the log takes precedence. If empty, this node
    is the whole quorum. If this node is not among them, it waits until a leader adds it.
    `loaded`: what `storage` held when it was opened; the node closes the storage when it stops.
    `url`: URL of this node's admin server, set before the start. A quorum of several nodes needs it and
    `peers`. `sessions`: None if brokers without heartbeats are not fenced. `balance`: None if only operators
    elect leaders."""

    def __init__(
        self,
        node_id: int,
        voters: Mapping[int, str],
        storage: ThreadedStorage,
        loaded: LoadedMetadata,
        clock: Clock,
        rng: Rng,
        tasks: TaskGroup,
        cluster_id: str,
        *,
        peers: Peers | None = None,
        url: str = "",
        tick_ms: int = TICK_MS,
        snapshot_entries: int = SNAPSHOT_ENTRIES,
        snapshot_bytes: int = SNAPSHOT_BYTES,
        keep_entries: int = KEEP_ENTRIES,
        settings: RaftSettings | None = None,
        sessions: BrokerSessions | None = None,
        balance: BalanceSettings | None = None,
    ) -> None:
        super().__init__(node_id, cluster_id, peers or Peers())
        self.url = url
        self.addresses = dict(voters)  # URLs of members that have none in the log; a restart may change them
        self.has_peers = peers is not None
        self._tasks, self._tick_ms, self._sessions = tasks, tick_ms, sessions
        self._threaded_storage, self._storage, self._thread = storage, storage.storage, storage.thread
        majority_timeout_ms = (settings or RaftSettings()).check_quorum_ticks * tick_ms
        self._disk_hang_ms = max(DISK_HANG_FACTOR * majority_timeout_ms, DISK_HANG_MIN_MS)
        self._disk_hang_logged = False
        self._work = asyncio.Event()
        publisher = self._publisher
        if loaded.snapshot.index:
            publisher.image, publisher.term = image_of(loaded.snapshot.data), loaded.snapshot.term
        self.core = RaftCore(
            node_id,
            Configuration({voter: Member() for voter in voters or (node_id,)}),
            RaftLog(loaded.snapshot, loaded.entries, loaded.hard_state.commit),
            loaded.hard_state,
            rng,
            first_payload=encode_records((NoOp(),)),
            settings=settings,
        )
        self._leadership = Leadership(self.core, publisher, clock, rng, self._work.set)
        self.membership = Membership(self, self.core, self._leadership, clock)
        self._heartbeats = BrokerHeartbeatManager(sessions, self._leadership, publisher, clock, tasks)
        self._catch_up = CatchUpReader(
            self.core, self._peers, tasks, self._accept_page, self.addresses.keys(), settings
        )
        self._balancer = LeaderBalancer(balance, publisher, clock, tasks)
        self._snapshots = NodeSnapshots(
            publisher, tasks, self._work.set, snapshot_entries, snapshot_bytes, keep_entries
        )
        self._members: Configuration | None = None  # as last passed to the peers
        self._role: tuple[object, ...] = ()
        self._logged_leader = NO_NODE
        self._role_changed = asyncio.Event()
        self._ticking = False
        self._running: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None

    # --- interface

    @property
    def dead_brokers(self) -> frozenset[int]:
        return self._heartbeats.dead_brokers | self._peers.suspects

    @property
    def started(self) -> bool:
        return bool(self._running)

    @property
    def directory_id(self) -> UUID:
        """Id of the directory that holds this node's votes and log."""
        return self._storage.directory_id

    @property
    def voters(self) -> dict[int, str]:
        """Id -> URL in the newest configuration of the log, committed or not; initially as in the
        settings."""
        return {node: self.url_of(node) for node in self.core.configuration.voters}

    def url_of(self, node_id: int) -> str:
        """URL of the node's admin server; empty if unknown."""
        if node_id == self.node_id and self.url:
            return self.url
        member = self.core.configuration.members.get(node_id, Member())
        return member.url or self.addresses.get(node_id, "")

    @property
    def is_leader(self) -> bool:
        """Whether this node is the leader, and its image includes all that earlier leaders committed."""
        return self._leadership.draft is not None

    @property
    def leader(self) -> int:
        """Node id of the leader as this node knows it, or NO_NODE (-1)."""
        return self.core.leader

    async def start(self) -> None:
        """In a quorum of one, returns once this node is the leader; otherwise at once. Raises ValueError if
        there are several members and no peers.
        """
        self._peers.start(self._on_unreachable, self._on_death, self._heartbeats.mark_alive, self.receive)
        self._follow_configuration()
        self._running.append(self._tasks.spawn(f"metadata {self.node_id}", self._run()))
        is_single = self.core.configuration.members.keys() == {self.node_id}
        if is_single:
            self.core.campaign()
        self._work.set()
        while is_single and not self.is_leader:
            await self._wait_for_leader(None)

    async def stop(self) -> None:
        """Stops at once, by design: everything acknowledged is on disk, and the rest may be lost."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._catch_up.stop()
        await self._snapshots.stop()
        await self._peers.close()
        self._leadership.fail(MetadataUnavailable("the metadata node stopped", applied_unknown=True))
        await self._threaded_storage.close()

    @property
    def disk_is_low(self) -> bool:
        """Whether the disk had less free space than its reserve takes, when `ensure_reserve` was called."""
        return self._storage.disk_is_low

    async def ensure_reserve(self) -> bool:
        """Check the disk, and reserve space again after it was full. False if there is too little. Raises
        OSError."""
        return await self._thread.run(self._storage.ensure_reserve)

    def receive(self, messages: tuple[AnyMessage, ...]) -> None:
        """Process Raft messages whose senders have been authenticated."""
        if self._failure is None:
            with self._fail_on_error():
                for message in messages:
                    self.core.step(message)
            self.membership.on_messages({message.sender for message in messages})
            self._work.set()

    async def replies_for(self, peer: int) -> tuple[AnyMessage, ...]:
        """Immediate replies to the messages that have just been received from a peer."""
        return await self._peers.replies_for(peer)

    def on_unreadable_request(self, sender: int, why: str) -> None:
        """This node could not read a signed request of another node."""
        self._peers.on_problem(sender, why)

    def _accept_page(self, page: LogPage, data: bytes) -> bool:
        """Append a page of the committed log. False if it does not continue this node's log. Raises
        MetadataUnavailable if this node has failed, so that the reader stops."""
        self._raise_failure()
        index, term, configuration = page.snapshot_index, page.snapshot_term, page.snapshot_configuration
        snapshot = Snapshot(index, term, data, configuration) if data else None
        with self._fail_on_error():
            accepted = self.core.accept_committed(
                snapshot, page.entries, page.leader, page.term, page.after_term
            )
        self._work.set()
        return accepted

    @contextlib.contextmanager
    def _fail_on_error(self) -> Iterator[None]:
        """A broken invariant stops the node, because the core's state cannot be trusted any more."""
        try:
            yield
        except Exception as failure:
            self._stop_serving(failure)
            raise

    async def _submit_to(self, leader: int, command: Command[R]) -> R:
        if leader != self.node_id:
            return await super()._submit_to(leader, command)
        if refused := self._unsupported_format(command):
            return cast(R, refused)
        in_session = self._heartbeats.in_session if isinstance(command, RegisterBroker) else ()
        return await self._leadership.commit(command, in_session)

    def _unsupported_format(self, command: Command[R]) -> Acknowledged | None:
        """The reply to a command that raises the format version beyond what a member of the quorum supports:
        it would stop at the first record of that version. So would one that is down and was rolled back. The
        controller checks the brokers."""
        if not isinstance(command, UpdateFeatures) or FORMAT not in command.levels:
            return None
        level = command.levels[FORMAT]
        for member in sorted(self.core.configuration.members):
            found = self.versions_of(member)
            if found is None:
                why = f"node {member} of the quorum has announced no versions: it is down or older than 0.1.0"
            elif not found.formats[0] <= level <= found.formats[1]:
                runs = f"runs tierlog {found.build}, which supports {spans(found.formats)}"
                why = f"node {member} of the quorum {runs}"
            elif member != self.node_id and not self._peers.responds(member):
                why = f"node {member} of the quorum does not respond: it may return with another version"
            else:
                continue
            return Acknowledged(error=ErrorCode.INVALID_UPDATE_VERSION, message=f"{FORMAT} {level}: {why}")
        return None

    async def _heartbeat_to(self, leader: int, heartbeat: Heartbeat, timeout_s: float) -> HeartbeatReply:
        if leader != self.node_id:
            return await super()._heartbeat_to(leader, heartbeat, timeout_s)
        self.membership.on_heartbeat(heartbeat)
        return await self._heartbeats.heartbeat(heartbeat)

    async def _status_of(self, leader: int) -> NodeStatus:
        return self.status() if leader == self.node_id else await super()._status_of(leader)

    def _request_target(self, forward: bool) -> int:
        self._raise_failure()
        if self.is_leader:
            return self.node_id
        leader = self.core.leader
        if not forward and not self.core.is_leader:
            raise NotTheLeader(leader, self.url_of(leader))
        return NO_NODE if leader == self.node_id else leader

    def _on_unavailable(self, leader: int, unavailable: MetadataUnavailable) -> None:
        """A command that this node refused as the leader is not retried unless it has lost the leadership."""
        if leader == self.node_id and not isinstance(unavailable, LeadershipLost):
            raise unavailable
        super()._on_unavailable(leader, unavailable)

    def process_ended(self, broker_id: int, broker_epoch: int) -> None:
        """The process that registered as this broker under this epoch has certainly ended. Raises
        MetadataUnavailable if the caller has to retry."""
        self._heartbeats.on_process_end(broker_id, broker_epoch)
        self._work.set()

    async def log_page(self, after: int, wait_ms: int) -> LogPage:
        """Committed entries after that index, for observers. Raises MetadataUnavailable if this node has
        failed or its disk hangs, since its image may be stale then."""
        self._raise_failure()
        if self._disk_hangs:
            raise MetadataUnavailable("the metadata disk of this node hangs", applied_unknown=False)
        page = await read_page(self.core, self._publisher, self.voters, after, wait_ms)
        self._raise_failure()
        return page

    def snapshot_chunk(self, index: int, offset: int) -> bytes | None:
        """A chunk of the snapshot that a page named; None if a newer one has replaced it."""
        return read_chunk(self.core, index, offset)

    def status(self) -> NodeStatus:
        return self.membership.status()

    # --- the loop

    async def _run(self) -> None:
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                while self._failure is None and (self.core.has_ready() or self._snapshots.is_encoded):
                    await self._process(self.core.ready())
                    await self._snapshots.save(self.core, self._save_snapshot)
                self._reraise_failure()
                self._follow_core()
                self.membership.on_loop_ran()
        except asyncio.CancelledError:
            raise
        except BaseException as failure:
            self._stop_serving(failure)
            raise

    async def _process(self, ready: Ready) -> None:
        """The order is the contract of Ready."""
        self._send(ready.immediate_messages)
        if ready.must_persist:
            await self._thread.run(
                lambda: self._storage.save(ready.snapshot, ready.entries, ready.hard_state)
            )
        self.core.persisted(ready)
        self._send(ready.messages)
        if ready.snapshot is not None:
            self._install(ready.snapshot)
        self._apply(ready.committed)
        self._follow_core()
        self._leadership.confirmed(ready.reads)

    def _send(self, messages: tuple[AnyMessage, ...]) -> None:
        for message in messages:
            self._peers.send(message)

    def _apply(self, committed: tuple[Entry, ...]) -> None:
        if not committed:
            return
        image = self.image
        for entry in committed:
            image = replay(image, entry)
        self._publisher.publish(image, committed[-1].term)
        self._leadership.applied(committed)
        self._snapshots.applied(self.core, committed)

    def _install(self, snapshot: Snapshot) -> None:
        self._publisher.publish(image_of(snapshot.data), snapshot.term)
        self._leadership.installed(snapshot)

    def _follow_core(self) -> None:
        """Follow the core's role and configuration, and wake waiters for a change of leadership."""
        core = self.core
        self._leadership.follow_core()
        self._heartbeats.follow_leadership()
        if self._members is not core.configuration:
            self._follow_configuration()
        if self._sessions is not None:
            self._watch_brokers()
        self._wake_on_role_change()

    def _wake_on_role_change(self) -> None:
        core = self.core
        role = (core.term, core.role, core.leader, self.is_leader)
        if role != self._role:
            self._role = role
            self._role_changed.set()
            self._role_changed = asyncio.Event()
            self._log_leader()

    def _log_leader(self) -> None:
        leader, epoch = self.core.leader, self.core.term
        if leader == self._logged_leader:
            return
        if leader == NO_NODE:
            _log.info("quorum.leader.lost", node=self.node_id, was=self._logged_leader, epoch=epoch)
        else:
            _log.info("quorum.leader.changed", node=self.node_id, leader=leader, epoch=epoch)
        self._logged_leader = leader

    def _follow_configuration(self) -> None:
        """Pass the members to the peers. A quorum of one without sessions needs no ticks."""
        self._members = self.core.configuration
        others = {n: m for n, m in self._members.members.items() if n != self.node_id}
        if others and not self.has_peers:
            raise ValueError("a quorum of several voters needs peers")
        members = {n: Member(self.url_of(n), m.directory) for n, m in others.items()}
        known = {n: url for n, url in self.addresses.items() if n not in self._members.members}
        self._peers.configure({**members, self.node_id: Member(self.url, self.directory_id)}, known)
        fences = self._sessions is not None
        if not self._ticking and (others or fences or self.node_id not in self._members.voters):
            self._ticking = True
            self._running.append(self._tasks.spawn(f"metadata {self.node_id} ticks", self._tick()))

    def _on_unreachable(self, peer: int) -> None:
        self.core.on_peer_unreachable(peer)
        self._work.set()

    @safeguard("a broken connection does not end a broker's session")
    def _on_death(self, peer: int) -> None:
        self.core.on_peer_death(peer)
        self._heartbeats.mark_dead(peer)
        self._work.set()

    async def _wait_for_leader(self, at_most_s: float | None) -> None:
        """Wait until the leadership differs from what the caller has just seen.

        The core may change while the loop waits for the disk. If the leader is suspected and responds again
        before the loop runs, the loop sees no change and wakes no waiter. So record the present role first.
        """
        self._raise_failure()
        self._wake_on_role_change()
        await wait_for_event(self._role_changed, at_most_s)

    async def _tick(self) -> None:
        """A failed node falls silent, so that it does not remain leader until its process ends. A node whose
        disk hangs is silent for as long as it hangs, so that the others elect a leader."""
        while True:
            await asyncio.sleep(self._tick_ms / 1000)
            if self._failure is not None:
                return
            if self._disk_hangs:
                self._on_disk_hang()
                continue
            self._disk_hang_logged = False
            self.core.tick()
            self._send(self.core.take_immediate_messages())
            self.membership.tick()
            self._catch_up.tick()
            self._heartbeats.tick(self._tick_ms)
            self._balancer.tick(self._leadership)
            self._work.set()

    def _on_disk_hang(self) -> None:
        if not self._disk_hang_logged:
            self._disk_hang_logged = True
            _log.error(
                "metadata.disk.hangs",
                node=self.node_id,
                directory=str(self._storage.directory),
                for_ms=self._thread.busy_ms,
            )
        if self.core.is_leader:
            self.core.tick()  # it steps down: since it sends nothing, no majority responds
            self.core.take_immediate_messages()
        else:
            self._leadership.fail_outcome_unknown()
        self._follow_core()

    # --- helpers

    async def _save_snapshot(self, snapshot: Snapshot) -> None:
        await self._thread.run(lambda: self._storage.save_snapshot(snapshot))

    def _stop_serving(self, failure: BaseException) -> None:
        """The failure is permanent. Fails all waiting callers."""
        self._failure = failure
        reason = f"the metadata node failed: {failure}"
        self._leadership.fail(MetadataUnavailable(reason, applied_unknown=True))
        self._role_changed.set()
        self._publisher.wake()
        self._work.set()

    @property
    def _disk_hangs(self) -> bool:
        return self._thread.busy_ms >= self._disk_hang_ms

    def _reraise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            message = f"the metadata node failed: {self._failure}"
            raise MetadataUnavailable(message, applied_unknown=False) from self._failure
