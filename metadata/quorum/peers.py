"""What the metadata driver asks of the network, and its answer when no quorum can be had."""

from collections.abc import Callable, Mapping
from typing import Protocol

from tierlog.base.types import InvariantViolation
from tierlog.metadata.controller.commands import AnyCommand, AnyReply, Heartbeat, HeartbeatReply
from tierlog.metadata.quorum.log_pages import LogPage
from tierlog.metadata.quorum.status import NodeStatus
from tierlog.metadata.raft.membership import Member
from tierlog.metadata.raft.messages import AnyMessage

HEARTBEAT_SERVED_S = 10.0
"""A leader that cannot make sure of its leadership answers no heartbeat after that; who asks waits less."""


class MetadataUnavailable(Exception):
    """No quorum answers now. `applied_unknown`: the command may have been, or may yet be, committed.
    `refused`: the node that was asked said so itself, hence does not hang."""

    def __init__(self, message: str, *, applied_unknown: bool, refused: bool = False) -> None:
        super().__init__(message)
        self.applied_unknown, self.refused = applied_unknown, refused


class NotTheLeader(MetadataUnavailable):
    """Another node has to be asked; `leader` is -1 while there is none."""

    def __init__(self, leader: int, url: str) -> None:
        who = f"; node {leader} does" if leader >= 0 else ", and knows of no other that does"
        super().__init__(f"this node does not lead{who}", applied_unknown=False)
        self.leader, self.url = leader, url


class LeadershipLost(MetadataUnavailable):
    """What was asked had no effect and may be asked again, of the next leader."""

    def __init__(self) -> None:
        super().__init__("another leader took over before this was committed", applied_unknown=False)


class Peers(Protocol):
    """The other members. Sending never waits and may lose messages."""

    def start(
        self,
        unreachable: Callable[[int], None],
        died: Callable[[int], None],
        met: Callable[[int], None],
        answered: Callable[[tuple[AnyMessage, ...]], None],
    ) -> None:
        """`unreachable(peer)` is called when messages to it were lost; `died(peer)` when its process
        seems dead: a connection to it broke, and its host refuses another. A time-out says nothing, and a
        firewall can forge both (ADR 0013). `met(peer)` when it is connected to (again): it is not dead, or
        has started again.
        `answered`: gets what a peer had to say at once to what was sent to it."""

    def configure(self, members: Mapping[int, Member], others: Mapping[int, str]) -> None:
        """Who may be sent to from now on; this node is among them, with its own directory. `others`: URLs of
        nodes that are only read from."""

    def send(self, message: AnyMessage) -> None: ...
    async def answers(self, peer: int) -> tuple[AnyMessage, ...]:
        """What there is to be sent to a peer once this node has looked at what has just come from it; it
        waits for that, and gets it in the response to its own request."""

    async def submit(self, leader: int, command: AnyCommand) -> tuple[AnyReply, int]:
        """Forwards to the leader: its reply, and the log index that holds what it says."""

    async def heartbeat(self, leader: int, heartbeat: Heartbeat, timeout_s: float) -> HeartbeatReply:
        """Safe to repeat, whatever became of it."""

    async def log(self, voter: int, after: int, wait_ms: int) -> LogPage:
        """Committed entries after that index, as observers read them; whatever directory that node has."""

    async def snapshot(self, voter: int, index: int, offset: int) -> bytes:
        """A chunk of the voter's snapshot of that index."""

    async def status(self, leader: int) -> NodeStatus:
        """The quorum as that node sees it, if it leads. All five raise MetadataUnavailable."""

    def watch(self, urls: Mapping[int, str]) -> None:
        """Nodes besides the members whose death is to be told."""

    @property
    def suspects(self) -> frozenset[int]:
        """Watched nodes, members or not, whose connection has just broken: `died` may follow."""

    async def close(self) -> None: ...


class NoPeers:
    """The peers of a quorum of one."""

    def start(
        self,
        unreachable: Callable[[int], None],
        died: Callable[[int], None],
        met: Callable[[int], None],
        answered: Callable[[tuple[AnyMessage, ...]], None],
    ) -> None:
        return

    def configure(self, members: Mapping[int, Member], others: Mapping[int, str]) -> None:
        return

    def send(self, message: AnyMessage) -> None:
        raise InvariantViolation("a quorum of one sends no messages")

    async def answers(self, peer: int) -> tuple[AnyMessage, ...]:
        return ()

    async def submit(self, leader: int, command: AnyCommand) -> tuple[AnyReply, int]:
        raise _alone()

    async def heartbeat(self, leader: int, heartbeat: Heartbeat, timeout_s: float) -> HeartbeatReply:
        raise _alone()

    async def log(self, voter: int, after: int, wait_ms: int) -> LogPage:
        raise _alone()

    async def snapshot(self, voter: int, index: int, offset: int) -> bytes:
        raise _alone()

    async def status(self, leader: int) -> NodeStatus:
        raise _alone()

    def watch(self, urls: Mapping[int, str]) -> None:
        return

    @property
    def suspects(self) -> frozenset[int]:
        return frozenset()

    async def close(self) -> None:
        return


def _alone() -> MetadataUnavailable:
    return MetadataUnavailable("this node is the whole quorum", applied_unknown=False)
