"""Remote log manager: uploads, retention and status of the tiered partitions that this broker leads.

Each partition has at most one job: plan, perform the first action, plan again, until nothing is left to do.
A rolled segment, a change of the remote state and a timer wake it. This order keeps every offset readable:
segment uploaded (`segment_uploader`) -> manifest root written, once for several small segments -> local log
start raised -> files unlinked. A deletion raises the log start first, and deletes objects after the grace. A
failure shows in the status, and the job retries with growing, jittered backoff. An upload runs beside the
job, one at a time: retention waits neither for a copy slot nor for the store. Produce and fetch never wait
for either. A partition whose topic was tiered stays here: what is remote is deleted, and the quorum still
commits its log start (ADR 0025). Called by app.py and the admin API.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import structlog

from tierlog.base.clock import Clock
from tierlog.base.files import Files
from tierlog.base.safeguards import safeguard
from tierlog.base.segments import DescribedSegments
from tierlog.base.tasks import TaskGroup, WakeQueue, in_turns
from tierlog.base.types import TopicIdPartition
from tierlog.broker.remote.copy_lag import CopyLags
from tierlog.broker.remote.failure_log import FailureLog
from tierlog.broker.remote.manifest_editor import Command as EditorCommand
from tierlog.broker.remote.manifest_editor import ManifestEditor
from tierlog.broker.remote.segment_uploader import SegmentUploader, Upload, is_timeout
from tierlog.broker.remote.tier_views import (
    OffsetLocation,
    PartitionTierStatus,
    TierConflict,
    TierRefused,
    describe,
    locate_offset,
    statuses_in_turns,
    why_not_here,
)
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_events import DirectoryFailed, ReplicaEvent, ReplicasCreated
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.segment import CorruptLog
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import ClusterImage, RemotePartition, changed_topics
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.protocol.errors import ErrorCode
from tierlog.tiering import page_tree, planner
from tierlog.tiering.format.manifest import ManifestRoot
from tierlog.tiering.lineage import agrees_below
from tierlog.tiering.manager import TierManager
from tierlog.tiering.object_store import ObjectStoreError
from tierlog.tiering.remote_log import RemoteLog
from tierlog.tiering.store_health import BreakerOpen, StoreHealth

_log = structlog.get_logger("tierlog.tiering")

FIRST_BACKOFF_S = 0.2
BACKOFF_MAX_S = 30.0
JOBS_PER_TURN = 4
CHECKS_PER_TURN = 100
"""Jobs that start, and partitions that are checked for changes, in one turn of the event loop: one or two
milliseconds of work."""

BREAKER_CHECK_S = 1.0
"""While `flush` waits: another partition's failures may open the store's circuit breaker."""

STEPS_PER_JOB_MAX = 1000  # ends a job even if its plan is never empty


WITHOUT_STORE = (planner.Abandon, planner.MoveLogStart, planner.DropRemote, planner.DropLocal)
"""Actions of retention which need only the last written manifest, and not the store."""

PAGE_CHANGES = (page_tree.Spill, planner.TrimPages)
"""Actions which, like copies, write to the quorum's log and delete queue even if they fail: not while the
store is unavailable."""

MovesLogStart = type[c.MoveLogStart] | type[c.DropRemoteLog]
Command = c.FinishCopy | c.AbandonCopy | EditorCommand


class CommandRejected(Exception):
    """The controller rejected a command; the job plans again with the newest image."""


FAILURES = (ObjectStoreError, OSError, CorruptLog, CommandRejected, MetadataUnavailable)
"""Failures after which a job or an upload is repeated."""


@dataclass(slots=True, eq=False)
class _State:
    """A partition that is or was tiered and that this broker leads."""

    replica: Replica
    root: ManifestRoot | None = None
    root_ms: int = 0  # when it was found to be up to date, by the monotonic clock
    seen: RemotePartition | None = None  # the remote state at the last step
    job: asyncio.Task[None] | None = None
    again: bool = False
    upload: Upload | None = None
    uploading: asyncio.Task[None] | None = None  # also during the backoff after its failure
    failures: int = 0
    timed_out: bool = False  # the last copy did
    error: str | None = None
    blocked: bool = False  # permanently, unlike after a failure
    rolled_at: int = -1  # base offset of the active segment at the last wake
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    log_start_pages: planner.LogStartPages | None = None

    @property
    def copies(self) -> list[UUID]:
        """The id of the copy that is uploaded now."""
        return [] if self.upload is None or self.upload.uuid is None else [self.upload.uuid]


class RemoteLogManager:
    def __init__(
        self,
        *,
        broker_id: int,
        metadata: MetadataClient,
        replicas: ReplicaManager,
        manager: TierManager,
        remote_log: RemoteLog,
        files: Files,
        clock: Clock,
        rng: random.Random,
        tasks: TaskGroup,
        interval_ms: int,
        metadata_cache_bytes: int,
        first_backoff_s: float = FIRST_BACKOFF_S,
        store_health: StoreHealth | None = None,
    ) -> None:
        """`store_health`: of the store's circuit breaker; None if it has none."""
        self._broker_id = broker_id
        self._metadata = metadata
        self._replicas = replicas
        self._manager = manager
        self._remote_log = remote_log
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._interval_s = interval_ms / 1000
        self._nodes_budget_bytes = page_tree.image_budget(metadata_cache_bytes)
        self.editor = ManifestEditor(broker_id, manager, remote_log.pages_to, rng, self._submit)
        self._first_backoff_s = first_backoff_s
        self._store_health = store_health or StoreHealth()
        self._states: dict[TopicIdPartition, _State] = {}
        self._updates = WakeQueue("tiering: replicas", tasks, self._update, CHECKS_PER_TURN)
        self._changes = WakeQueue("tiering: changes", tasks, self._check_seen, CHECKS_PER_TURN)
        self._wakes = WakeQueue("tiering: jobs", tasks, self._start_job, JOBS_PER_TURN)
        self._uploader = SegmentUploader(
            broker_id=broker_id,
            metadata=metadata,
            manager=manager,
            files=files,
            rng=rng,
            emit=replicas.emit,
            submit=self._submit,
            tracer=metadata.tracer,
        )
        self.copies = self._uploader.counts
        self._failure_log = FailureLog()
        self.listeners: list[Callable[[TopicIdPartition], None]] = []
        """Called after each step that changed where offsets are, and when a failure begins or ends."""
        self.lags = CopyLags(
            clock,
            lambda where: metadata.image.remote_partition(*where),
            self._known_bucket_end,
            self._on_replica_changed,
            self._notify,
            rng,
        )

    def start(self) -> None:
        """Start the background tasks."""
        self._tasks.spawn("tiering timer", self._tick())
        self._tasks.repeat("copy lag", self.lags.turn)

    # -- what wakes a partition --

    async def _tick(self) -> None:
        while True:
            try:
                await self._wake_all_in_turns()
                self._remote_log.recheck()
                await self.apply_followers_retention()
            except Exception:  # a bug must not stop tiering until the next start
                _log.exception("tiering.timer.failed")
            await asyncio.sleep(self._interval_s)

    def wake_all(self) -> None:
        """Wake every tiered partition that this broker leads; remove those which it no longer leads."""
        self._updates.add([state.replica for state in self._states.values()])
        self._updates.add([replica for replica in self._replicas if replica.is_tiered])

    async def _wake_all_in_turns(self) -> None:
        """As `wake_all`, which visits all replicas of this broker in one turn of the event loop."""
        self._updates.add([state.replica for state in self._states.values()])
        async for replica in in_turns(self._replicas):
            if replica.is_tiered and self._replicas.holds(replica):
                self._updates.add((replica,))

    def wake(self, where: TopicIdPartition) -> None:
        """Wake a partition, if this broker leads it."""
        if (state := self._states.get(where)) is not None:
            self._wake(state)

    async def apply_followers_retention(self) -> None:
        """Delete remote segments from local disk by local.retention.*, on partitions that this broker
        follows."""
        async for replica in in_turns(self._replicas):
            if not (replica.is_follower and replica.is_tiered and self._has_newest_role(replica)):
                continue
            remote = self._metadata.image.remote_partition(*replica.id)
            now_ms, start = self._clock.now_ms(), replica.log_start_offset
            segments = replica.described_segments
            kept_from = planner.follower_local_start(
                remote, segments, _policy(replica), start, now_ms, self._damaged_from(replica)
            )
            # Above its high watermark the follower's log may differ from the uploaded one.
            kept_from = min(kept_from, replica.high_watermark)
            try:
                replica.delete_local_before(kept_from, now_ms)
            except BlockingIOError:
                pass  # a flush writes the leader epochs: the next turn deletes the segments
            except OSError as failure:
                _log.error("tiering.retention.failed", partition=str(replica.name), error=str(failure))
            await asyncio.sleep(0)  # let requests run between two partitions

    def on_replica_event(self, event: ReplicaEvent) -> None:
        if isinstance(event, DirectoryFailed | ReplicasCreated):
            self.wake_all()

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """The replica manager has applied the image."""
        for topic in changed_topics(old, new)[0]:
            for number in range(len(topic.partitions)):
                self._remove(TopicIdPartition(topic.topic_id, number))
        if old.topics is not new.topics:
            self.copies.retain(new.topics)
        if old.topics is not new.topics or old.configs is not new.configs:
            self.wake_all()
        if old.remote is not new.remote:
            self._changes.add(self._states.values())

    def _update(self, replica: Replica) -> None:
        """Add, wake or remove a partition, as its replica's role and settings say."""
        where = replica.id
        state = self._states.get(where)
        if not (replica.is_leader and replica.is_tiered):
            if state is not None and state.replica is replica:
                self._remove(where)
            return
        if state is None or state.replica is not replica:
            self._remove(where)
            state = self._states[where] = _State(replica)
            replica.listeners.append(self._on_replica_changed)
        self.lags.update(replica)
        self._wake(state)

    def _remove(self, where: TopicIdPartition) -> None:
        state = self._states.pop(where, None)
        self.lags.remove(where)
        if state is None:
            return
        with suppress(ValueError):  # a closed replica has no listeners
            state.replica.listeners.remove(self._on_replica_changed)
        state.progress.set()
        for task in (state.job, state.uploading):
            if task is not None:
                task.cancel()  # what it uploads could not be committed, and its slot is free for others
        self._manager.forget(where)

    def _on_replica_changed(self, replica: Replica) -> None:
        """Called on every append; a few look-ups, unless a rolled segment can be uploaded."""
        state = self._states.get(replica.id)
        if state is None or state.replica is not replica:
            return
        self.lags.on_appended(replica.id)
        active = replica.log.active_base_offset
        if active != state.rolled_at and replica.last_stable_offset >= active:
            state.rolled_at = active
            self._wake(state)

    def _wake(self, state: _State) -> None:
        if state.job is not None and not state.job.done():
            state.again = True
        else:
            state.blocked = False  # until the next plan
            self._wakes.add([state])

    def _check_seen(self, state: _State) -> None:
        if self._metadata.image.remote.get(state.replica.id) is not state.seen:
            self._wake(state)

    def _start_job(self, state: _State) -> None:
        where = state.replica.id
        if self._states.get(where) is state and (state.job is None or state.job.done()):
            state.job = self._tasks.spawn(f"tiering of {state.replica.name}", self._run(where, state))

    def jobs(self) -> list[asyncio.Task[None]]:
        """The running tasks; if there are none, nothing is left to do."""
        queues = self._updates.task, self._changes.task, self._wakes.task
        found = (task for state in self._states.values() for task in (state.job, state.uploading))
        return [task for task in (*queues, *found) if task is not None and not task.done()]

    # -- the job of one partition --

    async def _run(self, where: TopicIdPartition, state: _State) -> None:
        for _ in range(STEPS_PER_JOB_MAX):
            if not self._is_current(where, state):
                return
            state.again, state.blocked, previous_error = False, False, state.error
            try:
                acted = await self._step(where, state)
            except BlockingIOError:  # a flush writes the leader epochs, which soon ends
                await asyncio.sleep(self._first_backoff_s)
                continue
            except FAILURES as failure:
                await self._back_off(where, state, failure)
                continue
            state.progress.set()
            if acted or state.error != previous_error:
                self._notify(where)
            if not acted and not state.again:
                return

    def _is_current(self, where: TopicIdPartition, state: _State) -> bool:
        """Whether this broker still leads the partition, with the same replica."""
        return self._states.get(where) is state and state.replica.is_leader

    def bucket_end(self, where: TopicIdPartition) -> int:
        """End of what the bucket's manifest lists, as far as this leader knows."""
        return self._known_bucket_end(where) or 0

    def _known_bucket_end(self, where: TopicIdPartition) -> int | None:
        """None until this leader has written or read the bucket's manifest."""
        state = self._states.get(where)
        return None if state is None or state.root is None else _end_of(state.root) or 0

    @safeguard("a low disk drops only what the bucket's manifest lists")
    def droppable_end(self, replica: Replica) -> int:
        """End of the offsets that stay readable without the local log, as committed and uploaded; 0: none.
        Followers need not read the bucket's manifest (`planner.follower_local_start`).

        0 also if no leader of the current epoch has shown that the log agrees with its own, or if the log has
        other records than the manifest: after an unclean election they may be nowhere else."""
        is_current = replica.is_leader or replica.as_follower.agrees_with_leader
        if not (_is_enabled(replica) and is_current and self._has_newest_role(replica)):
            return 0
        remote, log = self._metadata.image.remote_partition(*replica.id), replica.log
        end = min(remote.end_offset or 0, replica.high_watermark, self._damaged_from(replica))
        end = min(end, self.bucket_end(replica.id)) if replica.is_leader else end
        return end if agrees_below(remote, log.epochs, log.local_log_start_offset, end) else 0

    def _damaged_from(self, replica: Replica) -> int:
        return self._remote_log.quarantine.damaged_from(replica.id, replica.local_log_start_offset)

    def _has_newest_role(self, replica: Replica) -> bool:
        """False while an elected replica cannot lead yet: the leader of its previous role no longer counts,
        and its local log may be the only one that reaches back to where the manifest diverges. Also false
        until the manifest in the bucket has been read after the quorum was recovered."""
        image = self._metadata.image
        partition = image.partition(*replica.id)
        is_newest = partition is not None and partition.leader_epoch == replica.leader_epoch
        return is_newest and replica.id not in image.unread_manifests

    def _notify(self, where: TopicIdPartition) -> None:
        for listener in self.listeners:
            listener(where)

    async def _back_off(self, where: TopicIdPartition, state: _State, failure: Exception) -> None:
        state.error = str(failure)
        state.failures += 1
        state.progress.set()
        if state.failures == 1:
            self._notify(where)
        longest = min(BACKOFF_MAX_S, self._first_backoff_s * 2 ** min(state.failures, 16))
        backoff_s = longest * (0.5 + self._rng.random() / 2)
        if partitions := self._partitions_to_log(state, failure):
            _log.warning(
                "tiering.failed",
                partition=str(state.replica.name),
                partitions=partitions,
                error=str(failure),
                retry_s=round(backoff_s, 1),
            )
        await asyncio.sleep(backoff_s)

    def _partitions_to_log(self, state: _State, failure: Exception) -> int:
        """Partitions for which a failure is logged now; 0 if it is not. Failures of the store and the quorum
        are logged once an interval, not for each partition, and an outage of the store only by its health."""
        if isinstance(failure, BreakerOpen):
            return 0
        if not isinstance(failure, ObjectStoreError | MetadataUnavailable):
            return 1
        return self._failure_log.add(failure, str(state.replica.name), self._clock.monotonic_ms())

    async def _step(self, where: TopicIdPartition, state: _State) -> bool:
        """Perform the first action of a new plan. Returns False if there was nothing to do."""
        image = self._metadata.image
        if where.topic_id not in image.topics:
            return False
        replica, remote = state.replica, image.remote_partition(*where)
        state.seen = image.remote.get(where)
        if remote.log_start_offset > replica.log_start_offset:
            replica.raise_log_start(remote.log_start_offset)
        store_error, upload = None, state.upload
        action = await self._copy_before_root(where, state, remote)
        if action is None:
            store_error = await self._write_root(where, state, remote, image.index)
        if action is None or upload is not None:
            without_store = store_error is not None or upload is not None
            action = await self._next_action(where, state, remote, without_store=without_store)
        if action is not None:
            if state.failures and isinstance(action, PAGE_CHANGES):
                await self._manager.probe()
            await self._perform(where, state, action)
            return not isinstance(action, planner.Blocked | planner.Copy)  # an upload's end wakes the job
        if store_error is not None and (_is_enabled(replica) or remote.first_offset is not None):
            raise store_error  # else nothing is remote, and the store may be gone for good
        if state.upload is None:
            state.failures, state.error = 0, None
        return False

    async def _next_action(
        self, where: TopicIdPartition, state: _State, remote: RemotePartition, *, without_store: bool = False
    ) -> planner.Action | None:
        """The first action of a new plan. `without_store`: only one that does not need the store."""
        replica = state.replica
        segments = replica.described_segments
        view = await self._view(where, state, remote, segments)
        for action in planner.actions(remote, segments, _policy(replica), view, self._clock.now_ms()):
            if not without_store or isinstance(action, WITHOUT_STORE):
                return action
            if isinstance(action, planner.Copy):
                return None  # only copies follow, perhaps hundreds
        return None

    async def _copy_before_root(
        self, where: TopicIdPartition, state: _State, remote: RemotePartition
    ) -> planner.Action | None:
        """The copy that runs now, or else the one to begin, if the root is written after it. Not a copy that
        waits for a slot, and none after a failure."""
        unlisted = planner.unlisted_copies(state.root, remote)
        if not unlisted or state.failures or not self._manager.copies.has_free:
            return None
        copy = state.upload.action if state.upload else await self._next_action(where, state, remote)
        age_ms = self._clock.monotonic_ms() - state.root_ms
        return copy if planner.root_may_wait(unlisted, copy, age_ms) else None

    async def _write_root(
        self, where: TopicIdPartition, state: _State, remote: RemotePartition, index: int
    ) -> ObjectStoreError | None:
        """Write the image's remote state to the manifest root. Returns a failure instead of raising it, since
        retention can continue.

        No root is written before the first commit. If the topic is deleted before it has a document in the
        bucket, only objects that the quorum knows are deleted.
        """
        if remote.copied_end_offset is None and not remote.log_start_offset:
            return None
        try:
            state.root = await self._manager.write_root(where, remote, state.replica.leader_epoch, index)
            state.root_ms = self._clock.monotonic_ms()
        except ObjectStoreError as failure:
            return failure
        return None

    async def _view(
        self,
        where: TopicIdPartition,
        state: _State,
        remote: RemotePartition,
        segments: DescribedSegments,
    ) -> planner.LeaderView:
        replica, image = state.replica, self._metadata.image
        pages: page_tree.Pages = {}
        policy, now_ms = _policy(replica), self._clock.now_ms()
        if planner.needs_log_start_pages(remote, segments, policy, state.log_start_pages, now_ms):
            start = max(remote.log_start_offset, remote.pages[0].base_offset)
            with suppress(ObjectStoreError):  # then retention treats the page as one range
                pages = await self._remote_log.pages_to(where, remote.pages, start)
                state.log_start_pages = planner.summarize_log_start_pages(remote, pages)
        return planner.LeaderView(
            leader_epoch=replica.leader_epoch,
            high_watermark=replica.high_watermark,
            last_stable_offset=replica.last_stable_offset,
            bucket_end=_end_of(state.root),
            damaged_from=self._damaged_from(replica),
            log_start_offset=replica.log_start_offset,
            running=frozenset(self.editor.copies).union(state.copies),
            pages=pages,
            limits=page_tree.limits_for(self._nodes_budget_bytes, len(image.remote), image.format_version),
        )

    async def _perform(self, where: TopicIdPartition, state: _State, action: planner.Action) -> None:
        epoch = state.replica.leader_epoch
        match action:
            case planner.Abandon(uuid):
                await self._submit(
                    c.AbandonCopy(
                        topic_id=where.topic_id, partition=where.partition, leader_epoch=epoch, uuid=uuid
                    )
                )
            case planner.MoveLogStart(offset):
                await self._move_log_start(where, state, offset)
            case planner.DropRemote(local_log_start):
                await self._cancel_upload(state)
                state.root = None  # it lists segments that will not be remote any more
                await self._move_log_start(where, state, local_log_start, c.DropRemoteLog)
            case page_tree.Spill():
                is_tree = self._metadata.image.format_version > 1
                await self.editor.spill(where, epoch, action, is_tree=is_tree)
            case planner.TrimPages(page, new):
                await self.editor.trim(where, epoch, page, new)
            case planner.DropLocal(new_local_start):
                if self._is_current(where, state):  # else another leader may have deleted what is remote
                    state.replica.delete_local_before(new_local_start, self._clock.now_ms())
            case planner.Copy():
                state.upload = Upload(where, state.replica, action, partial(self._is_current, where, state))
                work = self._upload(where, state, state.upload)
                state.uploading = self._tasks.spawn(f"upload of {state.replica.name}", work)
            case planner.Blocked(reason):
                if state.error != reason:
                    _log.error("tiering.blocked", partition=str(state.replica.name), reason=reason)
                state.error, state.blocked = reason, True

    @safeguard("replicas move the log start offset after the quorum commits it")
    async def _move_log_start(
        self, where: TopicIdPartition, state: _State, offset: int, command: MovesLogStart = c.MoveLogStart
    ) -> None:
        reply = await self._metadata.submit(
            command(
                topic_id=where.topic_id,
                partition=where.partition,
                leader_epoch=state.replica.leader_epoch,
                log_start_offset=offset,
            )
        )
        if reply.error is not ErrorCode.NONE:
            raise CommandRejected(reply.message or reply.error.name)
        state.replica.raise_log_start(reply.log_start_offset)
        if state.upload is not None and state.upload.end_offset <= reply.log_start_offset:
            await self._cancel_upload(state)  # no reader will need it

    async def _cancel_upload(self, state: _State) -> None:
        if state.uploading is not None:
            state.uploading.cancel()
            await asyncio.wait([state.uploading])

    async def _upload(self, where: TopicIdPartition, state: _State, upload: Upload) -> None:
        """Upload one segment, and then wake the job, which plans the next one."""
        try:
            if state.failures:
                await self._manager.probe()
            base, files = upload.action.segment.base_offset, state.replica.log.segment_files
            lag_bytes = sum(segment.size for segment in files if segment.base_offset >= base)
            due_ms = self.lags.due_ms(where)
            timed_out = state.timed_out
            async with self._manager.copies.slot(lag_bytes, due_ms=due_ms, timed_out=timed_out) as slot:
                state.timed_out = False
                try:
                    if await self._uploader.run(upload, slot):
                        state.failures, state.error = 0, None
                        self._notify(where)
                except Exception as failure:
                    state.timed_out = is_timeout(failure)
                    raise
        except FAILURES as failure:
            self._wake(state)  # abandons the copy
            await self._back_off(where, state, failure)
        finally:
            state.upload = None
        if self._states.get(where) is state:
            state.progress.set()
            self._wake(state)

    async def _submit(self, command: Command) -> None:
        reply = await self._metadata.submit(command)
        if reply.error is not ErrorCode.NONE:
            raise CommandRejected(f"{type(command).__name__}: {reply.message or reply.error.name}")

    # -- admin API --

    async def flush(self, topic: str) -> list[PartitionTierStatus]:
        """Roll and upload a topic. Returns once the manifests in the bucket cover the current log
        ends.

        Retries failures of the store while the caller waits. Raises TierRefused if it cannot succeed,
        and BreakerOpen while the store is known to be unavailable.
        """
        led = self._led(topic)
        targets: list[tuple[Replica, int]] = []
        for replica in led:
            self.roll(replica)
            targets.append((replica, replica.log_end_offset))
        try:
            async with asyncio.TaskGroup() as waiting:
                for replica, end in targets:
                    waiting.create_task(self.await_tiered(replica, end))
        except* (TierRefused, BreakerOpen) as failed:
            raise failed.exceptions[0] from None
        return await self.status(topic)

    def roll(self, replica: Replica) -> None:
        """Roll the active segment, and upload it soon."""
        replica.log.roll(self._clock.now_ms())
        self._update(replica)

    async def await_tiered(self, replica: Replica, end: int) -> None:
        """Returns once the bucket's manifest lists everything below `end`. Raises as `flush` does."""
        while True:
            state, health = self._states.get(replica.id), self._store_health
            if state is None:
                raise TierConflict(f"this broker is no longer the leader of {replica.name}")
            if (_end_of(state.root) or 0) >= end or state.replica.log_start_offset >= end:
                return
            if not _is_enabled(state.replica):
                raise TierConflict(f"{replica.name}: remote.storage.enable is false")
            if state.replica.config.remote_log_copy_disable:
                raise TierConflict(f"{replica.name}: remote.log.copy.disable is set")
            if state.blocked:
                raise TierConflict(f"{replica.name}: {state.error}")
            if not health.is_available:
                raise BreakerOpen(f"the object store is unavailable: {health.last_error}")
            state.progress.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(BREAKER_CHECK_S):
                    await state.progress.wait()

    @property
    def tiered(self) -> list[Replica]:
        """The replicas of the tiered partitions that this broker leads."""
        replicas = (state.replica for state in self._states.values())
        return [replica for replica in replicas if replica.is_leader and _is_enabled(replica)]

    def led(self, where: TopicIdPartition) -> Replica | None:
        """The replica of a tiered partition that this broker leads; None if it leads none."""
        state = self._states.get(where)
        if state is None or not state.replica.is_leader or not _is_enabled(state.replica):
            return None
        return state.replica

    async def status(self, topic: str | None = None) -> list[PartitionTierStatus]:
        """The status of every tiered partition that this broker leads, sorted by name."""
        replicas = [state.replica for state in self._states.values()]
        named = [each for each in replicas if topic is None or each.name.topic == topic]
        return await statuses_in_turns(named, self.status_of)

    async def behind(self) -> list[PartitionTierStatus]:
        """The status of the partitions with a record that is older than remote.log.copy.max.lag.ms."""
        return await statuses_in_turns(self.lags.behind, self.status_of)

    def status_of(self, replica: Replica) -> PartitionTierStatus | None:
        """The status of a partition; None if this broker does not lead it, or if it is not tiered."""
        where, image = replica.id, self._metadata.image
        remote, state = image.remote_partition(*where), self._states.get(where)
        if state is None or not (_is_enabled(state.replica) or remote.first_offset is not None):
            return None
        return describe(
            state.replica,
            remote,
            self._clock.now_ms(),
            uploading=bool(state.copies),
            last_error=state.error,
            copy_lag_ms=self.lags.age_ms(where),
        )

    async def explain(self, topic: str, partition: int, offset: int) -> OffsetLocation:
        """Return the location of an offset. Raises TierRefused or ObjectStoreError."""
        replica = self._replicas.get(topic, partition)
        if replica is None:
            raise TierRefused(why_not_here(self._metadata.image, topic, partition))
        if not replica.log_start_offset <= offset < replica.high_watermark:
            start, end = replica.log_start_offset, replica.high_watermark
            held = f"has offsets {start} to {end - 1}" if start < end else "has no records"
            raise TierRefused(f"{topic}-{partition} {held}")
        remote = self._metadata.image.remote_partition(replica.topic_id, partition)
        return await locate_offset(replica, remote, self._remote_log, offset)

    def _led(self, topic: str) -> list[Replica]:
        led = [replica for replica in self._replicas if replica.name.topic == topic and replica.is_leader]
        if not led:
            kind = TierRefused if self._metadata.image.topic(topic) is None else TierConflict
            raise kind(f"this broker leads no partition of topic {topic!r}")
        if not _is_enabled(led[0]):
            raise TierConflict(f"topic {topic!r} is not tiered: set remote.storage.enable=true")
        return led


def _is_enabled(replica: Replica) -> bool:
    """Whether the topic is tiered, and not only was."""
    return replica.is_tiered and replica.config.remote_storage_enable


@safeguard("local segments stay until the bucket's manifest lists the copy")
def _end_of(root: ManifestRoot | None) -> int | None:
    """End offset of the remote segments in the manifest root."""
    if root is None:
        return None
    newest = root.entries[-1:] or root.pages[-1:]
    return None if not newest else newest[0].last_offset + 1


def _policy(replica: Replica) -> planner.TierPolicy:
    config = replica.config
    return planner.TierPolicy(
        enabled=config.remote_storage_enable,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        local_retention_ms=config.effective_local_retention_ms,
        local_retention_bytes=config.effective_local_retention_bytes,
        copy=not config.remote_log_copy_disable,
        delete="delete" in config.cleanup_policy,
    )
