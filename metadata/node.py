"""The metadata node: drives the Raft core, the storage, the controller and the peers, on one event loop.

One task takes `ready()` after `ready()` and does it in order; fsyncs run in a worker thread, and whatever was
proposed meanwhile shares the next one (group commit). The draft image exists only while this node leads, and
is dropped the moment it does not. Subscribers see committed images only. Failure of the storage stops the
node.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import structlog

from tierlog.broker.ports.clock import Clock
from tierlog.broker.ports.files import Files
from tierlog.broker.ports.tasks import TaskGroup
from tierlog.broker.ports.types import InvariantViolation, Rng
from tierlog.metadata.controller.commands import AnyCommand, AnyReply
from tierlog.metadata.controller.decide import decide
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.image_codec import decode_image, encode_image
from tierlog.metadata.raft.core import NotLeader, RaftCore, Ready
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.messages import NOBODY, AnyMessage, Entry, Snapshot
from tierlog.metadata.raft.settings import RaftSettings
from tierlog.metadata.records import NoOp, decode_records, encode_records
from tierlog.metadata.storage import MetadataStorage

TICK_MS = 100  # elections after 1 to 2 s without a leader
SNAPSHOT_ENTRIES = 10_000  # applied since the last snapshot
SNAPSHOT_BYTES = 16 << 20
KEEP_ENTRIES = 1_000  # in memory behind a snapshot, for followers that lag a little
MAX_ENTRY_BYTES = 8 << 20  # must fit into one HTTP request with room to spare
MAX_WAITING = 10_000  # commands whose commit is awaited

_log = structlog.get_logger("tierlog.metadata")
R = TypeVar("R")
Subscriber = Callable[[ClusterImage, ClusterImage], None]


class MetadataUnavailable(Exception):
    """No quorum answers now. `applied_unknown`: the command may have been, or may yet be, committed."""

    def __init__(self, message: str, *, applied_unknown: bool) -> None:
        super().__init__(message)
        self.applied_unknown = applied_unknown


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator sees of a voter."""

    node_id: int
    cluster_id: str
    role: str
    leader: int
    term: int
    applied_index: int
    commit_index: int
    last_index: int
    snapshot_index: int
    voters: dict[int, str]


class Peers(Protocol):
    """The other voters. Sending never waits and may lose messages."""

    def start(self, unreachable: Callable[[int], None]) -> None:
        """`unreachable(peer)` is called when messages to it were lost."""

    def send(self, message: AnyMessage) -> None: ...
    async def submit(self, leader: int, command: AnyCommand) -> tuple[AnyReply, int]:
        """Forwards to the leader: its reply, and the log index that holds what it says."""

    async def close(self) -> None: ...


class NoPeers:
    """The peers of a quorum of one."""

    def start(self, unreachable: Callable[[int], None]) -> None:
        return

    def send(self, message: AnyMessage) -> None:
        raise InvariantViolation("a quorum of one sends no messages")

    async def submit(self, leader: int, command: AnyCommand) -> tuple[AnyReply, int]:
        raise MetadataUnavailable("this node is the whole quorum", applied_unknown=False)

    async def close(self) -> None:
        return


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
        tick_ms: int = TICK_MS,
        snapshot_entries: int = SNAPSHOT_ENTRIES,
        snapshot_bytes: int = SNAPSHOT_BYTES,
        keep_entries: int = KEEP_ENTRIES,
        settings: RaftSettings | None = None,
        worker: Executor | None = None,
        reserve_bytes: int = 0,
        short_of_room: Callable[[], None] = lambda: None,
    ) -> None:
        """`voters`: id -> URL of its admin server; empty: this node is the whole quorum. `peers` is needed
        for more than one. `worker`: one thread for the files; its own if not given."""
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.voters = dict(voters) or {node_id: ""}
        if peers is None and len(self.voters) > 1:
            raise ValueError("a quorum of several voters needs peers")
        self._peers: Peers = peers or NoPeers()
        self._clock, self._rng, self._tasks = clock, rng, tasks
        self._tick_ms = tick_ms
        self._snapshot_entries, self._snapshot_bytes = snapshot_entries, snapshot_bytes
        self._keep_entries = keep_entries
        self._settings = settings
        self._storage = MetadataStorage(
            files,
            directory,
            cluster_id=cluster_id,
            node_id=node_id,
            reserve_bytes=reserve_bytes,
            short_of_room=short_of_room,
        )
        self._own_worker = None if worker else ThreadPoolExecutor(1, f"metadata-{node_id}")
        self._worker = worker or self._own_worker
        self._core: RaftCore | None = None
        self._image = ClusterImage(cluster_id=cluster_id)
        self._image_term = 0  # of the entry that the image ends with
        self._draft: ClusterImage | None = None
        self._waiting: dict[int, list[tuple[int, asyncio.Future[None]]]] = {}
        self._subscribers: list[Subscriber] = []
        self._work = asyncio.Event()
        self._standing: tuple[object, ...] = ()
        self._standing_changed = asyncio.Event()
        self._image_changed = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []
        self._bytes_since_snapshot = 0
        self._encoding: asyncio.Task[None] | None = None
        self._encoded: Snapshot | None = None
        self._failure: BaseException | None = None

    # --- what others call

    @property
    def image(self) -> ClusterImage:
        """The latest committed image."""
        return self._image

    @property
    def core(self) -> RaftCore:
        if self._core is None:
            raise MetadataUnavailable("the metadata node is not started", applied_unknown=False)
        return self._core

    @property
    def is_leader(self) -> bool:
        """Leads, and its image holds all that earlier leaders committed."""
        return self._draft is not None

    @property
    def leader(self) -> int:
        """Node id of the leader as this node knows it, or NOBODY (-1)."""
        return self.core.leader

    async def start(self) -> None:
        """Returns once the files are read; a quorum of one also leads.

        Raises DamagedLog, ForeignDirectory.
        """
        loaded = await self._in_worker(self._storage.open)
        if loaded.snapshot.index:
            self._image = decode_image(loaded.snapshot.data)
            self._image_term = loaded.snapshot.term
        self._core = RaftCore(
            self.node_id,
            self.voters,
            RaftLog(loaded.snapshot, loaded.entries, loaded.hard_state.commit),
            loaded.hard_state,
            self._rng,
            first_payload=encode_records((NoOp(),)),
            settings=self._settings,
        )
        self._peers.start(self._unreachable)
        self._running = [self._tasks.spawn(f"metadata {self.node_id}", self._run())]
        if len(self.voters) > 1:
            self._running.append(self._tasks.spawn(f"metadata {self.node_id} ticks", self._tick()))
            self._work.set()
        else:
            self._core.campaign()
            self._work.set()
            while not self.is_leader:
                await self._standing_change()

    async def stop(self) -> None:
        """Abrupt by design: what is not acknowledged may be lost, what is acknowledged is on disk."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._encoding is not None:
            await asyncio.gather(self._encoding, return_exceptions=True)
        await self._peers.close()
        self._fail(MetadataUnavailable("the metadata node stopped", applied_unknown=True))
        await self._in_worker(self._storage.close)
        if self._own_worker is not None:
            self._own_worker.shutdown()

    @property
    def has_reserve(self) -> bool:
        """Whether room for a full disk is set aside."""
        return self._storage.has_reserve

    async def keep_reserve(self) -> bool:
        """Sets room aside again if there is any. Raises OSError."""
        return await self._in_worker(self._storage.keep_reserve)

    def receive(self, messages: tuple[AnyMessage, ...]) -> None:
        """Raft messages from peers, whose sender has been authenticated."""
        if self._failure is None:
            try:
                for message in messages:
                    self.core.step(message)
            except Exception as failure:  # a broken invariant: what the core holds is not to be trusted
                self._stop_serving(failure)
                raise
            self._work.set()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls subscriber(old, new) after each change, on the loop; what it raises is only logged."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    async def submit(self, command: AnyCommand, timeout_s: float = 30.0, *, forward: bool = True) -> AnyReply:
        """Has the leader, here or elsewhere, judge and commit the command; raises MetadataUnavailable."""
        sent = False
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self._raise_failure()
                    if self._draft is not None:
                        sent = True
                        return await self._commit(command)
                    if not forward and not self.core.is_leader:
                        raise MetadataUnavailable("this node does not lead", applied_unknown=False)
                    if self.core.leader not in (NOBODY, self.node_id):
                        sent = True
                        reply = await self._forward(self.core.leader, command)
                        if reply is not None:
                            return reply
                        sent = False
                        await self._standing_change(self._tick_ms / 1000)
                    else:
                        await self._standing_change()
        except TimeoutError:
            raise MetadataUnavailable(
                "no quorum of metadata nodes answered in time", applied_unknown=sent
            ) from None

    def status(self) -> NodeStatus:
        core = self.core
        return NodeStatus(
            node_id=self.node_id,
            cluster_id=self.cluster_id,
            role=core.role.value,
            leader=core.leader,
            term=core.term,
            applied_index=self._image.index,
            commit_index=core.log.commit,
            last_index=core.log.last_index,
            snapshot_index=core.log.snapshot.index,
            voters=self.voters,
        )

    async def _forward(self, leader: int, command: AnyCommand) -> AnyReply | None:
        """None: that node did not take it, so it may be sent again. The reply is held until it shows here."""
        try:
            reply, index = await self._peers.submit(leader, command)
        except MetadataUnavailable as unavailable:
            if unavailable.applied_unknown:
                raise
            return None
        while self._image.index < index:
            self._raise_failure()
            await self._image_changed.wait()
        return reply

    # --- the leader's side

    async def _commit(self, command: AnyCommand) -> AnyReply:
        """A reply that changes nothing is also held until what it was judged by is committed, and among
        several voters until the quorum confirms that this node still leads."""
        draft = self._draft
        if draft is None or len(self._waiting) >= MAX_WAITING:
            raise MetadataUnavailable("too many commands are waiting", applied_unknown=False)
        decision = decide(draft, command, self._clock.now_ms(), self._rng)
        if decision.records or len(self.voters) > 1:
            records = decision.records or (NoOp(),)
            payload = encode_records(records)
            if len(payload) > MAX_ENTRY_BYTES:
                raise MetadataUnavailable("the command makes too large an entry", applied_unknown=False)
            try:
                index = self.core.propose(payload)
            except NotLeader:
                raise MetadataUnavailable("leadership is being handed over", applied_unknown=False) from None
            self._draft = apply_entry(draft, index, records)
            self._work.set()
        if self._draft is not None and self._draft.index > self._image.index:
            applied = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(self._draft.index, []).append((self.core.term, applied))
            await applied
        return decision.reply

    # --- the loop

    async def _run(self) -> None:
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                while self._failure is None and (self.core.has_ready() or self._encoded is not None):
                    await self._do(self.core.ready())
                    await self._keep_snapshot()
                self._raise_broken()
                self._note_standing()
        except asyncio.CancelledError:
            raise
        except BaseException as failure:
            self._stop_serving(failure)
            raise

    async def _do(self, ready: Ready) -> None:
        """The order is the contract of Ready."""
        self._send(ready.hurried)
        if ready.writes:
            await self._in_worker(lambda: self._storage.save(ready.snapshot, ready.entries, ready.hard_state))
        self.core.persisted(ready)
        self._send(ready.messages)
        if ready.snapshot is not None:
            self._install(ready.snapshot)
        self._apply(ready.committed)
        self._note_standing()

    def _send(self, messages: tuple[AnyMessage, ...]) -> None:
        for message in messages:
            self._peers.send(message)

    def _apply(self, committed: tuple[Entry, ...]) -> None:
        if not committed:
            return
        old = image = self._image
        for entry in committed:
            image = apply_entry(image, entry.index, decode_records(entry.payload))
            self._bytes_since_snapshot += len(entry.payload)
        self._publish(old, image, committed[-1].term)
        for entry in committed:
            for term, applied in self._waiting.pop(entry.index, ()):
                if applied.done():
                    continue
                if term == entry.term:
                    applied.set_result(None)
                else:
                    applied.set_exception(
                        MetadataUnavailable(
                            "another leader took over before this was committed", applied_unknown=False
                        )
                    )
        self._begin_snapshot()

    def _install(self, snapshot: Snapshot) -> None:
        """The leader's snapshot jumps over entries; what waited for one of them cannot know its fate."""
        self._publish(self._image, decode_image(snapshot.data), snapshot.term)
        unknown = MetadataUnavailable("another leader took over", applied_unknown=True)
        for index in [index for index in self._waiting if index <= snapshot.index]:
            for _, applied in self._waiting.pop(index):
                if not applied.done():
                    applied.set_exception(unknown)

    def _publish(self, old: ClusterImage, new: ClusterImage, term: int) -> None:
        self._image, self._image_term = new, term
        self._image_changed.set()
        self._image_changed = asyncio.Event()
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(old, new)
            except Exception:
                # what is committed stands: one follower that fails must not cost the quorum a voter
                _log.exception("a subscriber of the metadata failed", node=self.node_id, index=new.index)

    def _note_standing(self) -> None:
        """Takes up or drops the draft, and wakes who waits for a change of leadership."""
        leads = self.core.is_leader and self._image_term == self.core.term
        if not leads:
            self._draft = None
        elif self._draft is None or self._standing[:1] != (self.core.term,):
            self._draft = self._image
        standing = (self.core.term, self.core.role, self.core.leader, leads)
        if standing != self._standing:
            self._standing = standing
            self._standing_changed.set()
            self._standing_changed = asyncio.Event()

    def _unreachable(self, peer: int) -> None:
        self.core.unreachable(peer)
        self._work.set()

    async def _standing_change(self, at_most_s: float | None = None) -> None:
        self._raise_failure()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._standing_changed.wait(), at_most_s)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_ms / 1000)
            self.core.tick()
            self._work.set()

    # --- snapshots of its own

    def _begin_snapshot(self) -> None:
        """Encodes in a thread: the image is immutable, so the node goes on meanwhile."""
        entries = self._image.index - self.core.log.snapshot.index
        due = entries >= self._snapshot_entries or self._bytes_since_snapshot >= self._snapshot_bytes
        if due and self._encoding is None:
            self._bytes_since_snapshot = 0
            self._encoding = self._tasks.spawn(
                f"metadata {self.node_id} snapshot", self._encode(self._image, self._image_term)
            )

    async def _encode(self, image: ClusterImage, term: int) -> None:
        data = await asyncio.to_thread(encode_image, image)
        self._encoded = Snapshot(image.index, term, data)
        self._work.set()

    async def _keep_snapshot(self) -> None:
        snapshot, self._encoded = self._encoded, None
        if snapshot is None:
            return
        if snapshot.index > self.core.log.snapshot.index:
            await self._in_worker(lambda: self._storage.save_snapshot(snapshot))
            if snapshot.index >= self.core.log.snapshot.index:  # else the leader's came meanwhile
                self.core.compact(snapshot, self._keep_entries)
        self._encoding = None

    # --- small things

    async def _in_worker(self, work: Callable[[], R]) -> R:
        """Not given up half way: a cancelled caller still waits for the disk."""
        future = asyncio.get_running_loop().run_in_executor(self._worker, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.gather(future, return_exceptions=True)
            raise

    def _stop_serving(self, failure: BaseException) -> None:
        """For good; who waits learns it."""
        self._failure = failure
        self._draft = None
        self._fail(MetadataUnavailable(f"the metadata node failed: {failure}", applied_unknown=True))
        self._standing_changed.set()
        self._image_changed.set()
        self._work.set()

    def _raise_broken(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, reason: MetadataUnavailable) -> None:
        waiting, self._waiting = self._waiting, {}
        for _, applied in (item for items in waiting.values() for item in items):
            if not applied.done():
                applied.set_exception(reason)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            message = f"the metadata node failed: {self._failure}"
            raise MetadataUnavailable(message, applied_unknown=False) from self._failure
