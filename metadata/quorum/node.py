"""The metadata node: drives the Raft core, the storage, the controller and the peers, on one event loop.

One task takes `ready()` after `ready()` and does it in order; fsyncs run in a worker thread, and whatever was
proposed meanwhile shares the next one (group commit). What leading means is in `leadership`, who the members
are in `membership`, when the log is cut in `own_snapshots`. Subscribers see committed images only. Failure of
the storage stops the node.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import structlog

from tierlog.base.clock import Clock
from tierlog.base.files import Files
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import Rng, random_uuid
from tierlog.metadata.controller.commands import (
    AnyCommand,
    AnyReply,
    Heartbeat,
    HeartbeatReply,
    RegisterBroker,
)
from tierlog.metadata.controller.sessions import BrokerSessions
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.image_codec import decode_image
from tierlog.metadata.quorum.balancing import BalanceSettings, LeaderBalancer
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
from tierlog.metadata.quorum.peers import LeadershipLost, MetadataUnavailable, NoPeers, NotTheLeader, Peers
from tierlog.metadata.quorum.publisher import MetadataPublisher, Subscriber, wait_for_event
from tierlog.metadata.quorum.status import NodeStatus
from tierlog.metadata.quorum.storage import MetadataStorage
from tierlog.metadata.quorum.storage_thread import StorageThread
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.membership import Configuration, Member
from tierlog.metadata.raft.messages import CONFIGURATION, NO_NODE, AnyMessage, Entry, Snapshot
from tierlog.metadata.raft.ready import Ready
from tierlog.metadata.raft.settings import RaftSettings
from tierlog.metadata.records import NoOp, decode_records, encode_records

__all__ = [
    "LeadershipLost",
    "MetadataNode",
    "MetadataUnavailable",
    "NoPeers",
    "NodeStatus",
    "NotTheLeader",
    "Peers",
    "Subscriber",
]

TICK_MS = 100  # elections after 1 to 2 s without a leader
DISK_TIMES_PATIENCE = 2
HANGS_AFTER_MS = 2_000
"""A write that takes so many times as long as a leader bears no majority is of a disk that hangs; but none
that takes less than that, as writes of a busy disk may."""

R = TypeVar("R")
_log = structlog.get_logger("tierlog.metadata")


class MetadataNode:
    def __init__(
        self,
        node_id: int,
        voters: Mapping[int, str],
        directory: Path,
        files: Files,
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
        worker: Executor | None = None,
        reserve_bytes: int = 0,
        on_disk_full: Callable[[], None] = lambda: None,
    ) -> None:
        """`voters`: id -> URL of its admin server, until the log says who they are; empty: this node is the
        whole quorum; without this node: it waits until a leader takes it in. `url`: this node's own, needed
        once there is more than one. `peers` too. `sessions`: None if no broker is fenced for its silence.
        `balance`: None if preferred leaders are elected by hand alone.
        `worker`: one thread for the files; its own if not given."""
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.url = url
        self.addresses = dict(voters)  # of those for whom the log has none, so that they may move
        self._initial = Configuration({voter: Member() for voter in voters or (node_id,)})
        self._peers: Peers = peers or NoPeers()
        self.has_peers = peers is not None
        self._clock, self._rng, self._tasks, self._directory = clock, rng, tasks, directory
        self._tick_ms, self._settings = tick_ms, settings
        self._storage = MetadataStorage(
            files,
            directory,
            cluster_id=cluster_id,
            node_id=node_id,
            new_directory_id=random_uuid(rng),
            reserve_bytes=reserve_bytes,
            on_disk_full=on_disk_full,
        )
        self._worker = StorageThread(clock, worker, f"metadata-{node_id}")
        patience_ms = (settings or RaftSettings()).check_quorum_ticks * tick_ms
        self._hangs_after_ms = max(DISK_TIMES_PATIENCE * patience_ms, HANGS_AFTER_MS)
        self._told_of_disk = False
        self._core: RaftCore | None = None
        self._publisher = MetadataPublisher(ClusterImage(cluster_id=cluster_id), node_id)
        self._leadership: Leadership | None = None
        self._membership: Membership | None = None
        self._sessions = sessions
        self._fencing: BrokerHeartbeatManager | None = None
        self._following: CatchUpReader | None = None
        self._balancing = LeaderBalancer(balance, self._publisher, clock, tasks)
        self._watched: object = None  # brokers that the peers were told to watch
        self._members: Configuration | None = None  # that the peers were told
        self._work = asyncio.Event()
        self._standing: tuple[object, ...] = ()
        self._standing_changed = asyncio.Event()
        self._ticking = False
        self._running: list[asyncio.Task[None]] = []
        self._snapshots = NodeSnapshots(
            self._publisher, tasks, self._work.set, snapshot_entries, snapshot_bytes, keep_entries
        )
        self._failure: BaseException | None = None

    # --- what others call

    @property
    def image(self) -> ClusterImage:
        """The latest committed image."""
        return self._publisher.image

    @property
    def dead_brokers(self) -> frozenset[int]:
        """Those whose process seems dead, for a session at most: clients are told of no leader there."""
        return self._fencing.dead | self._peers.suspects if self._fencing is not None else frozenset()

    @property
    def started(self) -> bool:
        """Its files are read; before, it knows neither its directory nor its members."""
        return self._core is not None

    @property
    def core(self) -> RaftCore:
        return self._started(self._core)

    @property
    def directory_id(self) -> UUID:
        """Of the directory that holds this node's promises; known once it is started."""
        return self._storage.directory_id

    @property
    def voters(self) -> dict[int, str]:
        """Id -> URL, as the log says, committed or not; before the start: as the settings say."""
        members = self._core.configuration.voters if self._core is not None else self._initial.voters
        return {node: self.url_of(node) for node in members}

    def url_of(self, node_id: int) -> str:
        """Of its admin server; empty if it is not known."""
        if node_id == self.node_id and self.url:
            return self.url
        configuration = self._core.configuration if self._core is not None else self._initial
        member = configuration.members.get(node_id, Member())
        return member.url or self.addresses.get(node_id, "")

    @property
    def is_leader(self) -> bool:
        """Leads, and its image holds all that earlier leaders committed."""
        return self._leadership is not None and self._leadership.draft is not None

    @property
    def leader(self) -> int:
        """Node id of the leader as this node knows it, or NO_NODE (-1)."""
        return self.core.leader

    async def start(self) -> None:
        """Returns once the files are read; a quorum of one also leads.

        Raises DamagedLog, ForeignDirectory, ValueError (several members and no peers).
        """
        loaded = await self._worker.run(self._storage.open)
        if loaded.snapshot.index:
            self._publisher.image = decode_image(loaded.snapshot.data)
            self._publisher.term = loaded.snapshot.term
        self._core = RaftCore(
            self.node_id,
            self._initial,
            RaftLog(loaded.snapshot, loaded.entries, loaded.hard_state.commit),
            loaded.hard_state,
            self._rng,
            first_payload=encode_records((NoOp(),)),
            settings=self._settings,
        )
        self._leadership = Leadership(self._core, self._publisher, self._clock, self._rng, self._work.set)
        self._membership = Membership(self, self._core, self._leadership, self._clock)
        self._fencing = BrokerHeartbeatManager(
            self._sessions, self._leadership, self._publisher, self._clock, self._tasks
        )
        self._following = CatchUpReader(
            self._core, self._peers, self._tasks, self._take_page, self.addresses.keys(), self._settings
        )
        self._peers.start(self._unreachable, self._died, self._fencing.lives, self.receive)
        self._follow_configuration()
        self._running.append(self._tasks.spawn(f"metadata {self.node_id}", self._run()))
        alone = self._core.configuration.members.keys() == {self.node_id}
        if alone:
            self._core.campaign()
        self._work.set()
        while alone and not self.is_leader:
            await self._standing_change()

    async def stop(self) -> None:
        """Abrupt by design: what is not acknowledged may be lost, what is acknowledged is on disk."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._following is not None:
            await self._following.stop()
        await self._snapshots.stop()
        await self._peers.close()
        self._fail(MetadataUnavailable("the metadata node stopped", applied_unknown=True))
        await self._worker.run(self._storage.close)
        self._worker.close()

    @property
    def has_reserve(self) -> bool:
        """Whether room for a full disk is set aside."""
        return self._storage.has_reserve

    async def ensure_reserve(self) -> bool:
        """Sets room aside again if there is any. Raises OSError."""
        return await self._worker.run(self._storage.ensure_reserve)

    def receive(self, messages: tuple[AnyMessage, ...]) -> None:
        """Raft messages from peers, whose sender has been authenticated."""
        if self._failure is None:
            with self._sound():
                for message in messages:
                    self.core.step(message)
            self._started(self._membership).heard({message.sender for message in messages})
            self._work.set()

    async def answers(self, peer: int) -> tuple[AnyMessage, ...]:
        """What there is at once for a peer whose messages have just been received."""
        return await self._peers.answers(peer)

    def _take_page(self, page: LogPage, data: bytes) -> bool:
        """Of the committed log, while no leader sends it; False if it is of another. Raises
        MetadataUnavailable: to read on would be to no end."""
        self._raise_failure()
        index, term, configuration = page.snapshot_index, page.snapshot_term, page.snapshot_configuration
        snapshot = Snapshot(index, term, data, configuration) if data else None
        with self._sound():
            taken = self.core.accept_committed(
                snapshot, page.entries, page.leader, page.term, page.after_term
            )
        self._work.set()
        return taken

    @contextlib.contextmanager
    def _sound(self) -> Iterator[None]:
        """A broken invariant stops the node: what the core holds is not to be trusted then."""
        try:
            yield
        except Exception as failure:
            self._stop_serving(failure)
            raise

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls subscriber(old, new) after each change, on the loop; what it raises is only logged."""
        return self._publisher.subscribe(subscriber)

    async def submit(self, command: AnyCommand, timeout_s: float = 30.0, *, forward: bool = True) -> AnyReply:
        """Has the leader, here or elsewhere, judge and commit the command; raises MetadataUnavailable."""
        return await self._ask(
            lambda: self._commit(command),
            lambda leader: self._submit_to(leader, command),
            timeout_s,
            forward,
        )

    async def _commit(self, command: AnyCommand) -> AnyReply:
        in_session = self._started(self._fencing).in_session if isinstance(command, RegisterBroker) else ()
        return await self._started(self._leadership).commit(command, in_session)

    async def heartbeat(
        self, heartbeat: Heartbeat, timeout_s: float = 2.0, *, forward: bool = True
    ) -> HeartbeatReply:
        """Tells the leader that a broker lives; raises MetadataUnavailable."""
        return await self._ask(
            lambda: self._heard(heartbeat),
            lambda leader: self._peers.heartbeat(leader, heartbeat, timeout_s / 2),
            timeout_s,
            forward,
        )

    def process_ended(self, broker_id: int, broker_epoch: int) -> None:
        """The process that registered as this broker under this epoch is certain to serve no more. Raises
        MetadataUnavailable: to be told again."""
        self._started(self._fencing).ended(broker_id, broker_epoch)
        self._work.set()

    async def _heard(self, heartbeat: Heartbeat) -> HeartbeatReply:
        self._started(self._membership).heard_broker(heartbeat)
        return await self._started(self._fencing).heartbeat(heartbeat)

    async def quorum(self, timeout_s: float = 30.0) -> NodeStatus:
        """As its leader sees it; raises MetadataUnavailable."""
        return await self._ask(self._own_status, self._peers.status, timeout_s, forward=True)

    async def _own_status(self) -> NodeStatus:
        return self.status()

    async def _ask(
        self,
        here: Callable[[], Awaitable[R]],
        there: Callable[[int], Awaitable[R]],
        timeout_s: float,
        forward: bool,
    ) -> R:
        """Of whoever leads; again, as long as it certainly had no effect."""
        sent = False
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self._raise_failure()
                    if self.is_leader:
                        sent = True
                        with contextlib.suppress(LeadershipLost):
                            return await here()
                        sent = False
                        await self._standing_change(self._tick_ms / 1000)  # it may not have shown yet
                    elif not forward and not self.core.is_leader:
                        raise NotTheLeader(self.core.leader, self.url_of(self.core.leader))
                    elif self.core.leader not in (NO_NODE, self.node_id):
                        sent = True
                        try:
                            return await there(self.core.leader)
                        except MetadataUnavailable as unavailable:
                            if unavailable.applied_unknown:
                                raise
                        sent = False
                        await self._standing_change(self._tick_ms / 1000)
                    else:
                        await self._standing_change()
        except TimeoutError:
            raise MetadataUnavailable(
                "no quorum of metadata nodes answered in time", applied_unknown=sent
            ) from None

    async def _submit_to(self, leader: int, command: AnyCommand) -> AnyReply:
        """The reply is held until it shows here."""
        reply, index = await self._peers.submit(leader, command)
        while self.image.index < index:
            self._raise_failure()
            await self._publisher.changed.wait()
        return reply

    async def log_page(self, after: int, wait_ms: int) -> LogPage:
        """Committed entries after that index, for observers. Raises MetadataUnavailable if it has failed, or
        its disk hangs: what it knows would be old news."""
        self._raise_failure()
        if self._disk_hangs:
            raise MetadataUnavailable("the disk of this voter hangs", applied_unknown=False)
        page = await read_page(self.core, self._publisher, self.voters, after, wait_ms)
        self._raise_failure()
        return page

    def snapshot_chunk(self, index: int, offset: int) -> bytes | None:
        """Of the snapshot that a page named; None if there is a newer one by now."""
        return read_chunk(self.core, index, offset)

    def status(self) -> NodeStatus:
        return self._started(self._membership).status()

    async def status_when(self, reached: Callable[[NodeStatus], bool], timeout_s: float = 30.0) -> NodeStatus:
        """The first status that is as awaited; raises MetadataUnavailable."""
        return await self._started(self._membership).status_when(reached, timeout_s)

    async def add_voter(self, node_id: int, url: str, timeout_s: float = 60.0) -> None:
        """Takes a node in: first as a learner, as a voter once it has caught up. Only the leader does it.

        Raises NotTheLeader, ChangeRefused, MetadataUnavailable (in time, or at all: asking again goes on).
        """
        await self._started(self._membership).add_voter(node_id, url, timeout_s)

    async def remove_voter(self, node_id: int, timeout_s: float = 30.0) -> None:
        """Removes a voter or learner; a leader may remove itself, and hands over. Raises as `add_voter`."""
        await self._started(self._membership).remove_voter(node_id, timeout_s)

    async def hand_over(self, timeout_s: float) -> bool:
        """A leader that is to stop has another voter lead first, so that nobody waits for an election. False
        if none could, in time."""
        return await self._started(self._membership).hand_over(timeout_s)

    def admits(self, sender: int, directory: UUID | None) -> bool:
        """Whether a node that signed as `sender` has the directory that it was known with."""
        return self._started(self._membership).admits(sender, directory)

    # --- the loop

    async def _run(self) -> None:
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                while self._failure is None and (self.core.has_ready() or self._snapshots.is_encoded):
                    await self._do(self.core.ready())
                    await self._snapshots.keep(self.core, self._save_snapshot)
                self._raise_broken()
                self._note_standing()
                self._started(self._membership).turned()
        except asyncio.CancelledError:
            raise
        except BaseException as failure:
            self._stop_serving(failure)
            raise

    async def _do(self, ready: Ready) -> None:
        """The order is the contract of Ready."""
        self._send(ready.immediate_messages)
        if ready.writes:
            await self._worker.run(
                lambda: self._storage.save(ready.snapshot, ready.entries, ready.hard_state)
            )
        self.core.persisted(ready)
        self._send(ready.messages)
        if ready.snapshot is not None:
            self._install(ready.snapshot)
        self._apply(ready.committed)
        self._note_standing()
        self._started(self._leadership).confirmed(ready.reads)

    def _send(self, messages: tuple[AnyMessage, ...]) -> None:
        for message in messages:
            self._peers.send(message)

    def _apply(self, committed: tuple[Entry, ...]) -> None:
        if not committed:
            return
        image = self.image
        for entry in committed:
            records = () if entry.kind == CONFIGURATION else decode_records(entry.payload)
            image = apply_entry(image, entry.index, records)
        self._publisher.publish(image, committed[-1].term)
        self._started(self._leadership).applied(committed)
        self._snapshots.applied(self.core, committed)

    def _install(self, snapshot: Snapshot) -> None:
        self._publisher.publish(decode_image(snapshot.data), snapshot.term)
        self._started(self._leadership).installed(snapshot)

    def _note_standing(self) -> None:
        """Follows the core's role and configuration, and wakes who waits for a change of leadership."""
        core = self.core
        self._started(self._leadership).follow_core()
        self._started(self._fencing).follow_leadership()
        if self._members is not core.configuration:
            self._follow_configuration()
        if self._sessions is not None and self._watched is not self.image.brokers:
            self._watched = brokers = self.image.brokers
            self._peers.watch({n: brokers[n].admin_url for n in sorted(brokers) if n != self.node_id})
        self._wake_on_new_standing()

    def _wake_on_new_standing(self) -> None:
        core = self.core
        standing = (core.term, core.role, core.leader, self.is_leader)
        if standing != self._standing:
            self._standing = standing
            self._standing_changed.set()
            self._standing_changed = asyncio.Event()

    def _follow_configuration(self) -> None:
        """Who may be sent to; a node alone needs no ticks."""
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

    def _unreachable(self, peer: int) -> None:
        self.core.on_peer_unreachable(peer)
        self._work.set()

    def _died(self, peer: int) -> None:
        self.core.on_peer_death(peer)
        self._started(self._fencing).died(peer)
        self._work.set()

    async def _standing_change(self, at_most_s: float | None = None) -> None:
        """Waits until leadership differs from what the caller has just seen.

        The core may move on while the loop waits for the disk. If a leader is doubted and heard again before
        the loop looks, the loop sees no change and wakes nobody. So what the caller has seen is noted first.
        """
        self._raise_failure()
        self._wake_on_new_standing()
        await wait_for_event(self._standing_changed, at_most_s)

    async def _tick(self) -> None:
        """A node that failed falls silent: it is not to lead on for as long as its process takes to end. So
        does one whose disk hangs, until that goes on: the others elect one of theirs."""
        while True:
            await asyncio.sleep(self._tick_ms / 1000)
            if self._failure is not None:
                return
            if self._disk_hangs:
                self._bear_hung_disk()
                continue
            self._told_of_disk = False
            self.core.tick()
            self._send(self.core.take_immediate_messages())
            self._started(self._membership).tick()
            self._started(self._following).tick()
            self._started(self._fencing).tick(self._tick_ms)
            self._balancing.tick(self._started(self._leadership))
            self._work.set()

    def _bear_hung_disk(self) -> None:
        if not self._told_of_disk:
            self._told_of_disk = True
            _log.error(
                "the disk of the metadata hangs: this node neither leads nor follows until it goes on",
                node=self.node_id,
                directory=str(self._directory),
                for_ms=self._worker.busy_ms,
            )
        if self.core.is_leader:
            self.core.tick()  # it steps down, as no majority answers what it does not send
            self.core.take_immediate_messages()
        else:
            self._started(self._leadership).taken_over()
        self._note_standing()

    # --- small things

    async def _save_snapshot(self, snapshot: Snapshot) -> None:
        await self._worker.run(lambda: self._storage.save_snapshot(snapshot))

    def _stop_serving(self, failure: BaseException) -> None:
        """For good; who waits learns it."""
        self._failure = failure
        self._fail(MetadataUnavailable(f"the metadata node failed: {failure}", applied_unknown=True))
        self._standing_changed.set()
        self._publisher.wake()
        self._work.set()

    @property
    def _disk_hangs(self) -> bool:
        return self._worker.busy_ms >= self._hangs_after_ms

    def _raise_broken(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, reason: MetadataUnavailable) -> None:
        if self._leadership is not None:
            self._leadership.fail(reason)

    def _started(self, part: R | None) -> R:
        if part is None:
            raise MetadataUnavailable("the metadata node is not started", applied_unknown=False)
        return part

    def _raise_failure(self) -> None:
        if self._failure is not None:
            message = f"the metadata node failed: {self._failure}"
            raise MetadataUnavailable(message, applied_unknown=False) from self._failure
