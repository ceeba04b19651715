"""Manifest editor: moves entries of the quorum into pages, and replaces or removes what pages contain.

Every page is announced to the quorum before it is put, so that it is in the delete queue if the last commit
fails. The last command names the nodes of the quorum that it replaces: it is refused if they have changed.
Called on the partition's leader by the remote log manager, the segment merger and the remote compactor.
"""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import UUID

from tierlog.base.segments import SegmentExport
from tierlog.base.types import TopicIdPartition, random_uuid, require
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment
from tierlog.records.chunks import ChunkBuilder
from tierlog.tiering.copier import Attempt, NotUploadable, SegmentBody
from tierlog.tiering.manager import TierManager
from tierlog.tiering.object_store import ObjectNotFound
from tierlog.tiering.page_tree import NewPage, Spill, Trimmed, path_to, replaced

Command = c.StartCopy | c.StartSpill | c.SpillEntries | c.TrimPages | c.ReplaceSegments
Submit = Callable[[Command], Awaitable[None]]
"""Commits a command, or raises an error if the controller refuses it."""

PagesTo = Callable[
    [TopicIdPartition, Sequence[ManifestNode], int], Awaitable[Mapping[UUID, Sequence[ManifestNode]]]
]
"""Loads the pages that lead from these nodes to an offset."""


class AnnouncedBody:
    """The body of a copy that replaces segments. Reads and `finish` raise NotUploadable once the copy was
    abandoned: it is in the delete queue then, and an object put after the grace would never be deleted."""

    def __init__(self, body: SegmentBody, attempt: Attempt, resolve: Callable[[], RemotePartition]) -> None:
        self.size, self.base_offset, self.end_offset = body.size, body.base_offset, body.end_offset
        self._body = body
        self._attempt = attempt
        self._resolve = resolve

    async def read_into(self, buffer: memoryview) -> None:
        await self._body.read_into(buffer)
        self._require_announced()

    def finish(self) -> tuple[SegmentExport, ChunkBuilder]:
        self._require_announced()
        return self._body.finish()

    def _require_announced(self) -> None:
        if all(copy.uuid != self._attempt.uuid for copy in self._resolve().started):
            offsets = f"{self.base_offset} to {self.end_offset - 1}"
            raise NotUploadable(f"{self._attempt.partition}: the copy of offsets {offsets} was abandoned")


class ManifestEditor:
    def __init__(
        self, broker_id: int, manager: TierManager, pages_to: PagesTo, rng: random.Random, submit: Submit
    ) -> None:
        self._broker_id = broker_id
        self._manager = manager
        self.pages_to = pages_to
        self._rng = rng
        self._submit = submit
        self.copies: set[UUID] = set()
        """Copies in progress that will replace segments. A copy that is not among them was interrupted."""
        self.leased: set[TopicIdPartition] = set()
        """Partitions in which a job outside of the broker replaces segments (`replacements`). The segment
        merger leaves them alone."""

    async def spill(self, where: TopicIdPartition, leader_epoch: int, spill: Spill, *, is_tree: bool) -> None:
        """Write a page, which takes the place of its nodes in the quorum. Raises ObjectStoreError, as the
        other methods do."""
        before, nodes = spill.before, spill.nodes
        if before is not None:
            loaded = await self.pages_to(where, (before,), before.base_offset)
            nodes = (*loaded[before.uuid], *nodes)
        page = await self._write(where, leader_epoch, nodes)
        moved = (*([] if before is None else [before]), *spill.nodes)
        await self._submit(
            c.SpillEntries(
                topic_id=where.topic_id,
                partition=where.partition,
                leader_epoch=leader_epoch,
                page=page,
                replaced=tuple(node.uuid for node in moved) if is_tree else (),
            )
        )

    async def trim(self, where: TopicIdPartition, leader_epoch: int, page: PageRef, new: Trimmed) -> None:
        """Write new versions of pages, without their nodes below the log start."""
        written = await self._write_all(where, leader_epoch, new.pages)
        await self._submit(
            c.TrimPages(
                topic_id=where.topic_id,
                partition=where.partition,
                leader_epoch=leader_epoch,
                replaced_page=page.uuid,
                page=written[-1],
                dropped=new.dropped,
                inner_pages=written[:-1],
                old_inner_pages=tuple(one.old for one in new.pages[:-1]),
            )
        )

    async def replace(
        self,
        where: TopicIdPartition,
        leader_epoch: int,
        resolve: Callable[[], RemotePartition],
        old: Sequence[RemoteSegment],
        ends: Sequence[int],
        upload: Callable[[Attempt, int, int], Awaitable[RemoteSegment]],
    ) -> None:
        """Replace successive segments, which are entries of the quorum or of one page, by new ones with the
        same range of offsets, that end at `ends` (exclusive). `upload` puts and verifies the objects of one,
        with this first and last offset. `resolve`: the newest remote state, which may change during the
        uploads. Raises ObjectNotFound if the manifest then does not have the old ones like this."""
        bases = (old[0].base_offset, *ends[:-1])
        require(
            ends[-1] == old[-1].end_offset, f"{where}: replaced up to {ends[-1]}, not {old[-1].end_offset}"
        )
        attempts = [Attempt(where, self.new_id(), leader_epoch) for _ in ends]
        self.copies.update(attempt.uuid for attempt in attempts)
        try:
            new = []
            for attempt, base, end in zip(attempts, bases, ends, strict=True):
                await self.announce(attempt, base, end - 1)
                new.append(await upload(attempt, base, end - 1))
            await self.commit(where, leader_epoch, resolve().nodes, old, new)
        finally:
            self.copies.difference_update(attempt.uuid for attempt in attempts)

    def new_id(self) -> UUID:
        """An id for a new segment."""
        return random_uuid(self._rng)

    async def announce(self, attempt: Attempt, base_offset: int, last_offset: int) -> None:
        """Announce the objects of one new segment to the quorum. The caller has added it to `copies`."""
        await self._submit(
            c.StartCopy(
                topic_id=attempt.partition.topic_id,
                partition=attempt.partition.partition,
                broker_id=self._broker_id,
                leader_epoch=attempt.leader_epoch,
                uuid=attempt.uuid,
                base_offset=base_offset,
                last_offset=last_offset,
                replaces=True,
            )
        )

    async def commit(
        self,
        where: TopicIdPartition,
        leader_epoch: int,
        nodes: Sequence[ManifestNode],
        old: Sequence[RemoteSegment],
        new: Sequence[RemoteSegment],
    ) -> None:
        """Replace segments by announced ones, whose objects are verified. `nodes`: those of the quorum.
        Raises ObjectNotFound if they do not lead to the old ones."""
        loaded = await self.pages_to(where, nodes, old[0].base_offset)
        path = path_to(nodes, old[0].base_offset, loaded)
        pages = replaced(path, old, new, loaded) if path else ()
        if pages is None:
            raise ObjectNotFound(f"{where}: no page has the {len(old)} segments from {old[0].base_offset}")
        written = await self._write_all(where, leader_epoch, pages)
        await self._submit(
            c.ReplaceSegments(
                topic_id=where.topic_id,
                partition=where.partition,
                broker_id=self._broker_id,
                leader_epoch=leader_epoch,
                old=tuple(old),
                new=tuple(new),
                replaced_page=pages[-1].old.uuid if pages else None,
                page=written[-1] if pages else None,
                inner_pages=written[:-1],
                old_inner_pages=tuple(one.old for one in pages[:-1]),
            )
        )

    async def _write_all(
        self, where: TopicIdPartition, leader_epoch: int, pages: Sequence[NewPage]
    ) -> tuple[PageRef, ...]:
        """Write pages from the innermost to the outermost: each contains a reference to the one before."""
        written: list[PageRef] = []
        for page in pages:
            nodes = tuple(written[-1] if node is None else node for node in page.nodes)
            written.append(await self._write(where, leader_epoch, nodes))
        return tuple(written)

    async def _write(
        self, where: TopicIdPartition, leader_epoch: int, nodes: Sequence[ManifestNode]
    ) -> PageRef:
        require(len(nodes) > 0, f"{where}: a page without entries")
        page_id: UUID = random_uuid(self._rng)
        await self._submit(
            c.StartSpill(
                topic_id=where.topic_id,
                partition=where.partition,
                leader_epoch=leader_epoch,
                uuid=page_id,
                base_offset=nodes[0].base_offset,
                last_offset=nodes[-1].last_offset,
            )
        )
        return await self._manager.write_page(where, page_id, nodes)
