"""The network port of the metadata node, and the errors raised when no quorum can be reached."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from tierlog.base.types import InvariantViolation
from tierlog.metadata.controller.commands import Command, Heartbeat, HeartbeatReply, Reply
from tierlog.metadata.quorum.auth import SignedRequest
from tierlog.metadata.quorum.log_pages import LogPage
from tierlog.metadata.quorum.status import NodeStatus
from tierlog.metadata.raft.membership import Member
from tierlog.metadata.raft.messages import AnyMessage
from tierlog.metadata.versions import NodeVersions, own_versions

R = TypeVar("R", bound=Reply)

HEARTBEAT_SERVED_S = 10.0
"""How long a leader tries to confirm its leadership for a heartbeat. Callers wait less than that."""


class MetadataUnavailable(Exception):
    """No quorum responds now. `applied_unknown`: the command may have been, or may yet be, committed.
    `refused`: the node itself replied with this error, so it does not hang."""

    def __init__(self, message: str, *, applied_unknown: bool, refused: bool = False) -> None:
        super().__init__(message)
        self.applied_unknown, self.refused = applied_unknown, refused


class NotTheLeader(MetadataUnavailable):
    """The caller has to ask another node: `leader`, or -1 while no leader is known."""

    def __init__(self, leader: int, url: str) -> None:
        hint = f"node {leader} is" if leader >= 0 else "no leader is known"
        super().__init__(f"this node is not the leader of the quorum; {hint}", applied_unknown=False)
        self.leader, self.url = leader, url


class IncompatibleNode(MetadataUnavailable):
    """The other node runs a version that cannot read this request, or whose response this one cannot read.
    The request had no effect."""

    def __init__(self, message: str) -> None:
        super().__init__(message, applied_unknown=False, refused=True)


class LeadershipLost(MetadataUnavailable):
    """The request had no effect and may be sent again to the next leader."""

    def __init__(self) -> None:
        super().__init__("another leader took over before this was committed", applied_unknown=False)


class Peers:
    """The other members. Sending never waits and may lose messages. This base is the quorum of one: it has no
    other members."""

    def start(
        self,
        on_unreachable: Callable[[int], None],
        on_death: Callable[[int], None],
        on_connected: Callable[[int], None],
        on_messages: Callable[[tuple[AnyMessage, ...]], None],
    ) -> None:
        """`on_unreachable(peer)`: messages to it were lost. `on_death(peer)`: its process seems dead, since a
        connection broke and the next was refused; a time-out proves nothing, and a firewall can forge both
        (ADR 0013). `on_connected(peer)`: a connection succeeded, so it is not dead or has restarted.
        `on_messages(messages)`: a peer replied in the response to a request of this node."""

    def configure(self, members: Mapping[int, Member], others: Mapping[int, str]) -> None:
        """Replace the set of members, which includes this node with its own directory. `others`: URLs of
        nodes that are only read from."""

    def send(self, message: AnyMessage) -> None:
        raise InvariantViolation("a quorum of one sends no messages")

    async def replies_for(self, peer: int) -> tuple[AnyMessage, ...]:
        """Messages for a peer that result from those it has just sent; they go into the HTTP response. Waits
        until this node has processed them."""
        return ()

    def sign_requests(self, path: str, body: bytes) -> list[SignedRequest]:
        """One request per other member, for another process to send. No signed response is expected."""
        return []

    async def submit(self, leader: int, command: Command[R]) -> tuple[R, int]:
        """Forward a command to the leader. Returns its reply and the log index at which the reply holds."""
        raise _no_peers()

    async def heartbeat(self, leader: int, heartbeat: Heartbeat, timeout_s: float) -> HeartbeatReply:
        """Idempotent, so it may be sent again after any error."""
        raise _no_peers()

    async def log_page(self, voter: int, after: int, wait_ms: int) -> LogPage:
        """Committed entries after that index, for observers. Does not check the node's directory."""
        raise _no_peers()

    async def snapshot_chunk(self, voter: int, index: int, offset: int) -> bytes:
        """A chunk of the voter's snapshot at that index."""
        raise _no_peers()

    async def status(self, leader: int) -> NodeStatus:
        """The quorum as that node sees it, if it is the leader. All five raise MetadataUnavailable."""
        raise _no_peers()

    def watch(self, urls: Mapping[int, str]) -> None:
        """Nodes besides the members whose death is to be reported."""

    def versions_of(self, peer: int) -> NodeVersions | None:
        """The last announcement of the node; None before its first signed response. Nodes of this
        process have the versions of this one."""
        return own_versions()

    def responds(self, peer: int) -> bool:
        """Whether the node has responded recently. A node that is down may return with other versions."""
        return True

    @property
    def problems(self) -> Mapping[int, str]:
        """Nodes whose versions cannot talk to this one, or that could not read a message, and why."""
        return {}

    def on_problem(self, peer: int, why: str) -> None:
        """This node could not read a message of the peer: log it, and list it in `problems` for a while."""

    @property
    def suspects(self) -> frozenset[int]:
        """Watched nodes, members or not, whose connection has just broken: `on_death` may follow."""
        return frozenset()

    async def close(self) -> None:
        """Ends all connections."""


def _no_peers() -> MetadataUnavailable:
    return MetadataUnavailable("this node is the whole quorum", applied_unknown=False)
