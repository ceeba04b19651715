"""Remote storage cleaner: writes the cluster's and topics' documents in the bucket, and deletes queued
objects.

It runs on the live broker with the lowest id. Two brokers may briefly both run it, without harm, since every
step can be repeated. Topics without tiering have neither a document nor a name in the bucket. Objects are
deleted a grace period after the manifest dropped them, and later if a reader's snapshot holds them
(docs/adr/0041). The controller decides when the grace has passed, in the quorum's time, and marks the entries
of the delete queue before any deletion; this broker's clock only decides when to ask the controller
(docs/adr/0011-the-quorums-time.md). The queue is in the quorum's log, so it survives crashes. A document or
an entry of the queue that fails while the store responds is retried with a growing back-off, and does not
delay the others. Owned by `tiering`.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import structlog

from tierlog.base.clock import Clock
from tierlog.base.safeguards import safeguard
from tierlog.base.tasks import TaskGroup, gather_at_most
from tierlog.base.types import TopicIdPartition
from tierlog.config.topic import TOPIC_SETTINGS
from tierlog.metadata.controller.commands import ConfirmRemoteDeleted, StartRemoteDeletes
from tierlog.metadata.controller.remote import MAX_DELETES, can_be_marked
from tierlog.metadata.delete_queue import DeletedTopic, Deletion, QueuedDelete
from tierlog.metadata.image import ClusterImage, TopicImage, changed_topics
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.tiering.format.manifest import TopicDocument
from tierlog.tiering.held_snapshots import LOOK_INTERVAL_MS, HeldSnapshots, IsHeld
from tierlog.tiering.manager import DELETES_PER_REQUEST, MISSING, OUTDATED, TierManager
from tierlog.tiering.object_store import ObjectStoreError
from tierlog.tiering.store_health import BreakerOpen
from tierlog.tiering.tier_counts import RequestCounts

_log = structlog.get_logger("tierlog.tiering")

RETRY_S = 5.0
NAMES_FORMAT = 4
"""The `tierlog.format` since which topics have names in the bucket: brokers of earlier versions would report
these objects as unreferenced."""

FAILED_IN_A_ROW_MAX = 5
"""Entries that fail alone, one after another, before all deletions wait: the store then refuses any of them,
and not only these."""

FAILED_ENTRIES_MAX = 500
"""No more entries are marked while more than this fail, as each costs memory and time in every round."""

ITEM_BACKOFF_MAX_S = 600.0
ABORT_INTERVAL_MS = 3_600_000
"""Time between two searches for unfinished uploads, each one request for 50 of them, and for leftovers of
snapshots."""

FOUND_AT_ONCE = 10_000
"""Entries to mark that are found by one search of the delete queue, which may have to pass over many that
snapshots hold."""

ROOTS_AT_ONCE = 16  # manifest roots that are read at a time
LISTED_LOGGED_AFTER = 3
"""Rounds in a row in which the bucket still lists objects. One or two are usual: this image may be late, or
the leader may write at the same time."""

LONGEST_SLEEP_S = 60.0
"""Also the longest time between two requests to the controller while entries are queued. Each request commits
the quorum's time, so a new controller extends a grace period by at most this time."""


Item = tuple[str, Hashable]
"""An operation on one document or entry of the delete queue, and its key or id."""

ITEM_FAILURES = (ObjectStoreError, ValueError)
"""Failures of one item, if the store responds: the store refuses its keys, or it cannot be encoded."""


class RemoteStorageCleaner:
    """A task that sleeps until the image changes or a deletion is due."""

    def __init__(
        self,
        *,
        broker_id: int,
        metadata: MetadataClient,
        manager: TierManager,
        clock: Clock,
        tasks: TaskGroup,
        delete_grace_ms: int,
        first_backoff_s: float = RETRY_S,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._manager = manager
        self._clock = clock
        self._tasks = tasks
        self.grace_ms = delete_grace_ms
        self.deletes = RequestCounts()
        self._changed = asyncio.Event()
        self._described: dict[UUID, TopicDocument] | None = None
        self._described_of: tuple[object, ...] | None = None  # the parts of the image last described
        self._named: set[UUID] = set()  # topics that the bucket has by name
        self._wrong: set[UUID] = (
            set()
        )  # topics whose description in the bucket is not the one that was written
        self._was_interrupted = False  # another broker was the cleaner at some time since the last round
        # deleted topics, of which some may never have had a document in the bucket
        self._deleted: dict[UUID, TopicDocument] = {}
        self._next_abort_ms = 0  # monotonic
        self._unread: list[str] = []  # keys of descriptions that could not be read
        self._deletes_at_once = DELETES_PER_REQUEST  # fewer after a failure, down to the entry that fails
        self.failing = FailingItems(clock, first_backoff_s)
        self._failed_in_a_row = 0  # entries that were deleted alone
        self._first_backoff_s = self._deletes_backoff_s = first_backoff_s
        self._next_delete_ms = 0  # monotonic
        self._time_seen_ms = clock.monotonic_ms()  # when the image's time last advanced
        self.snapshots = HeldSnapshots(manager.snapshots, clock, manager.small_s)
        self._waiting: dict[UUID, int] = {}
        """Marked entries that a snapshot holds, or whose removal no root shows: when to try again
        (monotonic)."""
        self._unmarked: list[UUID] = []
        """Entries to mark next, the oldest last."""
        self._next_mark_ms = 0  # monotonic
        self._still_listed: dict[TopicIdPartition | UUID, int] = {}  # rounds in a row

    def start(self) -> None:
        """Start the task."""
        self._tasks.spawn("remote storage cleaner", self._run())

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        for topic in changed_topics(old, new)[0]:
            self._deleted[topic.topic_id] = self._document(old, topic)
        if old.topics is not new.topics:
            self.deletes.retain(new.topics)
            self._still_listed = {
                place: rounds
                for place, rounds in self._still_listed.items()
                if isinstance(place, UUID) or place.topic_id in new.topics
            }
        if old.brokers is not new.brokers and not self._is_cleaner(new):
            self._was_interrupted = True
        if old.time_ms != new.time_ms:
            self._time_seen_ms = self._clock.monotonic_ms()
        parts = ("brokers", "topics", "configs", "remote", "delete_queue")
        if any(getattr(old, part) is not getattr(new, part) for part in parts):
            self._changed.set()
        if old.format_version != new.format_version:
            self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                pause = await self.clean()
            except BreakerOpen:  # reported once, by the store's health
                pause = None
            except (ObjectStoreError, MetadataUnavailable) as failure:
                _log.warning("cleanup.failed", error=str(failure), retry_s=RETRY_S)
                pause = None
            except Exception:  # a bug must not stop all deletions until the next start
                _log.exception("cleanup.failed", retry_s=RETRY_S)
                pause = None
            if pause is None:
                await asyncio.sleep(RETRY_S)
                continue
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def clean(self) -> float:
        """Run one round. Returns the seconds until the next one, unless the image changes before."""
        image = self._metadata.image
        if self._was_interrupted or not self._is_cleaner(image):
            # read the bucket again, since another broker may have written to it
            self._described = self._described_of = None
            self._deleted.clear()
            self._wrong.clear()
            self._waiting.clear()
            self._unmarked.clear()
            self._still_listed.clear()
            self.snapshots.forget()
            self.failing.clear()
            self._was_interrupted = False
        if not self._is_cleaner(image):
            return LONGEST_SLEEP_S
        if self._described is None:
            await self._manager.describe_cluster()
            described, self._unread = await self._manager.described_topics()
            names = await self._manager.named_topics()
            self._named = set(names)
            described = {**self._undescribed(names), **described}
            image = await self._metadata.current()  # a topic in the bucket that this image lacks was deleted
            self._described, self._next_abort_ms = described, 0
        await self._abort_uploads()
        described_of = (image.topics, image.configs, image.format_version)
        if self._described_of != described_of or self._wrong or self.failing.are_due:
            await self._describe(image, self._described)
            self._described_of = described_of
        look_s = await self._look_at_snapshots()
        pause_s = min(look_s, await self._delete_due(image))
        self.failing.keep("delete", self._metadata.image.deleting)
        wait_s = (self._next_delete_ms - self._clock.monotonic_ms()) / 1000
        if wait_s > 0:  # entries that are due wait, too
            return min(wait_s, look_s, self.failing.next_s_without("delete"))
        return min(pause_s, self.failing.next_s)

    async def check_documents(self) -> AsyncIterator[tuple[str, str | None]]:
        """Compare the documents in the bucket with those that were written last, if this broker is the
        cleaner. Yields the key of each, and its fault or None. The next round writes those with a fault
        again. Raises ObjectStoreError."""
        if self._described is None or not self._is_cleaner(self._metadata.image):
            return
        fault = await self._manager.cluster_fault()
        if fault is not None:
            await self._manager.describe_cluster()
        yield self._manager.keys.cluster(), fault
        unnamed = set(self._named).difference(await self._manager.named_topics())
        for topic_id, written in list(self._described.items()):
            found = await self._manager.topic_document(topic_id)
            topic = self._metadata.image.topics.get(topic_id)
            known = None if self._described is None else self._described.get(topic_id)
            if topic is None or known is None:
                continue  # it was deleted, or another broker is the cleaner
            expected = (
                written,
                known,
                self._document(self._metadata.image, topic),
            )  # a write may be in progress
            if topic_id in unnamed:
                self._named.discard(topic_id)
                self._write_again(topic_id)
                yield self._manager.keys.topic_name(topic.name, topic_id), MISSING
            if found in expected:
                yield self._manager.keys.topic(topic_id), None
                continue
            self._write_again(topic_id)
            yield self._manager.keys.topic(topic_id), found if isinstance(found, str) else OUTDATED

    def _write_again(self, topic_id: UUID) -> None:
        self._wrong.add(topic_id)
        self._changed.set()

    def _is_cleaner(self, image: ClusterImage) -> bool:
        live = image.live_brokers()
        return bool(live) and live[0].broker_id == self._broker_id

    async def _abort_uploads(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_abort_ms:
            return
        if await self._try(("abort", "unfinished uploads"), self._manager.abort_uploads) and await self._try(
            ("remove", "leftovers of snapshots"), self.snapshots.remove_leftovers
        ):
            self._next_abort_ms = now_ms + ABORT_INTERVAL_MS

    async def _describe(self, image: ClusterImage, known: dict[UUID, TopicDocument]) -> None:
        for key in list(self._unread):
            if await self._try(("read", key), partial(self._read, key, known)):
                self._unread.remove(key)
        gone = {topic_id: document for topic_id, document in known.items() if topic_id not in image.topics}
        gone |= self._deleted
        self.failing.keep("forget", gone)
        for topic_id, document in gone.items():
            if await self._try(("forget", topic_id), partial(self._manager.forget_topic, document)):
                known.pop(topic_id, None)
                self._deleted.pop(topic_id, None)
                self._named.discard(topic_id)
        wanted = [
            self._document(image, topic)
            for topic in image.topics.values()
            if topic.topic_id in known or self._tiered(image, topic)
        ]
        self._wrong = {topic_id for topic_id in self._wrong if topic_id in image.topics}
        # `quorum recover` may lead back to an earlier format. If the bucket has names, all topics get one
        has_names = image.format_version >= NAMES_FORMAT or bool(self._named)
        unnamed = {one.topic_id for one in wanted if has_names and one.topic_id not in self._named}
        stale = {
            one.topic_id for one in wanted if known.get(one.topic_id) != one or one.topic_id in self._wrong
        }
        self.failing.keep("name", unnamed)
        self.failing.keep("describe", stale)
        for document in wanted:  # a name that the store refuses does not delay the document
            if document.topic_id in unnamed:
                await self._try(("name", document.topic_id), partial(self._name, document))
            if document.topic_id in stale:
                await self._try(("describe", document.topic_id), partial(self._write, document, known))

    def _undescribed(self, names: Mapping[UUID, str]) -> dict[UUID, TopicDocument]:
        """Documents of the named topics, as if the bucket described them: a broker may have died between the
        name and the document. Without those that could not be read."""
        return {
            topic_id: TopicDocument(topic_id=topic_id, name=name, partitions=0, configs={})
            for topic_id, name in names.items()
            if self._manager.keys.topic(topic_id) not in self._unread
        }

    async def _name(self, document: TopicDocument) -> None:
        await self._manager.name_topic(document)
        self._named.add(document.topic_id)

    async def _write(self, document: TopicDocument, known: dict[UUID, TopicDocument]) -> None:
        await self._manager.describe_topic(document)
        self._wrong.discard(document.topic_id)
        known[document.topic_id] = document

    async def _read(self, key: str, known: dict[UUID, TopicDocument]) -> None:
        document = await self._manager.read_topic(key)
        if document is not None:
            known.setdefault(document.topic_id, document)

    async def _try(self, item: Item, work: Callable[[], Awaitable[None]]) -> bool:
        """Do one item, unless its back-off has not passed. Returns whether it is done. Raises
        ObjectStoreError if the store does not respond at all."""
        if not self.failing.is_due(item):
            return False
        try:
            await work()
        except ITEM_FAILURES as failure:
            await self._manager.probe()
            self.failing.add(item, failure)
            return False
        self.failing.remove(item)
        return True

    def _document(self, image: ClusterImage, topic: TopicImage) -> TopicDocument:
        configs = dict(sorted(image.topic_overrides(topic.name).items()))
        return TopicDocument(
            topic_id=topic.topic_id, name=topic.name, partitions=len(topic.partitions), configs=configs
        )

    def _tiered(self, image: ClusterImage, topic: TopicImage) -> bool:
        chosen = image.topic_overrides(topic.name).get("remote.storage.enable")
        if chosen is not None and TOPIC_SETTINGS["remote.storage.enable"].parse(chosen):
            return True
        return bool(image.remote) and any(
            TopicIdPartition(topic.topic_id, n) in image.remote for n in range(len(topic.partitions))
        )

    async def _look_at_snapshots(self) -> float:
        """Read the snapshots from time to time, so that leases end. Returns the seconds until the next time.
        Raises ObjectStoreError."""
        now_ms, is_held = self._clock.monotonic_ms(), self.snapshots.is_held
        if self.snapshots.next_look_ms <= now_ms:
            await self.snapshots.look()
            if self.snapshots.is_held is not is_held:
                self._next_mark_ms = 0
                self._unmarked.clear()  # they were found with the previous leases
        return (self.snapshots.next_look_ms - now_ms) / 1000

    async def _delete_due(self, image: ClusterImage) -> float:
        """Delete the objects of marked entries. If no entry is marked, ask the controller to mark the due
        ones, as soon as some may be due. Returns the seconds until the next round."""
        if not image.delete_queue or self._clock.monotonic_ms() < self._next_delete_ms:
            return LONGEST_SLEEP_S
        ready = self._ready(image)
        if not ready:
            wait_s = max(self._wait_s(image), (self._next_mark_ms - self._clock.monotonic_ms()) / 1000)
            if wait_s > 0:
                return wait_s
            if len(image.deleting) - len(self._waiting) > FAILED_ENTRIES_MAX:  # all of them have failed
                return LONGEST_SLEEP_S
            uuids = await self._next_unmarked(image)
            await self._metadata.submit(StartRemoteDeletes(grace_ms=self.grace_ms, uuids=uuids))
            image = self._metadata.image
            if not all(uuid in image.deleting for uuid in uuids):
                self._unmarked.clear()  # the others, and all after them, are not due yet
            ready = self._ready(image)
            if self.snapshots.live and not ready:  # all that is due may be held
                self._next_mark_ms = self._clock.monotonic_ms() + LOOK_INTERVAL_MS
        if not ready:
            return max(self._wait_s(image), RETRY_S)
        failed = self.failing.has  # last, so that they do not delay the others
        order = sorted(ready, key=lambda one: (failed(("delete", one.uuid)), one.queued_ms, one.uuid))
        await self._delete(order)
        return 0.0

    async def _next_unmarked(self, image: ClusterImage) -> tuple[UUID, ...]:
        """The oldest entries that no snapshot holds, as many as the controller marks at a time."""
        if not self._unmarked:
            self._unmarked = await asyncio.to_thread(_unmarked, image, self.snapshots.is_held)
        found, self._unmarked = self._unmarked[-MAX_DELETES:], self._unmarked[:-MAX_DELETES]
        return tuple(reversed(found))

    def _ready(self, image: ClusterImage) -> list[Deletion]:
        """Marked entries without those that have failed or wait, and are to be tried later."""
        now_ms = self._clock.monotonic_ms()
        self._waiting = {
            uuid: due_ms
            for uuid, due_ms in self._waiting.items()
            if uuid in image.deleting and due_ms > now_ms
        }
        return [
            image.delete_queue[uuid]
            for uuid in image.deleting
            if uuid not in self._waiting and self.failing.is_due(("delete", uuid))
        ]

    async def _without_listed(self, image: ClusterImage, batch: list[Deletion]) -> list[Deletion]:
        """The entries whose objects no manifest in the bucket lists any more, so that a reader cannot find
        them from now on. The leaders have usually written such manifests before the grace was over. The
        others wait. Raises ObjectStoreError."""
        places: dict[TopicIdPartition | UUID, list[Deletion]] = {}
        for line in batch:
            topic_id = _topic_of(line)
            is_there = isinstance(line, QueuedDelete) and topic_id in image.topics
            place = TopicIdPartition(topic_id, line.partition) if is_there else topic_id  # type: ignore[union-attr]
            places.setdefault(place, []).append(line)
        due_ms = self._clock.monotonic_ms() + round(1000 * RETRY_S)
        calls = [self._is_unlisted(image, place, lines) for place, lines in places.items()]
        found = await gather_at_most(ROOTS_AT_ONCE, calls)
        for (place, lines), is_unlisted in zip(places.items(), found, strict=True):
            if not is_unlisted:
                self._waiting |= dict.fromkeys((line.uuid for line in lines), due_ms)
            self._count_listed(place, is_unlisted)
        return [line for line in batch if line.uuid not in self._waiting]

    def _count_listed(self, place: TopicIdPartition | UUID, is_unlisted: bool) -> None:
        if is_unlisted:
            self._still_listed.pop(place, None)
            return
        self._still_listed[place] = times = self._still_listed.get(place, 0) + 1
        if times == LISTED_LOGGED_AFTER:
            _log.warning("cleanup.waiting", of=str(place))

    async def _is_unlisted(
        self, image: ClusterImage, place: TopicIdPartition | UUID, lines: list[Deletion]
    ) -> bool:
        if isinstance(place, UUID):
            return await self._manager.ensure_undescribed(place)
        if place in image.unread_manifests:
            return False  # the bucket knows more than this image: its root must not be replaced
        epoch = image.topics[place.topic_id].partitions[place.partition].leader_epoch
        dropped = [line for line in lines if isinstance(line, QueuedDelete)]
        return await self._manager.ensure_unlisted(
            place, image.remote_partition(*place), epoch, image.index, dropped
        )

    @safeguard("the storage cleaner keeps what a snapshot holds")
    def _without_held(self, batch: list[Deletion]) -> list[Deletion]:
        """The entries that no snapshot holds, as of the last look. The others wait."""
        due_ms = self._clock.monotonic_ms() + LOOK_INTERVAL_MS
        self._waiting |= {line.uuid: due_ms for line in batch if self.snapshots.is_held(line)}
        return [line for line in batch if line.uuid not in self._waiting]

    @safeguard("the storage cleaner waits for the grace")
    def _wait_s(self, image: ClusterImage) -> float:
        """Seconds until the oldest entry that is not marked may be due or the quorum's time must be committed
        again. 0 or less: now."""
        queue = image.delete_queue
        oldest_ms = queue.oldest_ms
        if image.deleting:  # entries that fail
            oldest = queue.oldest(sys.maxsize, 1, lambda line: line.uuid not in image.deleting)
            if not oldest:
                return LONGEST_SLEEP_S
            oldest_ms = oldest[0].queued_ms
        passed_ms = self._clock.monotonic_ms() - self._time_seen_ms
        due_ms = 0 if oldest_ms is None else oldest_ms + self.grace_ms - image.time_ms
        return min(LONGEST_SLEEP_S, due_ms / 1000) - passed_ms / 1000

    async def _delete(self, ready: list[Deletion]) -> None:
        """Delete one batch. If it fails, the next one is smaller, until the entry that fails is alone.

        The order of steps keeps what snapshots hold: only after no manifest in the bucket lists the objects,
        the snapshots are read (`tierlog.tiering.snapshots`)."""
        image = self._metadata.image
        batch = ready[:1] if isinstance(ready[0], DeletedTopic) else ready[: self._deletes_at_once]
        batch = self._without_held(batch)  # as of the last time, without any request
        if not batch:
            return
        try:
            batch = await self._without_listed(image, batch)
        except ITEM_FAILURES as failure:
            await self._failed(batch, failure)
            return
        await self.snapshots.look()
        batch = self._without_held(batch)
        if not batch:
            return
        try:
            gone = await self._manager.delete(
                batch, lambda where: image.remote_partition(*where).log_start_offset
            )
        except ITEM_FAILURES as failure:
            await self._failed(batch, failure)
            return
        self._failed_in_a_row, self._deletes_backoff_s = 0, self._first_backoff_s
        for uuid in gone:
            self.deletes.requests.add(_topic_of(image.delete_queue[uuid]))
            self.failing.remove(("delete", uuid))
        self._deletes_at_once = min(2 * self._deletes_at_once, DELETES_PER_REQUEST)
        await self._metadata.submit(ConfirmRemoteDeleted(uuids=gone))
        _log.info("cleanup.objects.deleted", lines=len(gone), waiting=len(ready) - len(gone))

    async def _failed(self, batch: list[Deletion], failure: Exception) -> None:
        """Raises ObjectStoreError if the store does not respond at all."""
        await self._manager.probe()
        self.deletes.requests.add(_topic_of(batch[0]))
        self.deletes.errors.add(_topic_of(batch[0]))
        if len(batch) == 1:
            self.failing.add(("delete", batch[0].uuid), failure)
            self._failed_alone(failure)
        self._deletes_at_once = max(1, len(batch) // 2)

    def _failed_alone(self, failure: Exception) -> None:
        """After several failures in a row, one entry is tried per back-off until one succeeds."""
        self._failed_in_a_row += 1
        if self._failed_in_a_row < FAILED_IN_A_ROW_MAX:
            return
        if self._failed_in_a_row == FAILED_IN_A_ROW_MAX:
            _log.error("cleanup.blocked", error=str(failure))
        self._next_delete_ms = self._clock.monotonic_ms() + round(1000 * self._deletes_backoff_s)
        self._deletes_backoff_s = min(2 * self._deletes_backoff_s, ITEM_BACKOFF_MAX_S)


@safeguard("deletions of what a snapshot holds are not marked")
def _unmarked(image: ClusterImage, is_held: IsHeld) -> list[UUID]:
    """Entries that may be marked once they are due, and that no snapshot holds: the oldest ones, in reverse
    order."""
    found = image.delete_queue.oldest(
        sys.maxsize, FOUND_AT_ONCE, lambda line: can_be_marked(image, line) and not is_held(line)
    )
    return [line.uuid for line in reversed(found)]


@dataclass(slots=True)
class _Backoff:
    backoff_s: float
    due_ms: int  # monotonic


class FailingItems:
    """Items that failed while the store responded, each with its own back-off. Each is logged when it fails
    for the first time, and when it succeeds."""

    def __init__(self, clock: Clock, first_backoff_s: float) -> None:
        self._clock = clock
        self._first_backoff_s = first_backoff_s
        self._items: dict[Item, _Backoff] = {}

    def __len__(self) -> int:
        return len(self._items)

    @property
    def are_due(self) -> bool:
        return bool(self._items) and self.next_s <= 0

    @property
    def next_s(self) -> float:
        """Seconds until the first retry, at most LONGEST_SLEEP_S. 0: now."""
        return self.next_s_without(None)

    def next_s_without(self, what: str | None) -> float:
        """As `next_s`, without the items of one kind."""
        now_ms = self._clock.monotonic_ms()
        due_ms = (one.due_ms for item, one in self._items.items() if item[0] != what)
        return min([LONGEST_SLEEP_S, *(max(at_ms - now_ms, 0) / 1000 for at_ms in due_ms)])

    def has(self, item: Item) -> bool:
        return item in self._items

    def is_due(self, item: Item) -> bool:
        failed = self._items.get(item)
        return failed is None or failed.due_ms <= self._clock.monotonic_ms()

    def add(self, item: Item, failure: Exception) -> None:
        """The item has failed, perhaps again."""
        known = self._items.get(item)
        if known is None:
            what, key = item
            _log.error("cleanup.object.failed", what=what, key=str(key), error=str(failure))
        backoff_s = self._first_backoff_s if known is None else min(2 * known.backoff_s, ITEM_BACKOFF_MAX_S)
        self._items[item] = _Backoff(backoff_s, self._clock.monotonic_ms() + round(1000 * backoff_s))

    def remove(self, item: Item) -> None:
        """The item succeeded."""
        if self._items.pop(item, None) is not None:
            _log.info("cleanup.object.succeeded", what=item[0], key=str(item[1]))

    def keep(self, what: str, keys: Container[Hashable]) -> None:
        """Forget the items of this kind with other keys: they need not be done any more."""
        self._items = {item: one for item, one in self._items.items() if item[0] != what or item[1] in keys}

    def clear(self) -> None:
        self._items.clear()


def _topic_of(deletion: Deletion) -> UUID:
    return deletion.uuid if isinstance(deletion, DeletedTopic) else deletion.topic_id
