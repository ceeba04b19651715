"""Tree of manifest pages: which nodes go into a page, and the new versions of pages on a path. Pure.

The quorum keeps a partition's newest entries, and few references of each level of pages. When there are too
many of a level, the oldest move into a page of the next level. A page that is not full is written again with
them. So the number of nodes in the quorum and in the root grows with the logarithm of the history. Pages are
immutable: a change within a page is a new version of it and of all pages above it, up to the one that the
quorum names. Called by the planner and the manifest editor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from tierlog.metadata.image import RemotePartition
from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment

PAGE_NODES = 256
"""Entries or references of one page: about 15 KB compressed. Three levels have 16 million segments."""

ENTRIES_MAX = 256
"""Entries above which the oldest are spilled. The quorum refuses more than 512 (`remote.MAX_ENTRIES`), and
one bulk load adds up to 256 (`remote_loads.MAX_LOADED`), so neither copies nor loads wait for a spill."""

REFERENCES_MAX = 64  # references of a level above which the oldest are spilled

NODE_BYTES = 720
"""Memory of an entry or reference in the image, measured by tests/bench/manifest_memory.py."""

NODES_MIN, NODES_MAX = 16, 512
"""Least nodes of a partition in the quorum, since each spill has its cost. More than this are never kept."""

Pages = Mapping[UUID, Sequence[ManifestNode]]
"""Loaded pages: their entries or references."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLimits:
    """Numbers of nodes. In format version 1, pages contain only entries and are not written again."""

    entries: int = ENTRIES_MAX  # in the quorum
    references: int = REFERENCES_MAX  # a limit for each level, in the quorum
    page_nodes: int = PAGE_NODES
    is_tree: bool = True

    @property
    def spilled_entries(self) -> int:
        return max(1, self.entries * 2 // 3)


TREE_LIMITS_1 = TreeLimits(is_tree=False)


@dataclass(frozen=True, slots=True)
class Spill:
    """Write a page with these successive nodes, all of one level. It continues the page `before`, if any."""

    before: PageRef | None
    nodes: tuple[ManifestNode, ...]


@dataclass(frozen=True, slots=True)
class NewPage:
    """A page to write: `nodes`, in which the index of the new version of a page below is None."""

    old: PageRef
    nodes: tuple[ManifestNode | None, ...]


@dataclass(frozen=True, slots=True)
class Trimmed:
    """`pages`: the new versions, the lowest first; each is the first node of the next. `dropped`: pages that
    leave the tree, oldest first."""

    pages: tuple[NewPage, ...]
    dropped: tuple[PageRef, ...]


def image_budget(metadata_cache_bytes: int) -> int:
    """The part of remote.log.metadata.cache.bytes that is for the image; the rest is for loaded pages."""
    return metadata_cache_bytes * 3 // 4


def limits_for(budget_bytes: int, partitions: int, format_version: int) -> TreeLimits:
    """Limits with which the quorum's nodes of all tiered partitions stay within a budget of memory."""
    if format_version < 2:
        return TREE_LIMITS_1
    nodes = min(max(budget_bytes // (NODE_BYTES * max(partitions, 1)), NODES_MIN), NODES_MAX)
    # an eighth for each level of references, of which more than two are rare
    return TreeLimits(entries=min(ENTRIES_MAX, nodes * 3 // 4), references=min(REFERENCES_MAX, nodes // 8))


def spill_of(remote: RemotePartition, limits: TreeLimits) -> Spill | None:
    """The next page to write, or None if the quorum has few enough nodes."""
    if len(remote.entries) > limits.entries:
        count = min(limits.spilled_entries, limits.page_nodes)
        if not limits.is_tree:
            return Spill(None, remote.entries[:count])
        return _into_page(remote.pages, remote.entries[:count], 0, limits.page_nodes)
    levels = sorted({page.level for page in remote.pages}) if limits.is_tree else ()
    for level in levels:
        run = [page for page in remote.pages if page.level == level]
        if len(run) > limits.references:
            count = max(len(run) - limits.references, limits.references * 2 // 3, 1)
            above = tuple(page for page in remote.pages if page.level > level)
            return _into_page(above, tuple(run[:count]), level + 1, limits.page_nodes)
    return None


def _into_page(
    pages: tuple[PageRef, ...], nodes: tuple[ManifestNode, ...], level: int, page_nodes: int
) -> Spill:
    last = pages[-1] if pages else None
    if last is not None and last.level == level and last.width < page_nodes:
        return Spill(last, nodes[: page_nodes - last.width])
    return Spill(None, nodes[:page_nodes])


def path_to(nodes: Sequence[ManifestNode], offset: int, pages: Pages) -> list[tuple[PageRef, int]]:
    """The loaded pages that lead to an offset, from the quorum's down, each with the index of the node in it
    that contains the offset."""
    path: list[tuple[PageRef, int]] = []
    at = index_of(nodes, offset)
    while at is not None:
        node = nodes[at]
        if not isinstance(node, PageRef) or node.uuid not in pages:
            break
        nodes = pages[node.uuid]
        at = index_of(nodes, offset)
        if at is not None:
            path.append((node, at))
    return path


def index_of(nodes: Sequence[ManifestNode], offset: int) -> int | None:
    """Index of the node that contains an offset; None if there is none."""
    low, high = 0, len(nodes)
    while low < high:
        middle = (low + high) // 2
        if nodes[middle].last_offset < offset:
            low = middle + 1
        else:
            high = middle
    return low if low < len(nodes) and nodes[low].base_offset <= offset else None


def trimmed(page: PageRef, log_start: int, pages: Pages) -> Trimmed | None:
    """The new versions of a page and of the first pages below it, without the pages that end below the log
    start. None if there are none. `pages`: those that lead to the log start."""
    nodes = pages.get(page.uuid, ())
    if not page.level or not nodes or nodes[-1].last_offset < log_start:
        return None
    kept = [node for node in nodes if node.last_offset >= log_start]
    dropped = tuple(node for node in nodes if isinstance(node, PageRef) and node.last_offset < log_start)
    below = trimmed(kept[0], log_start, pages) if isinstance(kept[0], PageRef) else None
    if below is not None:
        return Trimmed((*below.pages, NewPage(page, (None, *kept[1:]))), (*dropped, *below.dropped))
    return Trimmed((NewPage(page, tuple(kept)),), dropped) if dropped else None


def replaced(
    path: Sequence[tuple[PageRef, int]],
    old: Sequence[RemoteSegment],
    new: Sequence[RemoteSegment],
    pages: Pages,
) -> tuple[NewPage, ...] | None:
    """The new versions of the pages on a path, the lowest first, after `new` segments replace `old` ones in
    the lowest. None if that page does not contain the old ones."""
    leaf, at = path[-1]
    nodes = pages[leaf.uuid]
    if tuple(nodes[at : at + len(old)]) != tuple(old):
        return None
    written = [NewPage(leaf, (*nodes[:at], *new, *nodes[at + len(old) :]))]
    for page, index in reversed(path[:-1]):
        around = pages[page.uuid]
        written.append(NewPage(page, (*around[:index], None, *around[index + 1 :])))
    return tuple(written)
