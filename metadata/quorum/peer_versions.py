"""Versions of the other nodes as they announced them, and the wire version to use with each (ADR 0050).

Only signed responses announce versions that count. The refusal of an unknown wire version is not signed,
because the refusing node does not know how. It can only select one of the wire versions that this node
speaks. Until a node has announced its versions, requests to it have the lowest wire version of this node.
"""

import asyncio
from collections.abc import Mapping

import structlog

from tierlog.metadata.quorum.api import UNKNOWN_VERSION_STATUS, at_version
from tierlog.metadata.versions import (
    NodeVersions,
    Range,
    announced,
    common_version,
    have_common_version,
    own_versions,
    spans,
)

PROBLEM_S = 15.0
"""How long a problem is listed after it was seen last. Connected nodes exchange messages every second."""
HEARD_S = 15.0
"""How long a node counts as responding after its last signed response: several heartbeats."""
LOGGED_MAX = 100
NOT_FOUND = 404  # from a node before 0.1.0, which has no routes of other wire versions

_log = structlog.get_logger("tierlog.metadata")


class PeerVersions:
    def __init__(self, own: NodeVersions | None = None) -> None:
        self.own = own or own_versions()
        self._announcement = self.own.announcement()
        self._known: dict[int, NodeVersions] = {}  # from signed responses
        self._heard: dict[int, float] = {}  # node -> time of its last signed response
        self._refused: dict[int, Range] = {}  # wire versions named in refusals without a signature
        self._problems: dict[int, tuple[str, float]] = {}  # node -> what, and when it was seen last
        self._logged: set[tuple[int, str]] = set()

    def of(self, peer: int) -> NodeVersions | None:
        return self._known.get(peer)

    def responds(self, peer: int) -> bool:
        """Whether the node has signed a response within HEARD_S. A node that is down may return with another
        version than it announced."""
        return asyncio.get_running_loop().time() - self._heard.get(peer, -HEARD_S) < HEARD_S

    def wire_version(self, peer: int) -> int:
        """The wire version of the next request to the node."""
        known = self._known.get(peer)
        other = self._refused.get(peer) if known is None else known.wire
        return common_version(self.own.wire, other)

    def path(self, peer: int, path: str) -> str:
        """The path of a request in that wire version, with the announcement of this node's versions."""
        separator = "&" if "?" in path else "?"
        return f"{at_version(path, self.wire_version(peer))}{separator}{self._announcement}"

    def on_response(self, peer: int, versions: str | None) -> None:
        """The node signed a response. Without versions, it is older than 0.1.0."""
        self._heard[peer] = asyncio.get_running_loop().time()
        self._refused.pop(peer, None)
        found = None if versions is None else announced(versions)
        if found is None:
            self._known.pop(peer, None)
        else:
            self._known[peer] = found

    def on_refusal(self, peer: int, status: int, versions: str | None) -> bool:
        """The node refused a request without a signature. Returns whether the wire version was the reason."""
        if status == NOT_FOUND:
            self._known.pop(peer, None)  # it may have been rolled back
            self._refused.pop(peer, None)
            return False
        other = announced(versions or "")
        if status != UNKNOWN_VERSION_STATUS or other is None:
            return False
        self._known.pop(peer, None)
        self._refused[peer] = other.wire
        own = f"this node (tierlog {self.own.build}) wire version {spans(self.own.wire)}"
        why = f"node {peer} (tierlog {other.build}) speaks wire version {spans(other.wire)}, {own}"
        if have_common_version(self.own.wire, other.wire):
            return False  # the next request has a version of both
        self.on_problem(peer, why)
        return True

    def is_refusal(self, path: str, status: int, versions: str | None) -> bool:
        """Whether the status is that of a node that does not know the wire version of this path. A proxy's
        status 505 may be the end of a request that reached the node."""
        other = announced(versions or "")
        return (
            status == UNKNOWN_VERSION_STATUS
            and other is not None
            and not other.wire[0] <= _version_of(path) <= other.wire[1]
        )

    def on_problem(self, peer: int, why: str) -> None:
        """Logs each problem once."""
        self._problems[peer] = why, asyncio.get_running_loop().time()
        if (peer, why) not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add((peer, why))
            _log.error("quorum.version.mismatch", node=peer, why=why)

    @property
    def problems(self) -> Mapping[int, str]:
        """The last problem with each node, as long as it recurs."""
        now = asyncio.get_running_loop().time()
        return {peer: why for peer, (why, at) in self._problems.items() if now - at < PROBLEM_S}


def _version_of(path: str) -> int:
    """The wire version in the path of a request between nodes."""
    return int(path.split("/")[2].removeprefix("v"))
