"""Versions that a node supports and announces to the others (ADR 0050).

The format version (`tierlog.format`) covers what is stored: records, snapshots, and objects in the bucket.
The cluster has one, which an operator raises when no node will go back. The wire version covers requests
between the nodes of the quorum and their signatures. Two nodes use the highest that both support.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qs

from tierlog.base import build
from tierlog.metadata.image import ClusterImage

SUPPORTED_FORMATS = (1, 4)
"""Lowest and highest format version that this tierlog reads and writes. A release may raise the highest by
one; the lowest rises only where an upgrade from releases without it is no longer supported."""

WIRE_VERSIONS = (1, 1)
"""Lowest and highest wire version that this tierlog speaks."""

FORMAT_CHANGES: Mapping[int, str] = {
    2: "larger manifests in the bucket, and merged, compacted and bulk-loaded segments",
    3: "users, ACLs, delegation tokens, and several listeners",
    4: "readers of the bucket find a topic by its name without reading all topics",
}
"""Format version -> features that it makes possible."""

_NO_LETTERS = re.compile(r"[^0-9A-Za-z.]")
_WORD_LETTERS_MAX = 40
_RANGE = re.compile(r"(\d{1,6})-(\d{1,6})")

Range = tuple[int, int]


class UnreadableMetadata(Exception):
    """A newer tierlog wrote metadata that this one cannot read: the node must not continue without it."""


class NodeVersions(NamedTuple):
    """The announcement of a node. `version` and `commit`: of its build. The ranges have a lowest and a
    highest version."""

    version: str
    commit: str
    formats: Range
    wire: Range

    @property
    def build(self) -> str:
        return f"{self.version} (commit {self.commit})" if self.commit else self.version

    def announcement(self) -> str:
        """As the query of a request, and as the header of a response. It needs no escapes."""
        words = {"build": _word(self.version), "commit": _word(self.commit)}
        ranges = {"formats": self.formats, "wire": self.wire}
        pairs = {**words, **{name: f"{low}-{high}" for name, (low, high) in ranges.items()}}
        return "&".join(f"{name}={value}" for name, value in pairs.items())


def own_versions() -> NodeVersions:
    return NodeVersions(build.VERSION, build.commit(), SUPPORTED_FORMATS, WIRE_VERSIONS)


def announced(text: str) -> NodeVersions | None:
    """The versions in a query or header; None if it announces none. Unknown names are ignored."""
    values = {name: found[-1] for name, found in parse_qs(text).items()}
    formats, wire = _range(values.get("formats", "")), _range(values.get("wire", ""))
    if formats is None or wire is None:
        return None
    return NodeVersions(_word(values.get("build", "")), _word(values.get("commit", "")), formats, wire)


def common_version(own: Range, other: Range | None) -> int:
    """The highest version that both support; without one, the own version that is nearest to the other's
    range. The lowest own version if the other's range is unknown."""
    return own[0] if other is None else max(own[0], min(own[1], other[1]))


def have_common_version(own: Range, other: Range) -> bool:
    return max(own[0], other[0]) <= min(own[1], other[1])


def spans(versions: Range) -> str:
    """A range as people read it."""
    return str(versions[0]) if versions[0] == versions[1] else f"{versions[0]} to {versions[1]}"


def check_format(image: ClusterImage) -> ClusterImage:
    """The image itself. Raises UnreadableMetadata if the cluster has finalised a format version that this
    tierlog does not know: it could skip parts of later records without noticing."""
    if image.format_version > SUPPORTED_FORMATS[1]:
        raise UnreadableMetadata(
            f"the cluster's tierlog.format was finalised at {image.format_version}, and this node's tierlog "
            f"{build.VERSION} supports {spans(SUPPORTED_FORMATS)}: start the node with the version of the "
            "other nodes"
        )
    return image


def unreadable(what: str, failure: Exception) -> UnreadableMetadata:
    """The error for a record or snapshot that a decoder rejects."""
    return UnreadableMetadata(
        f"this node's tierlog {build.VERSION} cannot read {what} ({failure}). If a newer version wrote it, "
        "start the node with that version"
    )


def newer_file(what: str, version: int) -> str:
    """The message about a file whose version this tierlog does not know."""
    return (
        f"{what} has version {version}, which this node's tierlog {build.VERSION} does not know. If a newer "
        "version wrote it, start the node with that version"
    )


def _word(text: str) -> str:
    return _NO_LETTERS.sub("", text)[:_WORD_LETTERS_MAX]


def _range(text: str) -> Range | None:
    found = _RANGE.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None
