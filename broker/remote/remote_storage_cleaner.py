"""Remote storage cleaner: writes the cluster's and topics' documents in the bucket, and deletes queued
objects.

It runs on the live broker with the lowest id. Two brokers may briefly both run it, without harm, since every
step can be repeated. Topics without tiering have no document. Objects are deleted a grace period after the
manifest dropped them. The controller decides when that has passed, in the quorum's time, and marks the
entries of the delete queue before any deletion; this broker's clock only decides when to ask the controller
(docs/adr/0011-the-quorums-time.md). The queue is in the quorum's log, so it survives crashes. Owned by
`tiering`.
"""

import asyncio
from uuid import UUID

import structlog

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition
from tierlog.config.topic import TOPIC_SETTINGS
from tierlog.metadata.controller.commands import ConfirmRemoteDeleted, StartRemoteDeletes
from tierlog.metadata.delete_queue import Deletion
from tierlog.metadata.image import ClusterImage, TopicImage, changed_topics
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.tiering.format.manifest import TopicDocument
from tierlog.tiering.manager import TierManager
from tierlog.tiering.object_store import ObjectStoreError

_log = structlog.get_logger("tierlog.tiering")

RETRY_S = 5.0
LONGEST_SLEEP_S = 60.0
"""Also the longest time between two requests to the controller while entries are queued. Each request commits
the quorum's time, so a new controller extends a grace period by at most this time."""


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
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._manager = manager
        self._clock = clock
        self._tasks = tasks
        self._grace_ms = delete_grace_ms
        self._changed = asyncio.Event()
        self._described: dict[UUID, TopicDocument] | None = None
        self._described_of: tuple[object, object] | None = None  # the topics and configs last described
        self._was_interrupted = False  # another broker was the cleaner at some time since the last round
        # deleted topics, of which some may never have had a document in the bucket
        self._deleted: dict[UUID, TopicDocument] = {}
        self._time_seen_ms = clock.monotonic_ms()  # when the image's time last advanced

    def start(self) -> None:
        """Start the task."""
        self._tasks.spawn("remote storage cleaner", self._run())

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        for topic in changed_topics(old, new)[0]:
            self._deleted[topic.topic_id] = self._document(old, topic)
        if old.brokers is not new.brokers and not self._is_cleaner(new):
            self._was_interrupted = True
        if old.time_ms != new.time_ms:
            self._time_seen_ms = self._clock.monotonic_ms()
        parts = ("brokers", "topics", "configs", "remote", "delete_queue")
        if any(getattr(old, part) is not getattr(new, part) for part in parts):
            self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                pause = await self.clean()
            except (ObjectStoreError, MetadataUnavailable) as failure:
                _log.warning("cleanup of remote storage failed", error=str(failure), retry_s=RETRY_S)
                pause = None
            except Exception:  # a bug must not stop all deletions until the next start
                _log.exception("cleanup of remote storage failed", retry_s=RETRY_S)
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
            self._was_interrupted = False
        if not self._is_cleaner(image):
            return LONGEST_SLEEP_S
        if self._described is None:
            await self._manager.describe_cluster()
            described = await self._manager.described_topics()
            image = await self._metadata.current()  # a topic in the bucket that this image lacks was deleted
            self._described = described
        if self._described_of != (image.topics, image.configs):
            await self._describe(image, self._described)
            self._described_of = (image.topics, image.configs)
        return await self._delete_due(image)

    def _is_cleaner(self, image: ClusterImage) -> bool:
        live = image.live_brokers()
        return bool(live) and live[0].broker_id == self._broker_id

    async def _describe(self, image: ClusterImage, known: dict[UUID, TopicDocument]) -> None:
        gone = {topic_id: document for topic_id, document in known.items() if topic_id not in image.topics}
        for topic_id, document in {**gone, **self._deleted}.items():
            await self._manager.forget_topic(document)
            known.pop(topic_id, None)
            self._deleted.pop(topic_id, None)
        for topic in image.topics.values():
            if not (topic.topic_id in known or self._tiered(image, topic)):
                continue
            document = self._document(image, topic)
            if known.get(topic.topic_id) != document:
                await self._manager.describe_topic(document)
                known[topic.topic_id] = document

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

    async def _delete_due(self, image: ClusterImage) -> float:
        """Delete the objects of marked entries. If no entry is marked, ask the controller to mark the due
        ones, as soon as some may be due. Returns the seconds until the next round."""
        if not image.delete_queue:
            return LONGEST_SLEEP_S
        if not image.deleting:
            wait_s = self._wait_s(image)
            if wait_s > 0:
                return wait_s
            await self._metadata.submit(StartRemoteDeletes(grace_ms=self._grace_ms))
            image = self._metadata.image
        marked = [image.delete_queue[uuid] for uuid in image.deleting]
        if not marked:
            return max(self._wait_s(image), RETRY_S)
        await self._delete(sorted(marked, key=lambda entry: (entry.queued_ms, entry.uuid)))
        return 0.0

    def _wait_s(self, image: ClusterImage) -> float:
        """Seconds until the oldest entry may be due or the quorum's time must be committed again. 0 or less:
        now."""
        passed_ms = self._clock.monotonic_ms() - self._time_seen_ms
        oldest_ms = image.delete_queue.oldest_ms
        due_ms = 0 if oldest_ms is None else oldest_ms + self._grace_ms - image.time_ms
        return min(LONGEST_SLEEP_S, due_ms / 1000) - passed_ms / 1000

    async def _delete(self, marked: list[Deletion]) -> None:
        image = self._metadata.image
        gone = await self._manager.delete(
            marked, lambda where: image.remote_partition(*where).log_start_offset
        )
        await self._metadata.submit(ConfirmRemoteDeleted(uuids=gone))
        _log.info("remote objects deleted", lines=len(gone), waiting=len(marked) - len(gone))
