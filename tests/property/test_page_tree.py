"""Random histories of one partition, with real pages in a store in memory and the real controller.

Segments are appended, spilled, replaced and expire in any order, and any command may be lost before it is
committed. The tree always has exactly the expected segments, few nodes in the quorum, and every object that
was announced is in the manifest or in the delete queue. Objects whose deletion is due can be deleted at any
time without a loss.
"""

import asyncio
import random
import uuid
from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from remote_segments import remote_segment

from tierlog.base.types import TopicIdPartition
from tierlog.broker.remote.manifest_editor import ManifestEditor
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decide import decide
from tierlog.metadata.delete_queue import QueuedDelete
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage, RemotePartition
from tierlog.metadata.image_codec import decode_image, encode_image
from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment, decode_records, encode_records
from tierlog.protocol.errors import ErrorCode
from tierlog.tiering.copier import Attempt
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import decode_page
from tierlog.tiering.manager import TierManager
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.page_tree import TreeLimits, index_of, spill_of, trimmed

LIMITS = TreeLimits(entries=3, references=2, page_nodes=3)
LEVELS_MAX = 6
KEYS = Keys("c")


class Lost(Exception):
    """The command did not reach the controller."""


class Partition:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.rng = random.Random(5)
        self.image = ClusterImage(cluster_id="c")
        self.manager = TierManager(self.store, KEYS)
        self.editor = ManifestEditor(1, self.manager, self.pages_to, self.rng, self.submit)
        self.lost_after = -1  # commands until one is lost
        self.segments: list[RemoteSegment] = []
        self.announced: set[uuid.UUID] = set()
        self.deleted: set[uuid.UUID] = set()
        self.do(
            c.RegisterBroker(
                broker_id=1, incarnation=uuid.UUID(int=1), host="h", port=1, admin_url="", formats=(1, 2)
            )
        )
        topic = c.NewTopic(name="t", partitions=1, configs=(("remote.storage.enable", "true"),))
        self.do(c.CreateTopics(topics=(topic,)))
        self.where = TopicIdPartition(self.image.topic_ids["t"], 0)

    @property
    def remote(self) -> RemotePartition:
        return self.image.remote_partition(*self.where)

    def do(self, command: c.AnyCommand) -> c.AnyReply:
        command = c.decode_command(c.encode_command(command))
        decision = decide(self.image, command, 1000 + self.image.index, self.rng)
        records = decode_records(encode_records(decision.records))
        self.image = apply_entry(self.image, self.image.index + 1, records)
        return decision.reply

    async def submit(self, command: c.AnyCommand) -> None:
        if isinstance(command, c.StartCopy | c.StartSpill):
            self.announced.add(command.uuid)
        self.lost_after -= 1
        if self.lost_after == -1:
            raise Lost
        reply = self.do(command)
        assert reply.error == ErrorCode.NONE, reply  # type: ignore[union-attr]
        again = self.do(command) if isinstance(command, c.ReplaceSegments | c.TrimPages) else reply
        assert again.error == ErrorCode.NONE, "a repetition is acknowledged"  # type: ignore[union-attr]

    async def pages_to(
        self, where: TopicIdPartition, nodes: Sequence[ManifestNode], offset: int
    ) -> Mapping[uuid.UUID, Sequence[ManifestNode]]:
        pages: dict[uuid.UUID, Sequence[ManifestNode]] = {}
        at = index_of(nodes, offset)
        while at is not None and isinstance(page := nodes[at], PageRef):
            nodes = pages[page.uuid] = await self.page(page)
            at = index_of(nodes, offset)
        return pages

    async def page(self, ref: PageRef) -> tuple[ManifestNode, ...]:
        return decode_page(await self.store.get(KEYS.page(self.where, ref)), ref).nodes

    async def put(self, segment_id: uuid.UUID, base: int, last: int) -> RemoteSegment:
        size = self.rng.randint(1, 99)
        segment = remote_segment(base, last, uuid=segment_id, log_bytes=size, control_records=1)
        await self.store.put(KEYS.log(self.where, segment), b"")
        return segment

    async def append(self, count: int) -> None:
        end = self.remote.end_offset or self.remote.copied_end_offset or 0
        segment_id = uuid.UUID(int=self.rng.getrandbits(128))
        await self.submit(
            c.StartCopy(
                topic_id=self.where.topic_id,
                partition=0,
                broker_id=1,
                leader_epoch=0,
                uuid=segment_id,
                base_offset=end,
                last_offset=end + count,
            )
        )
        segment = await self.put(segment_id, end, end + count)
        await self.submit(
            c.FinishCopy(topic_id=self.where.topic_id, partition=0, broker_id=1, segment=segment)
        )
        self.segments.append(segment)

    async def spill(self) -> None:
        spill = spill_of(self.remote, LIMITS)
        if spill is not None:
            await self.editor.spill(self.where, 0, spill, is_tree=True)

    async def cut(self, share: int) -> None:
        start, end = self.remote.log_start_offset, self.remote.end_offset or 0
        offset = start + (end - start) * share // 10
        await self.submit(
            c.MoveLogStart(topic_id=self.where.topic_id, partition=0, leader_epoch=0, log_start_offset=offset)
        )

    async def trim(self) -> None:
        if not self.remote.pages:
            return
        first, start = self.remote.pages[0], self.remote.log_start_offset
        pages = await self.pages_to(self.where, (first,), max(first.base_offset, start))
        new = trimmed(first, start, pages)
        if new is not None:
            await self.editor.trim(self.where, 0, first, new)

    async def replace(self, at: int, count: int, parts: int) -> None:
        """Replace segments that are in one page, or in the quorum."""
        if not self.segments:
            return
        first = self.segments[at % len(self.segments)]
        loaded = await self.pages_to(self.where, self.remote.nodes, first.base_offset)
        siblings = list(loaded.values())[-1] if loaded else self.remote.entries
        run = [node for node in siblings if isinstance(node, RemoteSegment)]
        old = run[run.index(first) :][:count]
        base, last = old[0].base_offset, old[-1].last_offset
        cuts = sorted({base, *(self.rng.randint(base, last) for _ in range(parts))})
        new: list[RemoteSegment] = []

        async def upload(attempt: Attempt, base: int, last: int) -> RemoteSegment:
            new.append(await self.put(attempt.uuid, base, last))
            return new[-1]

        ends = [*cuts[1:], last + 1]
        await self.editor.replace(self.where, 0, lambda: self.remote, old, ends, upload)
        at = self.segments.index(first)
        self.segments[at : at + len(old)] = new

    async def delete(self) -> None:
        """The cleaner's work, after the grace of all deletions."""
        self.do(c.StartRemoteDeletes(grace_ms=0, uuids=tuple(self.image.delete_queue)))
        lines = [self.image.delete_queue[one] for one in self.image.deleting]
        if lines:
            gone = await self.manager.delete(lines, lambda where: self.remote.log_start_offset)
            self.deleted |= set(gone)
            self.do(c.ConfirmRemoteDeleted(uuids=gone))

    async def tree(self, nodes: Sequence[ManifestNode]) -> tuple[list[PageRef], list[RemoteSegment]]:
        pages: list[PageRef] = []
        entries: list[RemoteSegment] = []
        for node in nodes:
            if isinstance(node, RemoteSegment):
                entries.append(node)
                continue
            below = await self.tree(await self.page(node))
            pages += [node, *below[0]]
            entries += below[1]
        return pages, entries

    async def check(self) -> None:
        remote = self.remote
        pages, entries = await self.tree(remote.nodes)
        start = remote.log_start_offset
        self.segments = [one for one in self.segments if one.last_offset >= start]
        assert [one for one in entries if one.last_offset >= start] == self.segments
        assert remote.copied_end_offset == (self.segments[-1].end_offset if self.segments else start or None)
        levels = [page.level for page in remote.pages]
        assert levels == sorted(levels, reverse=True)
        for entry in entries:  # nothing that the manifest names is deleted
            await self.store.head(KEYS.log(self.where, entry))
        named = {node.uuid for node in (*pages, *entries)}
        dropped: set[uuid.UUID] = set()
        for line in self.image.delete_queue.values():
            assert isinstance(line, QueuedDelete) and line.uuid not in named
            dropped.add(line.uuid)
        started = {copy.uuid for copy in remote.started}
        known = named | dropped | started | self.deleted
        lost = {one async for one in self.objects()} - known
        below = {one async for one in self.below_queue()}
        assert lost <= below, "an object is in neither the manifest nor the queue"
        assert decode_image(encode_image(self.image)) == self.image

    async def objects(self):  # type: ignore[no-untyped-def]
        async for info in self.store.list("c/"):
            yield uuid.UUID(info.key.rpartition(".")[0][-36:])

    async def below_queue(self):  # type: ignore[no-untyped-def]
        for line in self.image.delete_queue.values():
            if isinstance(line, QueuedDelete) and line.is_page and not line.is_alone:
                key = KEYS.page_of(self.where, line.base_offset, line.last_offset, line.uuid)
                pages, entries = await self.tree(decode_page(await self.store.get(key)).nodes)
                for node in (*pages, *entries):
                    yield node.uuid


small = st.integers(0, 9)
steps = st.one_of(
    *[st.tuples(st.just("append"), st.integers(0, 9), small, small)] * 5,
    *[st.tuples(st.just("spill"), small, small, small)] * 5,
    st.tuples(st.just("replace"), st.integers(0, 60), st.integers(1, 3), st.integers(0, 3)),
    st.tuples(st.just("replace"), st.integers(0, 60), st.integers(1, 3), st.integers(0, 3)),
    st.tuples(st.just("cut"), st.integers(0, 3), small, small),
    st.tuples(st.just("trim"), small, small, small),
    st.tuples(st.just("delete"), small, small, small),
    st.tuples(st.just("lose"), st.integers(0, 4), small, small),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, min_size=20, max_size=120))
def test_tree_has_exactly_the_segments_that_are_left(drawn: list) -> None:
    asyncio.run(run(drawn))


async def run(drawn: list) -> None:
    partition = Partition()
    for kind, x, y, z in drawn:
        try:
            match kind:
                case "append":
                    await partition.append(x)
                case "spill":
                    await partition.spill()
                case "replace":
                    await partition.replace(x, y, z)
                case "cut":
                    await partition.cut(x)
                case "trim":
                    await partition.trim()
                case "delete":
                    await partition.delete()
                case "lose":
                    partition.lost_after = x
        except Lost:
            for copy in partition.remote.started:
                partition.do(
                    c.AbandonCopy(
                        topic_id=partition.where.topic_id, partition=0, leader_epoch=0, uuid=copy.uuid
                    )
                )
        await partition.check()


def test_quorum_and_depth_grow_with_the_logarithm_of_the_history() -> None:
    remote = RemotePartition()
    for number in range(2000):
        entry = remote_segment(number, number, uuid=uuid.UUID(int=number))
        remote = replace(remote, entries=(*remote.entries, entry))
        while (spill := spill_of(remote, LIMITS)) is not None:
            remote = spilled(remote, spill.before, spill.nodes)
        assert len(remote.entries) <= LIMITS.entries
        for level in range(LEVELS_MAX):
            assert sum(page.level == level for page in remote.pages) <= LIMITS.references
    assert remote.pages[0].level <= LEVELS_MAX
    assert sum(page.entries for page in remote.pages) + len(remote.entries) == 2000


def spilled(
    remote: RemotePartition, before: PageRef | None, moved: Sequence[ManifestNode]
) -> RemotePartition:
    run = [*([] if before is None else [before]), *moved]
    first = moved[0]
    level = first.level + 1 if isinstance(first, PageRef) else 0
    page = PageRef(
        uuid=uuid.uuid5(run[0].uuid, str(run[-1].uuid)),
        base_offset=run[0].base_offset,
        last_offset=run[-1].last_offset,
        entries=sum(node.entries if isinstance(node, PageRef) else 1 for node in run),
        log_bytes=0,
        max_timestamp=0,
        crc32c=0,
        level=level,
        children=(0 if before is None else before.children) + (len(moved) if level else 0),
    )
    at = remote.nodes.index(run[0])
    nodes = (*remote.nodes[:at], page, *remote.nodes[at + len(run) :])
    return replace(
        remote,
        pages=tuple(node for node in nodes if isinstance(node, PageRef)),
        entries=tuple(node for node in nodes if isinstance(node, RemoteSegment)),
    )
