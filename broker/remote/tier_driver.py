"""The flow "Tier": joins the image, the replicas that this broker leads, and the work on the bucket.

Per partition one job at a time: plan, carry out the first action, plan again, until nothing is left to do. A
rolled segment, a change of the remote state and a timer wake it. The order that keeps every offset readable:
batches of the segment held to their CRCs -> StartCopy committed -> objects put and verified -> FinishCopy
committed -> root of the bucket written -> local start raised -> files unlinked; deleting goes log start
first, objects after the grace. A failure is told in the status, and the job tries again after a growing,
jittered pause; produce and fetch never wait for any of it, and retention goes on without the store. Called by
app.py and by the admin API.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol
from uuid import UUID

import structlog

from tierlog.base.clock import Clock
from tierlog.base.files import Files
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition, random_uuid
from tierlog.broker.maintenance.scrubber import FoundDamage
from tierlog.broker.remote.tier_views import (
    OffsetPlace,
    PartitionTier,
    TierRefused,
    describe,
    find_place,
    local_segments,
)
from tierlog.broker.remote.upload_check import checksum_to_upload
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.damage import lies_in
from tierlog.broker.storage.log_suffix import copy_suffix
from tierlog.broker.storage.lookups import SegmentExport
from tierlog.broker.storage.segment import CorruptLog
from tierlog.metadata.client import MetadataClient
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import ClusterImage, RemotePartition
from tierlog.metadata.quorum.node import MetadataUnavailable
from tierlog.metadata.records import RemoteSegment
from tierlog.protocol.errors import ErrorCode
from tierlog.tiering import planner
from tierlog.tiering.copier import Attempt, SegmentSource
from tierlog.tiering.format.bundle import IndexBundle
from tierlog.tiering.format.manifest import ManifestRoot
from tierlog.tiering.manager import TierManager
from tierlog.tiering.object_store import ObjectStoreError
from tierlog.tiering.remote_log import RemoteLog

_log = structlog.get_logger("tierlog.tiering")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
STEPS_AT_A_TIME = 1000  # then other work on the loop gets its turn even if planning never ends


WITHOUT_STORE = (planner.Abandon, planner.MoveLogStart, planner.DropLocal)
"""What retention does while the store is away; it needs only the last manifest that was written."""

ANNOUNCED = (planner.Copy, planner.Spill)
"""What leaves lines in the quorum's log and delete queue even where it fails: not while the store is away."""

Command = c.StartCopy | c.FinishCopy | c.AbandonCopy | c.StartSpill | c.SpillEntries


class Replicas(Protocol):
    """What is needed of the replica manager."""

    def __iter__(self) -> Iterator[Replica]: ...
    def get(self, topic: str | UUID, partition: int) -> Replica | None: ...


class CommandRefused(Exception):
    """The controller refused; planning again on the newest image settles it."""


@dataclass(slots=True)
class _State:
    """One led, tiered partition."""

    replica: Replica
    root: ManifestRoot | None = None
    job: asyncio.Task[None] | None = None
    again: bool = False
    copying: UUID | None = None
    failures: int = 0
    error: str | None = None
    blocked: bool = False  # not by trouble that may pass
    rolled_at: int = -1  # base of the active segment at the last wake
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # the topic was deleted, or leadership lost
    pages: dict[UUID, tuple[RemoteSegment, ...]] = field(default_factory=dict)


class TierDriver:
    """Tiering of all partitions that this broker leads."""

    def __init__(
        self,
        *,
        broker_id: int,
        metadata: MetadataClient,
        replicas: Replicas,
        manager: TierManager,
        remote_log: RemoteLog,
        files: Files,
        clock: Clock,
        rng: random.Random,
        tasks: TaskGroup,
        found_damage: FoundDamage,
        interval_ms: int,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """`found_damage`: told of damage that an upload would have taken along; notes it in the segment."""
        self._broker_id = broker_id
        self._metadata = metadata
        self._replicas = replicas
        self._manager = manager
        self._remote_log = remote_log
        self._files = files
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._found_damage = found_damage
        self._interval_s = interval_ms / 1000
        self._first_pause_s = first_pause_s
        self._states: dict[TopicIdPartition, _State] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.listeners: list[Callable[[TopicIdPartition], None]] = []
        """Told after each step that changed where offsets lie, and when trouble begins or ends."""

    async def start(self) -> None:
        """Begins the work; returns at once."""
        self._metadata.subscribe(self._on_image)
        self._tasks.spawn("tiering timer", self._tick())

    # -- what wakes a partition --

    async def _tick(self) -> None:
        while True:
            try:
                self.wake_all()
                await self.trim_followers()
            except Exception:  # a bug must not end tiering until the next start
                _log.exception("tiering's timer failed")
            await asyncio.sleep(self._interval_s)

    def wake_all(self) -> None:
        """Looks at every led partition anew; lets go of those whose disk has failed."""
        for where, state in list(self._states.items()):
            if not (state.replica.is_leader and _tiered(state.replica)):
                self._let_go(where)
        for replica in self._replicas:
            if replica.config.remote_storage_enable:  # 10,000 others cost nothing
                self._consider(replica)

    async def trim_followers(self) -> None:
        """Followers drop what is remote by local.retention.*, each for itself: they upload nothing."""
        for replica in self._replicas:
            if not (replica.is_follower and _tiered(replica)):
                continue
            remote = self._metadata.image.remote_partition(replica.topic_id, replica.name.partition)
            now_ms, start = self._clock.now_ms(), replica.log_start_offset
            segments = local_segments(replica)
            kept_from = planner.follower_local_start(remote, segments, _policy(replica), start, now_ms)
            # above what it knows to be committed its log may not be the one that was uploaded
            kept_from = min(kept_from, replica.high_watermark)
            try:
                replica.delete_local_before(kept_from, now_ms)
            except OSError as failure:
                _log.error("local retention failed", partition=str(replica.name), error=str(failure))
            await asyncio.sleep(0)  # requests have their turn between two

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        for where in [where for where in self._states if where.topic_id not in new.topics]:
            self._let_go(where)
        if old.topics is not new.topics or old.configs is not new.configs:
            # after this call: the replica manager may follow the image later than we do
            asyncio.get_running_loop().call_soon(self.wake_all)
        if old.remote is not new.remote:
            for where, state in self._states.items():
                if old.remote.get(where) is not new.remote.get(where):
                    self._wake(where, state)

    def _consider(self, replica: Replica) -> None:
        where = TopicIdPartition(replica.topic_id, replica.name.partition)
        if not (replica.is_leader and _tiered(replica)):
            self._let_go(where)
            return
        state = self._states.get(where)
        if state is None or state.replica is not replica:
            self._let_go(where)
            state = self._states[where] = _State(replica)
            replica.listeners.append(self._on_moved)
        self._wake(where, state)

    def _let_go(self, where: TopicIdPartition) -> None:
        state = self._states.pop(where, None)
        if state is None:
            return
        with suppress(ValueError):  # a closed replica has let go of us
            state.replica.listeners.remove(self._on_moved)
        state.gone.set()
        state.progress.set()
        if state.job is None or state.job.done():
            self._manager.forget(where)
            return
        self._ending.add(state.job)
        state.job.add_done_callback(self._ending.discard)
        state.job.add_done_callback(lambda _: self._manager.forget(where))

    async def ended(self) -> None:
        """Returns once no partition that was let go is at work any more: then its objects may be deleted."""
        while self._ending:
            await asyncio.wait(list(self._ending))

    def _on_moved(self, replica: Replica) -> None:
        """On every append: costs two look-ups unless a segment was rolled or the watermark passed its end."""
        where = TopicIdPartition(replica.topic_id, replica.name.partition)
        state = self._states.get(where)
        if state is None or state.replica is not replica:
            return
        active = replica.log.active_base_offset
        if active != state.rolled_at and replica.last_stable_offset >= active:
            state.rolled_at = active
            self._wake(where, state)

    def _wake(self, where: TopicIdPartition, state: _State) -> None:
        if state.job is not None and not state.job.done():
            state.again = True
            return
        state.job = self._tasks.spawn(f"tiering of {state.replica.name}", self._run(where, state))

    def jobs(self) -> list[asyncio.Task[None]]:
        """Partitions at work now; none means that all is as the plans want it."""
        return [
            state.job for state in self._states.values() if state.job is not None and not state.job.done()
        ]

    # -- the job of one partition --

    async def _run(self, where: TopicIdPartition, state: _State) -> None:
        for _ in range(STEPS_AT_A_TIME):
            if not self._is_due(where, state):
                return
            state.again, state.blocked, trouble = False, False, state.error
            try:
                worked = await self._step(where, state)
            except (ObjectStoreError, OSError, CorruptLog, CommandRefused, MetadataUnavailable) as failure:
                await self._pause(where, state, failure)
                continue
            state.progress.set()
            if worked or state.error != trouble:
                self._tell(where)
            if not worked and not state.again:
                return

    def _is_due(self, where: TopicIdPartition, state: _State) -> bool:
        """Whether the work is still this broker's."""
        return self._states.get(where) is state and state.replica.is_leader

    def _tell(self, where: TopicIdPartition) -> None:
        for listener in self.listeners:
            listener(where)

    async def _pause(self, where: TopicIdPartition, state: _State, failure: Exception) -> None:
        state.error = str(failure)
        state.failures += 1
        state.progress.set()
        if state.failures == 1:
            self._tell(where)
        longest = min(LONGEST_PAUSE_S, self._first_pause_s * 2 ** min(state.failures, 16))
        pause = longest * (0.5 + self._rng.random() / 2)
        _log.warning(
            "tiering failed", partition=str(state.replica.name), error=str(failure), retry_s=round(pause, 1)
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await state.gone.wait()

    async def _step(self, where: TopicIdPartition, state: _State) -> bool:
        """Carries out the first action of a new plan; False if there was nothing to do."""
        image = self._metadata.image
        if where.topic_id not in image.topics:
            return False
        replica, remote = state.replica, image.remote_partition(*where)
        if remote.log_start_offset > replica.log_start_offset:
            replica.raise_log_start(remote.log_start_offset)
        trouble = await self._write_root(where, state, remote, image.index)
        view = await self._view(where, state, remote)
        actions = planner.plan(remote, local_segments(replica), _policy(replica), view, self._clock.now_ms())
        if trouble is not None:
            actions = [action for action in actions if isinstance(action, WITHOUT_STORE)]
        if actions:
            if state.failures and isinstance(actions[0], ANNOUNCED):
                await self._manager.probe()
            await self._perform(where, state, actions[0])
            return not isinstance(actions[0], planner.Blocked)
        if trouble is not None:
            raise trouble
        state.failures, state.error = 0, None
        return False

    async def _write_root(
        self, where: TopicIdPartition, state: _State, remote: RemotePartition, index: int
    ) -> ObjectStoreError | None:
        """Brings the bucket's manifest up to the image. What failed is returned: retention can do without.

        There is none before something was committed: only objects of which the quorum knows go with a topic
        that was deleted before anybody described it.
        """
        if remote.copied_end_offset is None and not remote.log_start_offset:
            return None
        try:
            state.root = await self._manager.write_root(where, remote, state.replica.leader_epoch, index)
        except ObjectStoreError as failure:
            return failure
        return None

    async def _view(
        self, where: TopicIdPartition, state: _State, remote: RemotePartition
    ) -> planner.LeaderView:
        replica, config = state.replica, state.replica.config
        limited = config.retention_ms >= 0 or config.retention_bytes >= 0
        if remote.pages and limited and remote.pages[0].uuid not in state.pages:
            oldest = remote.pages[0]
            with suppress(ObjectStoreError):  # then the page counts as one range, and goes a little later
                state.pages = {oldest.uuid: await self._remote_log.page_entries(where, oldest)}
        return planner.LeaderView(
            leader_epoch=replica.leader_epoch,
            high_watermark=replica.high_watermark,
            last_stable_offset=replica.last_stable_offset,
            bucket_end=_end_of(state.root),
            pages=state.pages,
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
            case planner.Spill(entries):
                await self._spill(where, epoch, entries)
            case planner.DropLocal(new_local_start):
                state.replica.delete_local_before(new_local_start, self._clock.now_ms())
            case planner.Copy():
                async with self._manager.copying:
                    await self._copy(where, state, action)
            case planner.Blocked(reason):
                if state.error != reason:
                    _log.error("tiering is blocked", partition=str(state.replica.name), reason=reason)
                state.error, state.blocked = reason, True

    async def _spill(self, where: TopicIdPartition, epoch: int, entries: tuple[RemoteSegment, ...]) -> None:
        """Announced first, as copies are: a page whose commit fails is found in the delete queue."""
        page_id = random_uuid(self._rng)
        await self._submit(
            c.StartSpill(
                topic_id=where.topic_id,
                partition=where.partition,
                leader_epoch=epoch,
                uuid=page_id,
                base_offset=entries[0].base_offset,
                last_offset=entries[-1].last_offset,
            )
        )
        page = await self._manager.write_page(where, page_id, entries)
        await self._submit(
            c.SpillEntries(topic_id=where.topic_id, partition=where.partition, leader_epoch=epoch, page=page)
        )

    async def _move_log_start(self, where: TopicIdPartition, state: _State, offset: int) -> None:
        reply = await self._metadata.submit(
            c.MoveLogStart(
                topic_id=where.topic_id,
                partition=where.partition,
                leader_epoch=state.replica.leader_epoch,
                log_start_offset=offset,
            )
        )
        if reply.error is not ErrorCode.NONE:
            raise CommandRefused(reply.message or reply.error.name)
        state.replica.raise_log_start(reply.log_start_offset)

    async def _copy(self, where: TopicIdPartition, state: _State, action: planner.Copy) -> None:
        """Within the slot from StartCopy on, so that no copy is announced long before its objects are put."""
        replica, segment = state.replica, action.segment
        if not self._is_due(where, state):
            return  # lost while it waited for the slot
        checksum = await checksum_to_upload(
            replica,
            segment.base_offset,
            segment.base_offset if action.start_offset is None else action.start_offset,
            self._found_damage,
            partial(self._is_due, where, state),
            self._manager.check_s,
        )
        if checksum is None:
            return
        exported = replica.export_segment(segment.base_offset)
        if exported is None:
            return  # dropped meanwhile
        if action.start_offset is None:
            await self._upload(where, state, _source(exported, checksum))
            return
        interval_bytes = replica.config.index_interval_bytes
        cut = partial(copy_suffix, self._files, exported, action.start_offset, interval_bytes)
        loop, threads = asyncio.get_running_loop(), replica.log_dir.threads
        tail, tail_checksum = await loop.run_in_executor(threads, cut)
        try:
            await self._upload(where, state, _source(tail, tail_checksum))
        finally:  # jobs are cancelled when the broker stops alone: what is left then goes with the next start
            drop = partial(self._files.unlink, tail.log_path, missing_ok=True)
            await loop.run_in_executor(threads, drop)

    async def _upload(self, where: TopicIdPartition, state: _State, source: SegmentSource) -> None:
        replica = state.replica
        attempt = Attempt(where, random_uuid(self._rng), replica.leader_epoch)
        await self._submit(
            c.StartCopy(
                topic_id=where.topic_id,
                partition=where.partition,
                broker_id=self._broker_id,
                leader_epoch=attempt.leader_epoch,
                uuid=attempt.uuid,
                base_offset=source.base_offset,
                last_offset=source.last_offset,
            )
        )
        state.copying = attempt.uuid
        try:
            entry = await self._manager.copy(source, attempt)
        finally:
            state.copying = None
        state.failures = 0
        if lies_in(replica.log.damage, source.base_offset, source.last_offset):
            raise CorruptLog(f"damage came to light in {source.path} while it was uploaded")
        await self._submit(
            c.FinishCopy(
                topic_id=where.topic_id, partition=where.partition, broker_id=self._broker_id, segment=entry
            )
        )
        _log.info(
            "segment tiered", partition=str(replica.name), base=entry.base_offset, bytes=entry.log_bytes
        )

    async def _submit(self, command: Command) -> None:
        reply = await self._metadata.submit(command)
        if reply.error is not ErrorCode.NONE:
            raise CommandRefused(f"{type(command).__name__}: {reply.message or reply.error.name}")

    # -- what people ask for --

    async def flush(self, topic: str) -> list[PartitionTier]:
        """Rolls and uploads all of a topic; returns once the bucket's manifests cover the log ends of now.

        Retries store trouble for as long as the caller waits; raises TierRefused if it cannot succeed.
        """
        led = self._led(topic)
        targets: list[tuple[TopicIdPartition, int]] = []
        for replica in led:
            replica.roll(self._clock.now_ms())
            self._consider(replica)
            targets.append(
                (TopicIdPartition(replica.topic_id, replica.name.partition), replica.log_end_offset)
            )
        try:
            async with asyncio.TaskGroup() as waiting:
                for where, end in targets:
                    waiting.create_task(self._await_tiered(where, end))
        except* TierRefused as refused:
            raise refused.exceptions[0] from None
        return self.status(topic)

    async def _await_tiered(self, where: TopicIdPartition, end: int) -> None:
        while True:
            state = self._states.get(where)
            if state is None:
                raise TierRefused(f"{where} is no longer led by this broker")
            if (_end_of(state.root) or 0) >= end or state.replica.log_start_offset >= end:
                return
            if state.replica.config.remote_log_copy_disable:
                raise TierRefused(f"{state.replica.name}: remote.log.copy.disable is set")
            if state.blocked:
                raise TierRefused(f"{state.replica.name}: {state.error}")
            state.progress.clear()
            await state.progress.wait()

    def status(self, topic: str | None = None) -> list[PartitionTier]:
        """Every tiered partition that this broker leads, by name."""
        image = self._metadata.image
        found = [
            describe(state.replica, image.remote_partition(*where), state.copying is not None, state.error)
            for where, state in self._states.items()
        ]
        chosen = [line for line in found if topic is None or line.topic == topic]
        return sorted(chosen, key=lambda line: (line.topic, line.partition))

    async def explain(self, topic: str, partition: int, offset: int) -> OffsetPlace:
        """Where an offset lies; raises TierRefused, ObjectStoreError."""
        replica = self._replicas.get(topic, partition)
        if replica is None:
            raise TierRefused(self._why_not_here(topic, partition))
        if not replica.log_start_offset <= offset < replica.high_watermark:
            start, end = replica.log_start_offset, replica.high_watermark
            held = f"has offsets {start} to {end - 1}" if start < end else "holds no record"
            raise TierRefused(f"{topic}-{partition} {held}")
        remote = self._metadata.image.remote_partition(replica.topic_id, partition)
        return await find_place(replica, remote, self._remote_log, offset)

    def _why_not_here(self, topic: str, partition: int) -> str:
        found = self._metadata.image.topic(topic)
        if found is None:
            return f"there is no topic {topic!r}"
        if partition not in range(len(found.partitions)):
            return f"topic {topic!r} has no partition {partition}: it has {len(found.partitions)}, from 0"
        leader = found.partitions[partition].leader
        led = f"broker {leader} leads it" if leader >= 0 else "no broker leads it"
        return f"{topic}-{partition} has no replica on this broker: {led}"

    def _led(self, topic: str) -> list[Replica]:
        led = [replica for replica in self._replicas if replica.name.topic == topic and replica.is_leader]
        if not led:
            raise TierRefused(f"this broker leads no partition of topic {topic!r}")
        if not _tiered(led[0]):
            raise TierRefused(f"topic {topic!r} is not tiered: set remote.storage.enable=true")
        return led


def _tiered(replica: Replica) -> bool:
    """A compacted topic is never tiered (KIP-405)."""
    return replica.config.remote_storage_enable and "compact" not in replica.config.cleanup_policy


def _end_of(root: ManifestRoot | None) -> int | None:
    """End offset of what the bucket's root names."""
    if root is None:
        return None
    newest = root.entries[-1:] or root.pages[-1:]
    return None if not newest else newest[0].last_offset + 1


def _policy(replica: Replica) -> planner.TierPolicy:
    config = replica.config
    return planner.TierPolicy(
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        local_retention_ms=config.effective_local_retention_ms,
        local_retention_bytes=config.effective_local_retention_bytes,
        copy=not config.remote_log_copy_disable,
        delete="delete" in config.cleanup_policy,
    )


def _source(export: SegmentExport, checksum: int) -> SegmentSource:
    """A segment as tiering takes it, with the CRC-32C of the bytes that were found to be whole."""
    info = export.info
    return SegmentSource(
        base_offset=info.base_offset,
        last_offset=info.end_offset - 1,
        path=export.log_path,
        size_bytes=info.size_bytes,
        log_crc32c=checksum,
        records=info.records,
        first_timestamp=info.first_timestamp,
        max_timestamp=info.newest_ms,
        has_transactions=export.has_transactions,
        has_aborts=bool(export.txn_index),
        bundle=IndexBundle(
            offset_index=export.offset_index,
            time_index=export.time_index,
            txn_index=export.txn_index,
            producer_snapshot=export.producer_snapshot,
            leader_epochs=tuple((line.epoch, line.start_offset) for line in export.leader_epochs),
        ),
    )
