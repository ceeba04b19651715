"""Manifests: the committed remote segments of a partition, readable from the bucket alone.

A root lists the newest entries, and references to immutable pages with older ones. A page contains entries,
or references to pages of the next lower level. Each document is a JSON envelope
`{format, format_version, crc32c, body}`, whose checksum covers the bytes of the body. Roots and pages are
compressed with zstd (`zstd -dc root | jq` shows one). A root contains its version, which grows with each
write, and the index of the metadata log that it reflects, because some stores can return a new body with an
old ETag. Written by the remote log manager, read by the remote log and by Spark; see docs/formats/remote.md.
"""

import uuid
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import crc32c
import msgspec
import zstandard

from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment, share_epochs

FORMAT_VERSION = 2
"""The highest version. A document is written in the oldest version that can represent it."""

MAX_DOCUMENT_BYTES = 64 << 20  # decompressed; a root with 512 entries is about 0.3 MB
_ZSTD_LEVEL = 3


class ManifestError(ValueError):
    """A document in the bucket has another format or a newer version, or is damaged."""


class EntryDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A RemoteSegment with full field names, for other tools."""

    uuid: uuid.UUID
    base_offset: int
    last_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    log_bytes: int
    index_bytes: int
    records: int
    first_timestamp: int
    max_timestamp: int
    has_transactions: bool
    has_aborts: bool
    log_crc32c: int
    index_crc32c: int
    leader_epoch: int
    control_records: int = -1
    min_timestamp: int = -1
    key_id: str | None = None
    tags: tuple[tuple[str, str], ...] = ()


class PageRefDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    uuid: uuid.UUID
    base_offset: int
    last_offset: int
    entries: int
    log_bytes: int
    max_timestamp: int
    crc32c: int
    level: int = 0
    children: int = 0


class ManifestRoot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one partition as of `metadata_index`. Entries follow the pages without a gap."""

    topic_id: uuid.UUID
    partition: int
    version: int  # grows with each write
    metadata_index: int  # last metadata record included; a root with a lower index never replaces this one
    leader_epoch: int
    log_start_offset: int
    pages: tuple[PageRef, ...]
    entries: tuple[RemoteSegment, ...]

    @property
    def nodes(self) -> tuple[ManifestNode, ...]:
        return *self.pages, *self.entries


class ManifestPage(msgspec.Struct, frozen=True, kw_only=True):
    """Older entries of one partition, or (above level 0) references to pages of the next lower level.
    Immutable."""

    topic_id: uuid.UUID
    partition: int
    entries: tuple[RemoteSegment, ...] = ()
    pages: tuple[PageRef, ...] = ()

    @property
    def nodes(self) -> tuple[ManifestNode, ...]:
        return self.pages or self.entries

    @property
    def level(self) -> int:
        return self.pages[0].level + 1 if self.pages else 0


class ClusterDocument(msgspec.Struct, frozen=True, kw_only=True):
    """cluster.json: marks a prefix as a cluster."""

    cluster_id: str


class TopicDocument(msgspec.Struct, frozen=True, kw_only=True):
    """topics/<topic id>.json: lets readers of the bucket find a topic by name."""

    topic_id: uuid.UUID
    name: str
    partitions: int
    configs: dict[str, str]


class _RootBody(msgspec.Struct, frozen=True, kw_only=True):
    topic_id: uuid.UUID
    partition: int
    version: int
    metadata_index: int
    leader_epoch: int
    log_start_offset: int
    pages: tuple[PageRefDocument, ...]
    entries: tuple[EntryDocument, ...]


class _PageBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    topic_id: uuid.UUID
    partition: int
    entries: tuple[EntryDocument, ...]
    pages: tuple[PageRefDocument, ...] = ()


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    format: str
    format_version: int
    crc32c: int
    body: msgspec.Raw


Body = TypeVar("Body")


def encode_root(root: ManifestRoot) -> bytes:
    body = _RootBody(
        **{
            **msgspec.structs.asdict(root),
            "pages": _page_documents(root.pages),
            "entries": _entry_documents(root.entries),
        }
    )
    return _compress(seal("tierlog.manifest.root", body, _version_of(root.pages, root.entries)))


def decode_root(data: bytes) -> ManifestRoot:
    """Decode a root. Raises ManifestError, also if pages and entries have gaps or overlap."""
    body = unseal(_decompress(data), "tierlog.manifest.root", _RootBody)
    pages, entries = _pages(body.pages), _segments(body.entries)
    _check_contiguous([*pages, *entries])
    return ManifestRoot(**{**msgspec.structs.asdict(body), "pages": pages, "entries": entries})


def encode_page(page: ManifestPage) -> bytes:
    body = _PageBody(
        topic_id=page.topic_id,
        partition=page.partition,
        entries=_entry_documents(page.entries),
        pages=_page_documents(page.pages),
    )
    version = 2 if page.pages else _version_of((), page.entries)
    return _compress(seal("tierlog.manifest.page", body, version))


def decode_page(data: bytes, ref: PageRef | None = None) -> ManifestPage:
    """Decode a page, and verify checksum, level and range against its reference if given. Raises
    ManifestError."""
    if ref is not None and crc32c.crc32c(data) != ref.crc32c:
        raise ManifestError(f"manifest page {ref.uuid}: checksum differs from the reference")
    body = unseal(_decompress(data), "tierlog.manifest.page", _PageBody)
    page = ManifestPage(
        topic_id=body.topic_id,
        partition=body.partition,
        entries=_segments(body.entries),
        pages=_pages(body.pages),
    )
    if page.pages and (page.entries or any(one.level != page.level - 1 for one in page.pages)):
        raise ManifestError("manifest page: contains entries and references, or references of several levels")
    _check_contiguous(page.nodes)
    if ref is not None and _span(page) != (ref.base_offset, ref.last_offset, ref.entries, ref.level):
        raise ManifestError(f"manifest page {ref.uuid}: contains another range than the reference")
    return page


def page_reference(page_id: uuid.UUID, page: ManifestPage, encoded: bytes) -> PageRef:
    """The reference to an encoded page, for the root and the quorum."""
    base_offset, last_offset, segments, level = _span(page)
    return PageRef(
        uuid=page_id,
        base_offset=base_offset,
        last_offset=last_offset,
        entries=segments,
        log_bytes=sum(node.log_bytes for node in page.nodes),
        max_timestamp=max(node.max_timestamp for node in page.nodes),
        crc32c=crc32c.crc32c(encoded),
        level=level,
        children=len(page.pages),
    )


def encode_cluster(document: ClusterDocument) -> bytes:
    return seal("tierlog.cluster", document)


def decode_cluster(data: bytes) -> ClusterDocument:
    return unseal(data, "tierlog.cluster", ClusterDocument)


def encode_topic(document: TopicDocument) -> bytes:
    return seal("tierlog.topic", document)


def decode_topic(data: bytes) -> TopicDocument:
    return unseal(data, "tierlog.topic", TopicDocument)


def _version_of(pages: Sequence[PageRef], entries: Sequence[RemoteSegment]) -> int:
    is_first = all(entry.fits_format_1 for entry in entries) and not any(page.level for page in pages)
    return 1 if is_first else 2


def seal(format: str, body: msgspec.Struct, version: int = 1) -> bytes:
    """A document of this format: the envelope with the body's checksum."""
    raw = msgspec.json.encode(body, order="deterministic")
    envelope = _Envelope(
        format=format, format_version=version, crc32c=crc32c.crc32c(raw), body=msgspec.Raw(raw)
    )
    return msgspec.json.encode(envelope)


def unseal(data: bytes, format: str, body_type: type[Body]) -> Body:
    """The body of a document. Raises ManifestError for another format, a newer version, or damage."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if envelope.format != format:
            raise ManifestError(f"expected format {format}, found {envelope.format!r}")
        if not 1 <= envelope.format_version <= FORMAT_VERSION:
            raise ManifestError(
                f"{format}: format version {envelope.format_version} is not supported"
                f" (this version reads up to {FORMAT_VERSION})"
            )
        if crc32c.crc32c(bytes(envelope.body)) != envelope.crc32c:
            raise ManifestError(f"{format}: checksum mismatch")
        return msgspec.json.decode(envelope.body, type=body_type)
    except msgspec.MsgspecError as error:
        raise ManifestError(f"{format}: {error}") from error


def _compress(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(data)


def _decompress(data: bytes) -> bytes:
    """Check the frame's content size, which our writer always includes, before anything is allocated."""
    try:
        size = zstandard.frame_content_size(data)
        if size < 0 or size > MAX_DOCUMENT_BYTES:
            raise ManifestError(f"manifest of {size} bytes exceeds the limit of {MAX_DOCUMENT_BYTES}")
        return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise ManifestError(f"manifest is not valid zstd: {error}") from error


def _entry_documents(entries: tuple[RemoteSegment, ...]) -> tuple[EntryDocument, ...]:
    return tuple(EntryDocument(**msgspec.structs.asdict(entry)) for entry in entries)


def _page_documents(pages: tuple[PageRef, ...]) -> tuple[PageRefDocument, ...]:
    return tuple(PageRefDocument(**msgspec.structs.asdict(page)) for page in pages)


def _segments(entries: tuple[EntryDocument, ...]) -> tuple[RemoteSegment, ...]:
    segments = msgspec.convert(entries, tuple[RemoteSegment, ...], from_attributes=True)
    share_epochs(segments)
    return segments


def _pages(pages: tuple[PageRefDocument, ...]) -> tuple[PageRef, ...]:
    return tuple(PageRef(**msgspec.structs.asdict(page)) for page in pages)


def _span(page: ManifestPage) -> tuple[int, int, int, int]:
    """First and last offset, number of segments, level."""
    nodes = page.nodes
    if not nodes:
        return 0, -1, 0, 0
    segments = sum(one.entries for one in page.pages) if page.pages else len(page.entries)
    return nodes[0].base_offset, nodes[-1].last_offset, segments, page.level


def _check_contiguous(ranges: Sequence[ManifestNode]) -> None:
    for before, after in pairwise(ranges):
        if after.base_offset != before.last_offset + 1:
            raise ManifestError(
                f"manifest has a gap or overlap between offsets {before.last_offset} and {after.base_offset}"
            )
