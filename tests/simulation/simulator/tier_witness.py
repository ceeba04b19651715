"""Invariants between logs, manifest and bucket, checked when one of them changes.

The witness sees each image that any node publishes, each object that is put or deleted, and the local log
start offsets. It compares a copy with the in-sync replicas when the manifest first lists it.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import filterfalse, pairwise

import crc32c

from simulator.broker import SimBroker
from simulator.contents import checked_batches, decoded_root, end_of, local_batches, records_of
from simulator.object_store import Bucket
from simulator.retention import Batch, RetentionWitness, batches_of
from simulator.snapshots import SnapshotWitness
from simulator.witness import Violation
from tierlog.base.types import TopicIdPartition
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.controller.commands import DropRemoteLog, MoveLogStart, StartCopy
from tierlog.metadata.controller.remote import is_tiered
from tierlog.metadata.delete_queue import QueuedDelete
from tierlog.metadata.image import ClusterImage, RemotePartition
from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment
from tierlog.tiering.format.keys import Keys, parse_attempt
from tierlog.tiering.format.manifest import ManifestError, ManifestRoot, decode_page

UUID_DIGITS = 36

SLACK_S = 60.0
"""A deletion may have been queued this long before any node publishes it."""


class TierWitness:
    """`bucket` is set after construction. `check_durable` (topic, partition, offset, kind) raises if too few
    replicas have a record. `time`: virtual seconds."""

    bucket: Bucket

    def __init__(
        self,
        brokers: Mapping[int, SimBroker],
        keys: Keys,
        done: Counter[str],
        check_durable: Callable[[str, int, int, str], None],
        time: Callable[[], float],
        grace_ms: int,
        retention: RetentionWitness,
    ) -> None:
        self._retention = retention
        self._brokers, self._keys, self._done, self._check_durable = brokers, keys, done, check_durable
        self._time, self._grace_ms = time, grace_ms
        self._queued_s: dict[uuid.UUID, float] = {}  # when queued deletes were first seen
        self._time_seen_s = 0.0  # when the quorum time last advanced
        self.gapped: frozenset[str] = frozenset()
        """Topics whose local logs have gaps, other ones on each replica."""
        self._entries_listed: dict[TopicIdPartition, list[RemoteSegment]] = {}  # by the newest image
        self._dropped_ends: dict[TopicIdPartition, int] = {}
        """The end of what was remote whenever tiering was off: a broker that did not know yet may have
        deleted local segments up to there."""
        self.is_damaged: Callable[[SimBroker], bool] = lambda broker: False
        """Whether the broker's disk has flipped bits, so that its log is not compared."""
        self.image: ClusterImage | None = None  # the newest that any node has had
        self._pages: dict[uuid.UUID, tuple[ManifestNode, ...]] = {}
        self._committed: set[uuid.UUID] = set()  # copies and pages that a manifest has ever listed
        self._named: dict[TopicIdPartition, frozenset[uuid.UUID]] = {}
        self._roots: dict[TopicIdPartition, ManifestRoot] = {}  # the newest intact roots in the bucket
        self._leader_starts: dict[tuple[int, TopicIdPartition], tuple[int, int]] = {}  # -> epoch, local start
        self._removed: set[str] = set()
        self.snapshots = SnapshotWitness(keys, done, time, self._below)
        self._late_objects: set[str] = set()
        """Objects that arrived after their last deletion, which no store can refuse."""

    # --- the manifest

    def on_published(self, image: ClusterImage) -> None:
        """A node published this image. Raises Violation."""
        before = self.image
        if before is not None and image.index <= before.index:
            return
        self.image = image
        if before is None or before.time_ms != image.time_ms:
            self._time_seen_s = self._time()
        for line in image.delete_queue.values():
            self._queued_s.setdefault(line.uuid, self._time())
        if before is None:
            return
        if before.configs is not image.configs:
            self._check_configs(before, image)
        if before.remote is image.remote:
            return
        for where in [where for where in self._named if where not in image.remote]:
            del self._named[where]
            self._entries_listed.pop(where, None)
        for where, remote in image.remote.items():
            known = before.remote_partition(*where)
            if known is not remote:
                self._check_manifest(where, known, remote, before)

    def _check_configs(self, before: ClusterImage, image: ClusterImage) -> None:
        """Tiering is never switched off without the consent to delete what is remote."""
        for topic_id, topic in image.topics.items():
            if topic_id in before.topics and is_tiered(before, topic_id) and not is_tiered(image, topic_id):
                consent = image.topic_overrides(topic.name).get("remote.log.delete.on.disable")
                if consent != "true":
                    raise Violation(f"tiering of {topic.name} was switched off, which deletes what is remote")

    def _check_manifest(
        self, where: TopicIdPartition, before: RemotePartition, remote: RemotePartition, old: ClusterImage
    ) -> None:
        pages, entries = self._below(where, remote.nodes)
        for one, following in pairwise(entries):
            if following.base_offset != one.end_offset:
                raise Violation(f"{where}: {following.base_offset} follows {one.end_offset} in the manifest")
        if self._is_dropped(before, remote):
            self._check_drop(where, before, remote, old)
        else:
            self._check_range(where, before, remote)
        if remote.log_start_offset < before.log_start_offset:
            raise Violation(f"{where}: the log start went back to {remote.log_start_offset}")
        if remote.log_start_offset > before.log_start_offset:
            self._retention.moved(where, remote.log_start_offset)
        known, self._entries_listed[where] = self._entries_listed.get(where, []), entries
        for entry in entries:
            if entry.uuid not in self._committed:
                partition = old.partition(*where)
                if partition is not None and entry.leader_epoch < partition.leader_epoch:
                    raise Violation(
                        f"{where}: an upload of epoch {entry.leader_epoch} is committed in epoch "
                        f"{partition.leader_epoch}"
                    )
                self._check_copy(where, entry)
                self._check_replacement(where, entry, known)
                topic = old.topics.get(where.topic_id)
                if topic is not None:
                    self._check_durable(topic.name, where.partition, entry.last_offset, "tiered")
        named = frozenset(one.uuid for one in (*pages, *entries))
        self._committed |= named
        self._named[where] = named

    def _check_range(self, where: TopicIdPartition, before: RemotePartition, remote: RemotePartition) -> None:
        """Nothing but the log start takes offsets out of the manifest."""
        start = max(before.first_offset or 0, remote.log_start_offset)
        if before.first_offset is None or (before.end_offset or 0) <= start:
            return
        if remote.first_offset is None or remote.first_offset > start:
            raise Violation(f"{where}: the manifest lost the offsets from {start}")
        if (remote.end_offset or 0) < (before.end_offset or 0):
            raise Violation(f"{where}: the manifest ends at {remote.end_offset}, before {before.end_offset}")

    def _is_dropped(self, before: RemotePartition, remote: RemotePartition) -> bool:
        """Whether the remote log was dropped as a whole, as tiering was off."""
        is_empty = remote.first_offset is None and remote.copied_end_offset == remote.log_start_offset
        return is_empty and before.first_offset is not None

    def _check_drop(
        self, where: TopicIdPartition, before: RemotePartition, remote: RemotePartition, old: ClusterImage
    ) -> None:
        """Remote data is dropped only while tiering is off, and with it nothing that was never remote."""
        image = self.image
        if is_tiered(old, where.topic_id) and remote.log_start_offset >= (before.end_offset or 0):
            return  # retention may have deleted all that was remote
        self._dropped_ends[where] = end = max(before.end_offset or 0, self._dropped_ends.get(where, 0))
        if image is not None and image.index == old.index + 1:  # else the images between are unknown
            if is_tiered(old, where.topic_id):
                raise Violation(f"{where}: the remote log is dropped, and the topic is tiered")
            if remote.log_start_offset > max(end, before.log_start_offset):
                raise Violation(f"{where}: records from {end} on are deleted, and were never remote")
        self._done["remote logs dropped"] += 1

    def _check_replacement(
        self, where: TopicIdPartition, entry: RemoteSegment, known: Sequence[RemoteSegment]
    ) -> None:
        """A segment that replaces others has their batches, or, after compaction, some of their records."""
        old = [one for one in known if entry.base_offset <= one.base_offset < entry.end_offset]
        if not old or (old[0].base_offset, old[-1].end_offset) != (entry.base_offset, entry.end_offset):
            return
        content, before = self._content(where, entry), b"".join(self._content(where, one) for one in old)
        if entry.compacted_at == max(one.compacted_at for one in old):
            if content != before:
                raise Violation(f"{where}: {entry} has other records than the {len(old)} that it replaces")
        elif not set(records_of(content)) <= set(records_of(before)):
            raise Violation(f"{where}: {entry} has records that {old[0]} does not have")

    def _entries(self, where: TopicIdPartition, remote: RemotePartition) -> list[RemoteSegment]:
        return self._below(where, remote.nodes)[1]

    def _below(
        self, where: TopicIdPartition, nodes: Iterable[ManifestNode]
    ) -> tuple[list[PageRef], list[RemoteSegment]]:
        """All pages and entries among these nodes and below them."""
        pages: list[PageRef] = []
        entries: list[RemoteSegment] = []
        for node in nodes:
            if isinstance(node, RemoteSegment):
                entries.append(node)
                continue
            below = self._below(where, self._page(where, node))
            pages += [node, *below[0]]
            entries += below[1]
        return pages, entries

    def _page(self, where: TopicIdPartition, page: PageRef) -> tuple[ManifestNode, ...]:
        if page.uuid not in self._pages:
            content = self.bucket.content(self._keys.page(where, page))
            if content is None:
                raise Violation(f"{where}: the manifest names a page that is not there: {page}")
            try:
                self._pages[page.uuid] = decode_page(content, page).nodes
            except ManifestError as error:
                raise Violation(f"{where}: {error}") from error
            self._done["pages of pages" if page.level else "pages"] += 1
        return self._pages[page.uuid]

    def remote_segments(self, topic: str) -> Iterator[tuple[TopicIdPartition, RemoteSegment]]:
        """The segments of a topic that the newest manifest lists and the log start has not passed."""
        known = None if self.image is None else self.image.topic(topic)
        for number in range(0 if known is None else len(known.partitions)):
            where = TopicIdPartition(known.topic_id, number)  # type: ignore[union-attr]
            remote = self.image.remote_partition(*where)  # type: ignore[union-attr]
            for entry in self._entries(where, remote):
                if entry.end_offset > remote.log_start_offset:
                    yield where, entry

    def listed_objects(self) -> list[tuple[str, str]]:
        """Kind and key of each object of the newest manifests: segments and their indexes, pages, roots."""
        found = []
        for where, remote in () if self.image is None else self.image.remote.items():
            pages, entries = self._below(where, remote.nodes)
            found += [("pages", self._keys.page(where, page)) for page in pages]
            found += [("segments", self._keys.log(where, entry)) for entry in entries]
            found += [("segments", self._keys.index(where, entry)) for entry in entries]
            found.append(("roots", self._keys.root(where)))
        return found

    def log_start(self, topic: str, partition: int) -> int:
        """The committed log start offset."""
        known = None if self.image is None else self.image.topic(topic)
        if known is None or self.image is None:
            return 0
        return self.image.remote_partition(known.topic_id, partition).log_start_offset

    def on_remote_request(
        self, broker: SimBroker, replica: Replica, command: MoveLogStart | DropRemoteLog | StartCopy
    ) -> None:
        """A leader is about to request a copy or a new log start. Raises Violation."""
        where, topic = TopicIdPartition(replica.topic_id, replica.name.partition), replica.name.topic
        if isinstance(command, StartCopy):
            end, is_upload = replica.high_watermark, not (command.replaces or command.loads)
            if is_upload and command.last_offset >= end:
                raise Violation(f"{where}: {command.last_offset} is uploaded, and only {end} is committed")
            return
        fault, start = None, command.log_start_offset
        if isinstance(command, DropRemoteLog):
            local = max(replica.segments[0].base_offset, replica.log_start_offset)
            fault = None if start <= local else f"its local log starts at {local}"
            self._retention.dropped(where, start, fault)
            return
        if not self.is_damaged(broker):  # else its log proves nothing
            batches = self._retained(where, replica, start)
            fault = self._retention.fault(topic, batches, start, broker.clock.now_ms())
        self._retention.requested(where, topic, start, replica.high_watermark, fault)

    def _retained(self, where: TopicIdPartition, replica: Replica, wanted: int) -> Iterator[Batch]:
        """The leader's batches in both tiers, oldest first. Above the requested log start, an object counts
        as one."""
        remote = RemotePartition() if self.image is None else self.image.remote_partition(*where)
        for entry in self._entries(where, remote):
            content = self._content(where, entry)
            if entry.base_offset < wanted:
                yield from (one for one in batches_of(content) if one.end_offset > remote.log_start_offset)
            else:
                yield Batch(entry.base_offset, entry.end_offset, len(content), None)
        yield from batches_of(local_batches(replica, max(remote.end_offset or 0, remote.log_start_offset)))

    def _check_copy(self, where: TopicIdPartition, entry: RemoteSegment) -> None:
        """The object matches its entry, batch by batch, and the in-sync replicas, unless it was compacted.
        Readers check what compaction keeps (`compacted`)."""
        content, is_compacted = self._content(where, entry), entry.compacted_at >= 0
        is_gapped = self._topic(where) in self.gapped
        following, records, gaps = entry.base_offset, 0, 0
        for _, header in checked_batches(where, content):
            if header.base_offset < following or (
                header.base_offset > following and not (is_compacted or is_gapped)
            ):
                raise Violation(f"{where}: in the copy from {entry.base_offset} {header} is at {following}")
            epoch = max(line for line in entry.leader_epochs if line[1] <= header.base_offset)[0]
            if epoch != header.leader_epoch:
                raise Violation(f"{where}: {header} has epoch {epoch} in the manifest")
            gaps += header.base_offset > following or header.record_count <= header.last_offset_delta
            following, records = header.next_offset, records + header.record_count
        following = entry.end_offset if is_gapped and following < entry.end_offset else following
        if (following, records) != (entry.end_offset, entry.records):
            raise Violation(f"{where}: the copy ends at {following} with {records} records: {entry}")
        for node, replica in () if is_compacted or is_gapped else self._holders(where, entry):
            if local_batches(replica, entry.base_offset, entry.end_offset) != content:
                raise Violation(f"{where}: node {node} has other records than the copy {entry}")
        self._done["segments compacted" if is_compacted else "segments tiered"] += 1
        self._done["segments with gaps tiered"] += is_gapped and gaps > 0

    def _topic(self, where: TopicIdPartition) -> str | None:
        topic = None if self.image is None else self.image.topics.get(where.topic_id)
        return None if topic is None else topic.name

    def _content(self, where: TopicIdPartition, entry: RemoteSegment) -> bytes:
        key = self._keys.log(where, entry)
        content = self.bucket.content(key)
        index = self.bucket.content(self._keys.index(where, entry))
        if content is None or index is None:
            raise Violation(f"the manifest names {key}, which is not there")
        if (crc32c.crc32c(content), crc32c.crc32c(index)) != (entry.log_crc32c, entry.index_crc32c):
            raise Violation(f"{key} is not what the manifest says")
        return content

    def _holders(self, where: TopicIdPartition, entry: RemoteSegment) -> Iterator[tuple[int, Replica]]:
        partition = None if self.image is None else self.image.partition(*where)
        for node, broker in self._brokers.items() if partition is not None else ():
            replica = None if broker.replicas is None else broker.replicas.get(*where)
            if (
                replica is not None
                and replica.failed is None
                and not self.is_damaged(broker)
                and partition is not None
                and node in partition.in_sync
                and replica.local_log_start_offset <= entry.base_offset
                and entry.end_offset <= replica.log_end_offset
            ):
                yield node, replica

    # --- the bucket

    def put_done(self, key: str, content: bytes, before: bytes | None, sender: str | None = None) -> None:
        if self._is_of_snapshot(key):
            self.snapshots.put_done(key, content)
            return
        if self._arrives_after_delete(key, sender):
            self._late_objects.add(key)
        if key.endswith("/root"):
            known = None if before is None else decoded_root(before)
            self._check_root(self._partition_of(key), decoded_root(content), known)
        elif not self._is_document(key) and before is not None:
            raise Violation(f"{key} is overwritten")
        elif key.endswith(".log"):
            partition = None if self.image is None else self.image.partition(*self._partition_of(key))
            if partition is not None and parse_attempt(key).leader_epoch < partition.leader_epoch:
                self._done["late uploads"] += 1

    def _arrives_after_delete(self, key: str, sender: str | None) -> bool:
        """The object arrived too late to be deleted again."""
        if self._is_document(key):
            is_there = self.image is None or self._keys.topic_of(key) in (None, *self.image.topics)
            return not is_there and not self._is_storage_cleaner(sender)
        return key in self._removed or self._deletion_has_begun(self._partition_of(key).topic_id)

    def _is_document(self, key: str) -> bool:  # or a topic's name
        return key.endswith(".json") or self._keys.topic_of(key) is not None

    def _is_storage_cleaner(self, sender: str | None) -> bool:
        """The cleaner deletes topic descriptions that it wrote, and its successor deletes those that it
        finds."""
        live = () if self.image is None else self.image.live_brokers()
        return sender is not None and bool(live) and self._brokers[live[0].broker_id].name == sender

    def _deletion_has_begun(self, topic_id: uuid.UUID) -> bool:
        """Whether the objects of a deleted topic are being listed and deleted, or have been."""
        image = self.image
        if image is None or topic_id in image.topics:
            return False
        return topic_id not in image.delete_queue or topic_id in image.deleting

    def _check_root(
        self, where: TopicIdPartition, root: ManifestRoot | None, before: ManifestRoot | None
    ) -> None:
        if root is None:
            return  # a torn write, which the writer notices
        if before is not None and root.metadata_index < before.metadata_index:
            raise Violation(
                f"{where}: the bucket's manifest went from index {before.metadata_index} to "
                f"{root.metadata_index}"
            )
        unknown = {one.uuid for one in (*root.pages, *root.entries)} - self._committed
        if unknown:
            raise Violation(f"{where}: the bucket's manifest has uncommitted entries: {unknown}")
        self._roots[where] = root

    def deleted(self, keys: Sequence[str]) -> None:
        self.snapshots.deleted(keys)
        for key in filterfalse(self._is_of_snapshot, keys):
            stem = key.rpartition(".")[0]
            if key.endswith("/root"):
                where = self._partition_of(key)
                if self.image is not None and where.topic_id in self.image.topics:
                    raise Violation(f"{key} is deleted, and its topic is there")
                self._roots.pop(where, None)
            elif not self._is_document(key):
                removed, where = uuid.UUID(stem[-UUID_DIGITS:]), self._partition_of(key)
                if removed in self._named.get(where, ()):
                    raise Violation(f"{key} is deleted, and the manifest names it")
                queued_s = self._queued_s.get(removed, self._queued_s.get(where.topic_id))
                age_s = self._time() - (-self._grace_ms / 1000 if queued_s is None else queued_s)
                if age_s + SLACK_S < self._grace_ms / 1000:
                    raise Violation(f"{key} is deleted {age_s:.0f} s after the manifest dropped it")
                self._done["objects deleted"] += self.bucket.content(key) is not None
        self._removed.update(keys)

    def _is_of_snapshot(self, key: str) -> bool:
        return key.startswith(self._keys.snapshots())

    def _partition_of(self, key: str) -> TopicIdPartition:
        *_, topic_id, partition, _ = key.split("/")
        return TopicIdPartition(uuid.UUID(topic_id), int(partition))

    def orphans(self) -> list[str]:
        """Objects that no manifest or queue has, except those that arrived after their deletion."""
        image = self.image
        if image is None:
            return []
        known = {self._keys.cluster(), *map(self._keys.topic, image.topics)}
        for topic in image.topics.values():
            known.add(self._keys.topic_name(topic.name, topic.topic_id))
            for number in range(len(topic.partitions)):
                where = TopicIdPartition(topic.topic_id, number)
                known.add(self._keys.root(where))
                remote = image.remote_partition(*where)
                pages, entries = self._below(where, remote.nodes)
                known.update(self._keys.page(where, page) for page in pages)
                for entry in (*entries, *remote.started):
                    known.update(self._attempt(where, entry))
        for line in image.delete_queue.values():
            if isinstance(line, QueuedDelete):
                known.update(self._objects_of(line))
        known |= self._late_objects
        left = [key for key in self.bucket.names() if key not in known and not self._is_of_snapshot(key)]
        return [
            key
            for key in left
            if self._is_document(key) or self._partition_of(key).topic_id not in image.delete_queue
        ]

    def _attempt(self, where: TopicIdPartition, one: object) -> tuple[str, str]:
        return self._keys.attempt(where, one.base_offset, one.last_offset, one.leader_epoch, one.uuid)  # type: ignore[attr-defined]

    def _objects_of(self, line: QueuedDelete) -> Iterable[str]:
        where = TopicIdPartition(line.topic_id, line.partition)
        if not line.is_page:
            yield from self._attempt(where, line)
            return
        yield self._keys.page_of(where, line.base_offset, line.last_offset, line.uuid)
        if not line.is_alone:
            pages, entries = self._below(where, self._pages.get(line.uuid, ()))
            yield from (self._keys.page(where, page) for page in pages)
            for entry in entries:
                yield from self._attempt(where, entry)

    # --- logs

    def check(self) -> list[str]:
        """Check log start offsets. Returns the changes, one line each, for the trace. Raises Violation."""
        image, lines = self.image, []
        for number, broker in self._brokers.items() if image is not None else ():
            for replica in broker.replicas or ():
                where = TopicIdPartition(replica.topic_id, replica.name.partition)
                tiered = replica.config.remote_storage_enable and replica.failed is None
                if tiered and image is not None and where.topic_id in image.topics:
                    committed = image.remote_partition(*where).log_start_offset
                    if replica.log_start_offset > committed:
                        raise Violation(
                            f"the log of {replica.name} on node {number} begins at "
                            f"{replica.log_start_offset}, and {committed} is committed"
                        )
                    start = replica.local_log_start_offset
                    before = self._leader_starts.get((number, where), (-1, -1))
                    if start != before[1]:
                        self._check_start(where, replica, image.remote_partition(*where))
                        if before[0] == replica.leader_epoch:
                            self._check_named_in_bucket(where, replica)
                        lines.append(f"{number} {replica.name} from {start}")
                    self._leader_starts[number, where] = (
                        replica.leader_epoch if replica.is_leader else -1,
                        start,
                    )
        return lines

    def _check_start(self, where: TopicIdPartition, replica: Replica, remote: RemotePartition) -> None:
        gone = max(remote.end_offset or 0, remote.log_start_offset, replica.log_start_offset)
        gone = max(gone, self._dropped_ends.get(where, 0))
        if replica.local_log_start_offset > gone:
            raise Violation(
                f"{replica.name} begins at {replica.local_log_start_offset}, and only {gone} is remote"
            )

    def _check_named_in_bucket(self, where: TopicIdPartition, replica: Replica) -> None:
        """A leader deletes only local segments that the bucket's own manifest lists."""
        end = max(end_of(self._roots.get(where)), replica.log_start_offset, self._dropped_ends.get(where, 0))
        if replica.local_log_start_offset > end:
            raise Violation(
                f"the leader of {replica.name} begins at {replica.local_log_start_offset}, and the bucket's "
                f"manifest ends at {end}"
            )

    def complete_logs(self, replica: Replica) -> Iterator[bytes]:
        """The log from the log start on, twice: with as many local and with as many remote records as
        possible."""
        where = TopicIdPartition(replica.topic_id, replica.name.partition)
        remote = RemotePartition() if self.image is None else self.image.remote_partition(*where)
        first, start = remote.log_start_offset, replica.local_log_start_offset
        if where in self._dropped_ends and start > max(first, remote.end_offset or 0):
            return  # it has less than its leader, which nothing made up for after tiering was off
        start, end = max(first, start), max(first, start, remote.end_offset or 0)
        batches = [
            (header, content[at : at + header.size])
            for content in (self._content(where, entry) for entry in self._entries(where, remote))
            for at, header in checked_batches(where, content)
            if header.next_offset > first
        ]
        yield b"".join(
            [
                *(batch for header, batch in batches if header.base_offset < start),
                local_batches(replica, start),
            ]
        )
        yield b"".join([*(batch for _, batch in batches), local_batches(replica, end)])

    def has_gap(self, topic: str) -> bool:
        """Whether a leader's local log starts above all that is remote or deleted, so that nothing can be
        uploaded."""
        image, known = self.image, None if self.image is None else self.image.topic(topic)
        for number in range(0 if known is None or image is None else len(known.partitions)):
            where = TopicIdPartition(known.topic_id, number)  # type: ignore[union-attr]
            remote = image.remote_partition(*where)  # type: ignore[union-attr]
            end = remote.copied_end_offset if remote.end_offset is None else remote.end_offset
            for broker in self._brokers.values():
                replica = None if broker.replicas is None else broker.replicas.get(*where)
                leads = replica is not None and replica.is_leader and replica.failed is None
                if leads and end is not None:
                    start = replica.segments[0].base_offset  # type: ignore[union-attr]
                    if start > max(end, remote.log_start_offset):
                        return True
        return False

    def is_tiered(self, topic: str) -> bool:
        known = None if self.image is None else self.image.topic(topic)
        return known is not None and self.image is not None and is_tiered(self.image, known.topic_id)

    def pending_work(self) -> str | None:
        """Describes an upload or deletion that is still to be done; None if there is none."""
        image = self.image
        for number, broker in self._brokers.items() if image is not None else ():
            for replica in broker.replicas or ():
                where = TopicIdPartition(replica.topic_id, replica.name.partition)
                if image is None:
                    continue
                if not replica.config.remote_storage_enable:
                    if image.remote_partition(*where).first_offset is not None:
                        return f"{replica.name} is not tiered, and is remote"
                    continue
                start = image.remote_partition(*where).log_start_offset
                if replica.log_start_offset != start:
                    begins = f"{replica.name} of node {number} begins at {replica.log_start_offset}"
                    return f"{begins}, and {start} is committed"
                if not replica.is_leader:
                    continue
                if image.remote_partition(*where).started:
                    return f"{replica.name} of node {number} has unfinished copies"
                end = image.remote_partition(*where).end_offset or 0
                due = [
                    part.end_offset
                    for part in replica.segments
                    if part.rolled and part.end_offset <= replica.high_watermark
                ]
                if max(due, default=0) > max(end, replica.log_start_offset):
                    return f"{replica.name} of node {number} is remote up to {end} of {due}"
                if end < replica.high_watermark > replica.log_start_offset and _has_max_lag(replica):
                    return (
                        f"{replica.name} of node {number} is remote up to {end}, not {replica.high_watermark}"
                    )
                content = self.bucket.content(self._keys.root(where))
                if end_of(None if content is None else decoded_root(content)) != end:
                    return f"the bucket's manifest of {replica.name} does not end at {end}"
            if broker.tiering is not None and broker.tiering.log_manager.editor.copies:
                return f"node {number} merges segments"
            if broker.tiering is None or broker.tiering.log_manager.jobs():
                return f"node {number} has tiering jobs"
        if image is not None:
            now_ms = image.time_ms + 1000 * (self._time() - self._time_seen_s)
            latest_ms = now_ms - self._grace_ms
            is_held = self.snapshots.is_held()
            queued = image.delete_queue.values()
            overdue = sum(line.queued_ms <= latest_ms and not is_held(line) for line in queued)
            if overdue:
                return f"{overdue} deletions are due"
        orphans = self.orphans()
        return f"orphaned objects: {orphans}" if orphans else None


def _has_max_lag(replica: Replica) -> bool:
    config = replica.config
    return config.remote_log_copy_max_lag_ms >= 0 and not config.remote_log_copy_disable
